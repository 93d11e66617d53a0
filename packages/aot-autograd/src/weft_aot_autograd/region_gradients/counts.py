"""How often a loop runs, where that is known when it begins."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx
from weft_functionalize import known_true

from ..joint_recorder import JointRecorder
from ..unsupported import Unsupported

aten = torch.ops.aten

Integer = int | torch.SymInt


@dataclass(frozen=True)
class Count:
    """The carried integer at ``position`` takes the values ``start, start + step, ...``, ``trips`` of them.

    ``may_end_early``: a tensor may end the loop before.  ``has_any``: it is known that they are not none.
    """

    position: int
    start: Integer
    step: int
    trips: Integer
    may_end_early: bool
    has_any: bool = False

    def iteration(self, counter: Integer) -> Integer:
        """The number of the iteration, from 0, in which the counter is ``counter``."""
        if self.step > 0:
            return (counter - self.start) // self.step
        return (self.start - counter) // -self.step

    def not_before_first(self, counter: torch.SymInt) -> bool | torch.SymBool:
        """Whether a counter that runs backwards has not passed the first iteration."""
        return counter > self.start - 1 if self.step > 0 else counter < self.start + 1

    def counter(self, iteration: Integer) -> Integer:
        """The counter in an iteration."""
        return self.start + self.step * iteration


def find_count(
    condition: torch.fx.GraphModule, body: torch.fx.GraphModule, carried: Sequence[Any]
) -> Count | None:
    """The count of a functional ``while_loop`` that begins with ``carried``; None if it carries no integer.

    Raises :class:`Unsupported` for carried integers that do not count.
    """
    integers = [k for k, value in enumerate(carried) if isinstance(value, (int, torch.SymInt))]
    if not integers:
        return None
    (output,) = condition.graph.find_nodes(op="output")
    test: Any = output.args[0]
    may_end_early = test.target is operator.and_
    if may_end_early:
        test = test.args[0]
    comparison = _COMPARISONS.get(test.target)
    counters = condition.graph.find_nodes(op="placeholder")
    if len(integers) > 1 or comparison is None:
        raise Unsupported("gradient of a loop that does not count", str(test))
    (position,) = integers
    left, right = test.args
    if right is counters[position]:
        left, right, comparison = right, left, _TURNED[comparison]
    if left is not counters[position]:
        raise Unsupported("gradient of a loop that does not count", str(test))
    stop = right.meta["val"] if isinstance(right, torch.fx.Node) else right
    step = _step(body, position)
    if step == 0 or (step > 0) != (comparison is operator.lt):
        raise Unsupported("gradient of a loop that does not count", str(test))
    start = carried[position]
    distance = stop - start if step > 0 else start - stop
    trips = (distance + abs(step) - 1) // abs(step)
    if isinstance(trips, int):
        trips = max(trips, 0)
    elif not known_true(trips >= 0):
        trips = torch.sym_max(trips, 0)
    ahead = stop > start if step > 0 else stop < start  # as the condition compares them
    return Count(position, start, step, trips, may_end_early, known_true(ahead))


def min_iterations(
    recorder: JointRecorder, condition: torch.fx.GraphModule, carried: Sequence[Any], count: Count
) -> int:
    """How many iterations the loop certainly has, 0 or 1; all where their number is known."""
    if count.may_end_early and not _goes_on_at_first(recorder, condition, carried):
        return 0
    if count.may_end_early or not isinstance(count.trips, int):
        return int(count.has_any)
    return count.trips


def _goes_on_at_first(
    recorder: JointRecorder, condition: torch.fx.GraphModule, carried: Sequence[Any]
) -> bool:
    """Whether the flag by which an iteration ends the loop is unset when it begins."""
    (output,) = condition.graph.find_nodes(op="output")
    test: Any = output.args[0].args[1]
    placeholders = condition.graph.find_nodes(op="placeholder")
    if test.target is not aten.logical_not.default or test.args[0] not in placeholders:
        return False
    position = placeholders.index(test.args[0])
    if position >= len(carried):
        return False
    begun = recorder.node_of(carried[position])
    while begun.target in (aten.detach.default, aten.clone.default, aten.alias.default):
        begun = begun.all_input_nodes[0]
    if begun.target in (aten.zeros.default, aten.zeros_like.default):
        return True
    return begun.target is aten.full.default and begun.args[1] in (0, False)


_COMPARISONS: dict[Any, Any] = {operator.lt: operator.lt, operator.gt: operator.gt}
_TURNED = {operator.lt: operator.gt, operator.gt: operator.lt}


def _step(body: torch.fx.GraphModule, position: int) -> int:
    """What the body adds to the counter; 0 where that is no fixed number."""
    (output,) = body.graph.find_nodes(op="output")
    results: Any = output.args[0]
    counter = body.graph.find_nodes(op="placeholder")[position].meta["val"]
    following = results[position]
    if not isinstance(following, torch.fx.Node):
        return 0
    difference = following.meta["val"] - counter
    expression = difference.node.expr if isinstance(difference, torch.SymInt) else difference
    return int(expression) if getattr(expression, "is_number", True) else 0
