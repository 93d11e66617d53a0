"""What a kept loop counts: where its counter begins and ends, and the iterators that it stands for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
import torch.fx

from ..variables.base import Variable
from ..variables.constant import ConstantVariable
from ..variables.symbolic_number import SymbolicNumberVariable

if TYPE_CHECKING:
    from ..evaluator import Evaluator


@dataclass(frozen=True)
class Span:
    """The numbers that a loop's counter has: ``start``, and ``step`` more each time, before ``stop``.

    ``values`` are these, None where ``stop`` is symbolic; ``stop_variable`` is it then.
    """

    start: int
    stop: int | torch.SymInt
    step: int
    values: range | None
    stop_variable: SymbolicNumberVariable | None = None

    @property
    def stop_node(self) -> torch.fx.Node | None:
        """The node of a symbolic ``stop``."""
        return None if self.stop_variable is None else self.stop_variable.number_node

    def count(self, evaluator: Evaluator) -> Variable:
        """How many numbers there are; symbolic where ``stop`` is, and steps are 1 or -1 then."""
        if self.values is not None:
            return ConstantVariable(len(self.values))
        assert self.stop_variable is not None
        difference = evaluator.binary_operation(
            "sub", self.stop_variable, ConstantVariable(self.start)
        )
        return evaluator.binary_operation("mul", difference, ConstantVariable(self.step))


class CountedIterator(Protocol):
    """An iterator whose elements a counter determines."""

    position: int

    def element(self, evaluator: Evaluator, index: Variable) -> Variable:
        """The element where the counter is ``index``."""

    def exhaust(self) -> None:
        """Go to the end: a loop has used all elements."""
