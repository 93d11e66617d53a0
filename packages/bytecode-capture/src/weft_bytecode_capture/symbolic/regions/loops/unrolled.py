"""Loops that no region is tried for though they are long: noted with a reason, as those that are refused."""

from __future__ import annotations

from dataclasses import dataclass

from ...decode import DecodedInstruction
from ...models.iterators.builtin_iterators import RangeIteratorVariable
from ...protocol import Frame
from ...variables.base import Variable
from ..branches.join_points import resolved
from ..evaluation import is_in_generator


@dataclass
class Iterations:
    """How often a loop has come to its head, and how many nodes the graph had at first."""

    nodes: int
    count: int = 0


def note_element(evaluator: Frame, head: DecodedInstruction, iterator: Variable) -> None:
    """At FOR_ITER, of a loop that is not kept."""
    if is_in_generator(evaluator):
        _note(evaluator, head.index, "loop in a generator")
    elif not isinstance(iterator, RangeIteratorVariable):
        # Where a loop over a range is not kept, that is noted elsewhere.
        _note(evaluator, head.index, "loop over neither a range nor a tensor's rows")


def note_repeated_test(evaluator: Frame, jump: DecodedInstruction) -> None:
    """At a jump back to the beginning of a loop."""
    if not 0 <= jump.target <= jump.index:
        return
    head = resolved(evaluator.decoded, jump.target)
    if evaluator.decoded.instructions[head].name != "FOR_ITER":
        _note(evaluator, head, "while loop whose test is on no tensor")


def _note(evaluator: Frame, head: int, reason: str) -> None:
    """Count an iteration; where they are many, and put nodes into the graph, note why."""
    state = evaluator.state
    if not state.options.keep_control_flow:
        return
    nodes = len(evaluator.graph.graph.nodes)
    known = evaluator.iterations.setdefault(head, Iterations(nodes))
    known.count += 1
    if known.count == state.options.rolled_loop_length and nodes > known.nodes:
        place = (evaluator.code, head)
        state.cache.regions.note_unrolled(place, evaluator.decoded.line(head), reason)
