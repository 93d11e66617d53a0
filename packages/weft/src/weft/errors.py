"""Errors of the pipeline, each naming the stage and the user's source line."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from weft_bytecode_capture import GraphBreakError


class WeftError(RuntimeError):
    """Base class of weft's own errors."""


class WeftWarning(UserWarning):
    """Something runs as plain eager PyTorch although it was to be compiled."""


class StageError(WeftError):
    """A stage of the pipeline failed on a graph.

    ``stage`` is its package's name, ``location`` the user's source line where known; the cause is chained.
    """

    def __init__(self, stage: str, location: str, cause: BaseException) -> None:
        self.stage = stage
        self.location = location
        text = str(cause).strip()
        if not isinstance(cause, GraphBreakError):
            text = text.split("\n", 1)[0]
        super().__init__(
            f"weft: {stage} failed on the graph of {location}: {type(cause).__name__}: {text}"
        )
        self.__cause__ = cause


@contextlib.contextmanager
def stage(name: str, location: str, but: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Turn any error inside into a :class:`StageError` that names the stage; those of ``but`` stay."""
    try:
        yield
    except StageError:
        raise
    except but:
        raise
    except Exception as error:  # a stage's refusal, or any fault in it
        raise StageError(name, location, error) from error
