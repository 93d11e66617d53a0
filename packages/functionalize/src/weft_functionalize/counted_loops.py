"""Loops that count: an integer that a ``while_loop`` carries, compares with a bound and steps."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx


@dataclass(frozen=True)
class CountedTest:
    """``comparison & goes_on``: a loop's condition by its counter and by a tensor."""

    comparison: torch.SymBool
    goes_on: torch.Tensor


@dataclass(frozen=True)
class Counter:
    """The carried integer at ``position`` takes the values ``start, start + step, ...`` before ``stop``.

    ``start`` and ``step`` are numbers, ``step`` is not 0; ``stop`` may be symbolic.  ``may_end_early``: a
    tensor may end the loop before; ``ended`` is the position of the carried flag whose negation that is.
    """

    position: int
    start: int
    stop: int | torch.SymInt
    step: int
    may_end_early: bool = False
    ended: int | None = None

    @property
    def trips(self) -> int | None:
        """How often the body runs; None if that is symbolic."""
        if not isinstance(self.stop, int):
            return None
        return max(0, -((self.start - self.stop) // self.step))

    @property
    def final(self) -> int | None:
        """The counter after the loop; None if it is symbolic."""
        return None if self.trips is None else self.start + self.trips * self.step

    def bounds(self, extra_steps: int = 0) -> tuple[int | None, int | None]:
        """The least and the greatest value inside the body; None where there is no bound.

        ``extra_steps`` counts values after the last, which only the loop's condition sees.
        """
        if self.trips is None:
            return (self.start, None) if self.step > 0 else (None, self.start)
        last = self.start + (max(self.trips, 1) - 1 + extra_steps) * self.step
        return min(self.start, last), max(self.start, last)


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
    if isinstance(bound, torch.fx.Node):
        index = parameters.index(bound) - len(carried) if bound in parameters else -1
        bound = additional[index] if index >= 0 else None
    step = _step(body, position)
    start = carried[position]
    if not isinstance(start, int) or not isinstance(bound, (int, torch.SymInt)) or not step:
        return None
    if (compared.target is operator.lt) != (step > 0):
        return None
    return Counter(
        position, start, bound, step, joined, _negated(goes_on, parameters[: len(carried)])
    )


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


def _step(body: torch.fx.GraphModule, position: int) -> int:
    """What the body adds to its parameter ``position`` for the next iteration; 0 if it does otherwise."""
    (output,) = body.graph.find_nodes(op="output")
    results = output.args[0]
    if not isinstance(results, (tuple, list)):
        return 0
    parameter = body.graph.find_nodes(op="placeholder")[position]
    result = results[position]
    if not isinstance(result, torch.fx.Node) or result.target is not operator.add:
        return 0
    first, second = result.args
    step = second if first is parameter else first
    other = first if first is parameter else second
    return step if other is parameter and isinstance(step, int) else 0
