"""Python numbers of which the evaluator does not know the value: one variable, in several representations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch.fx
from weft_guards import Source

from ...protocol import Evaluator
from ...variables.base import Variable


@dataclass(frozen=True)
class Counted:
    """An integer that is the one at ``source`` and ``offset``, and which it is ``now``."""

    source: Source
    offset: int
    now: int


class NumberVariable(Variable):
    """A number; each subclass is a way in which the evaluator has it.

    They are, by ``rank``: a number that the call determines, a float of the call, a float that the graph
    reads, the counter of a loop, a number in a tensor.  An operation on two is the higher one's to compute.
    """

    rank: int
    is_invariant = False
    value: Any = None  # what torch computes with, if it is no tensor
    number_node: torch.fx.Node  # what gives ``value`` in the graph

    def binary_operation(
        self, evaluator: Evaluator, operator: str, other: Variable, reflected: bool
    ) -> Variable | None:
        if not isinstance(other, NumberVariable) and not self.takes(other):
            return self.other_operation(evaluator, operator, other, reflected)
        computing = other if isinstance(other, NumberVariable) and other.rank > self.rank else self
        pair: tuple[Variable, Variable] = (other, self) if reflected else (self, other)
        is_in_place = operator[0] == "i" and operator[1:] in _IN_PLACE
        return computing.operation(evaluator, operator[1:] if is_in_place else operator, pair)

    def counted(self) -> Counted | None:
        """What integer of the call it is, but for a constant; None where it is something else."""
        return None

    def takes(self, other: Variable) -> bool:
        """Whether an operation with ``other``, no such variable, is one on two numbers."""
        return other.is_constant() and type(other.as_constant()) in (int, float)

    def operation(
        self, evaluator: Evaluator, operator: str, pair: tuple[Variable, Variable]
    ) -> Variable | None:
        """``operator``, not in place, on two numbers, of which it is one."""
        raise NotImplementedError

    def other_operation(
        self, evaluator: Evaluator, operator: str, other: Variable, reflected: bool
    ) -> Variable | None:
        """An operation with what is no number."""
        return None


_IN_PLACE = frozenset(
    "add sub mul truediv floordiv mod pow matmul and or xor lshift rshift".split()
)


def is_invariant(variable: Variable) -> bool:
    """Whether a number is the same in every iteration, and in every branch: no region computes it."""
    is_known = isinstance(variable, NumberVariable) and variable.is_invariant
    return is_known or variable.is_constant()


def number_value(variable: Variable) -> Any:
    """A number as Python or torch computes with it."""
    return variable.value if isinstance(variable, NumberVariable) else variable.as_constant()


def number_operand(variable: Variable) -> Any:
    """A number as an argument of a node: its own node, if it has one."""
    return variable.number_node if isinstance(variable, NumberVariable) else variable.as_constant()
