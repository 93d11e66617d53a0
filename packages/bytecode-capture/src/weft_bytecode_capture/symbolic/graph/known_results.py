"""What operators gave on fake tensors, as plain data that other captures may use.

A result is found by a text of all that it depends on: the operator, the default dtype and device, and of
each operand the dtype, layout and device, or its value.  So it holds in every process that runs the same
torch with the same settings.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

from ..._torch.fakes import FakeLayout


@dataclass(frozen=True)
class KnownResult:
    """What a call gives: ``kind`` is "fresh", "view" (of the first operand) or "in place" (that itself).

    ``container`` is "one", "tuple" or "list" of tensors with ``layouts``, "first" for the first operand.
    ``has_value``: the result's value is known, where those of the operands are.
    """

    kind: str
    container: str
    layouts: tuple[FakeLayout, ...]
    has_value: bool


KnownResults = MutableMapping[str, KnownResult]
"""By what :func:`key_text` gives."""

ResultsOfFrame = Callable[[types.CodeType], AbstractContextManager[KnownResults]]
"""For the capture of a frame of that code: what is known, to which the capture adds."""


@contextmanager
def known_in_one_capture(code: types.CodeType) -> Iterator[KnownResults]:
    """Nothing but what the evaluations of one frame have found."""
    yield {}


def key_text(key: Sequence[Any]) -> str:
    """A key's parts, each as Python prints it: no two that differ have one text."""
    operator, *parts = key
    return f"{operator} {parts!r}"
