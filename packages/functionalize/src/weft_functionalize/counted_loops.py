"""Loops that count: an integer that a ``while_loop`` carries, compares with a bound and steps."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from ._torch import known_bounds, known_true


@dataclass(frozen=True)
class Comparison:
    """A counter with its bound.  SymPy would turn a bound of several terms round, with the counter in it."""

    counter: torch.SymInt
    stop: int | torch.SymInt
    ascends: bool

    @property
    def function(self) -> Callable[[Any, Any], Any]:
        return operator.lt if self.ascends else operator.gt


@dataclass(frozen=True)
class CountedTest:
    """``comparison & goes_on``: a loop's condition by its counter and by a tensor."""

    comparison: torch.SymBool | Comparison
    goes_on: torch.Tensor


Integer = int | torch.SymInt


@dataclass(frozen=True)
class Counter:
    """The carried integer at ``position`` takes the values ``start, start + step, ...`` before ``stop``.

    ``ascends``: ``step`` is greater than 0, else it is less.  ``may_end_early``: a tensor may end the loop
    before; ``ended`` is the position of the carried flag whose negation that is.
    """

    position: int
    start: Integer
    stop: Integer
    step: Integer
    ascends: bool
    may_end_early: bool = False
    ended: int | None = None

    @property
    def trips(self) -> int | None:
        """How often the body runs; None if that is symbolic."""
        three = (self.start, self.stop, self.step)
        return (
            None
            if any(isinstance(n, torch.SymInt) for n in three)
            else len(range(*map(int, three)))
        )

    @property
    def final(self) -> int | None:
        """The counter after the loop; None if it is symbolic."""
        return None if self.trips is None else int(self.start + self.trips * self.step)

    def bounds(self, extra_steps: int = 0) -> tuple[int | None, int | None]:
        """The least and the greatest value inside the body; None where there is no bound.

        ``extra_steps`` counts values after the last, which only the loop's condition sees.
        """
        if self.trips is None:
            ends = (self.start, self.stop - 1) if self.ascends else (self.stop + 1, self.start)
            return known_bounds(ends[0])[0], known_bounds(ends[1])[1]
        first = int(self.start)
        last = first + (max(self.trips, 1) - 1 + extra_steps) * int(self.step)
        return min(first, last), max(first, last)

    def is_inside(self, value: torch.SymInt) -> tuple[bool | torch.SymBool, ...]:
        """What holds of the counter in the body."""
        if self.ascends:
            return value >= self.start, value < self.stop
        return value <= self.start, value > self.stop

    def has_iterations(self) -> bool:
        """Whether it is known that its bounds leave an iteration."""
        ahead = self.stop > self.start if self.ascends else self.stop < self.start
        return known_true(ahead)


def find_counter(
    condition: torch.fx.GraphModule,
    body: torch.fx.GraphModule,
    carried: Sequence[Any],
    additional: Sequence[Any],
) -> Counter | None:
    """The counter of a loop whose condition compares it with a bound, None for other loops.

    The condition is the comparison, or ``comparison & tensor``.
    """
    compared = _returned(condition)
    joined = isinstance(compared, torch.fx.Node) and compared.target is operator.and_
    goes_on: Any = None
    if joined:
        compared, goes_on = compared.args  # the latter is a tensor that may end the loop early
    if not isinstance(compared, torch.fx.Node) or len(compared.args) != 2:
        return None
    if compared.target not in (operator.lt, operator.gt):
        return None
    parameters = condition.graph.find_nodes(op="placeholder")
    counter, bound = compared.args
    if counter not in parameters[: len(carried)]:
        return None
    position = parameters.index(counter)
    bound = _outside(bound, parameters, len(carried), additional)
    step = _step(body, position, len(carried), additional)
    start = carried[position]
    if not all(isinstance(number, (int, torch.SymInt)) for number in (start, bound, step)):
        return None
    ascends = compared.target is operator.lt
    if not known_true(step > 0 if ascends else step < 0):
        return None
    ended = _negated(goes_on, parameters[: len(carried)])
    return Counter(position, start, bound, step, ascends, joined, ended)


def _outside(
    value: Any, parameters: Sequence[torch.fx.Node], count: int, additional: Sequence[Any]
) -> Any:
    """What a region is given for ``value``, a number or a parameter after the ``count`` carried ones."""
    if not isinstance(value, torch.fx.Node):
        return value
    index = parameters.index(value) - count if value in parameters else -1
    return additional[index] if index >= 0 else None


def _negated(test: Any, parameters: Sequence[torch.fx.Node]) -> int | None:
    """The position of the parameter that ``test`` is the negation of."""
    if not isinstance(test, torch.fx.Node) or test.target != "logical_not":
        return None
    (flag,) = test.args
    return parameters.index(flag) if flag in parameters else None


def _returned(module: torch.fx.GraphModule) -> Any:
    (output,) = module.graph.find_nodes(op="output")
    result = output.args[0]
    return result[0] if isinstance(result, (tuple, list)) and len(result) == 1 else result


def _step(body: torch.fx.GraphModule, position: int, count: int, additional: Sequence[Any]) -> Any:
    """What the body adds to its parameter ``position`` for the next iteration; None if it does otherwise."""
    (output,) = body.graph.find_nodes(op="output")
    results = output.args[0]
    if not isinstance(results, (tuple, list)):
        return None
    parameters = body.graph.find_nodes(op="placeholder")
    parameter, result = parameters[position], results[position]
    if not isinstance(result, torch.fx.Node) or result.target is not operator.add:
        return None
    if parameter not in result.args:
        return None
    first, second = result.args
    return _outside(second if first is parameter else first, parameters, count, additional)
