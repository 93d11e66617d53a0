"""What a kept loop counts: where its counter begins and ends, and the iterators that it stands for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
import torch.fx

from ..variables.base import Variable

if TYPE_CHECKING:
    from ..evaluator import Evaluator


@dataclass(frozen=True)
class Span:
    """The numbers that a loop's counter has: ``start``, and ``step`` more each time, before ``stop``.

    ``values`` are these, None where ``stop`` is symbolic; ``stop_node`` is its node then.
    """

    start: int
    stop: int | torch.SymInt
    step: int
    values: range | None
    stop_node: torch.fx.Node | None = None


class CountedIterator(Protocol):
    """An iterator whose elements a counter determines."""

    position: int

    def element(self, evaluator: Evaluator, index: Variable) -> Variable:
        """The element where the counter is ``index``."""

    def exhaust(self) -> None:
        """Go to the end: a loop has used all elements."""
