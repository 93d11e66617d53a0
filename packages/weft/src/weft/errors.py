"""Errors of the line, each naming the stage and the user's source line."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


class WeftError(RuntimeError):
    """Base class of weft's own errors."""


class WeftWarning(UserWarning):
    """Something runs as plain eager PyTorch although it was to be compiled."""


class StageError(WeftError):
    """A stage of the line failed on a graph.

    ``stage`` is its package's name, ``location`` the user's source line where known; the cause is chained.
    """

    def __init__(self, stage: str, location: str, cause: BaseException) -> None:
        self.stage = stage
        self.location = location
        first_line = str(cause).strip().split("\n", 1)[0]
        super().__init__(
            f"weft: {stage} failed on the graph of {location}: {type(cause).__name__}: {first_line}"
        )
        self.__cause__ = cause


@contextlib.contextmanager
def stage(name: str, location: str) -> Iterator[None]:
    """Turn any error inside into a :class:`StageError` that names the stage."""
    try:
        yield
    except StageError:
        raise
    except Exception as error:
        raise StageError(name, location, error) from error
