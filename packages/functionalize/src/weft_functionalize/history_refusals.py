"""Autograd's refusals to say what a tensor is computed from."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from .unsupported import Unsupported

# What autograd says of writes for which it has no history; it may say so only when the history is asked for.
_HISTORY_REFUSALS = (
    "its base or another view of its base has been modified inplace",
    "and is being modified inplace",
)


@contextlib.contextmanager
def refusing_unknown_histories() -> Iterator[None]:
    """Turn autograd's refusal to say what a tensor is computed from into :class:`Unsupported`.

    Where eager refuses too, the graph that runs as it was captured raises eager's own error.
    """
    try:
        yield
    except RuntimeError as error:
        if not any(text in str(error) for text in _HISTORY_REFUSALS):
            raise
        raise Unsupported(
            "write that leaves no autograd history",
            str(error),
            "write out of place, or to a clone() of what the views are of",
        ) from error
