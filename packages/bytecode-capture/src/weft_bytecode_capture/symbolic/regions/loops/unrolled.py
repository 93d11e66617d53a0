"""Loops that are unrolled though they are long: noted with a reason, and cut off where they are too long.

A loop is noted where no region is tried for it, as those that are refused.
"""

from __future__ import annotations

from dataclasses import dataclass

from ....unsupported import Unsupported
from ...decode import DecodedInstruction
from ...models.iterators.builtin_iterators import RangeIteratorVariable
from ...protocol import Frame
from ...variables.base import Variable
from ..branches.join_points import resolved
from ..evaluation import is_in_generator

LONG_LOOP = "long loop that is not kept as one"
"""The kind of break in each iteration of a loop whose iterations would make too large a graph."""

_LIMITS_BEHIND_CUT = ((256, 256),)
"""As ``unrolled_limits``, behind a loop that was cut off, whose other iterations come there."""


_MAX_SIZED_ITERATIONS = 64
"""Of a ``while`` loop whose iterations make sizes that data decides, as it may decide the loop's end."""


@dataclass
class Iterations:
    """How often a loop has come to its head: since it began, and ever; what the graph had at first."""

    nodes: int
    nodes_at_first: int
    symbols_at_first: int
    count: int = 0
    every: int = 0

    def begin_again(self) -> None:
        self.nodes, self.count = -1, 0


def note_element(evaluator: Frame, head: DecodedInstruction, iterator: Variable) -> None:
    """At FOR_ITER, of a loop that is not kept."""
    reason = None  # where a loop over a range is not kept, that is noted elsewhere
    if is_in_generator(evaluator):
        reason = "loop in a generator"
    elif not isinstance(iterator, RangeIteratorVariable):
        reason = "loop over neither a range nor a tensor's rows"
    _note(evaluator, head.index, reason)


def note_end(evaluator: Frame, head: DecodedInstruction) -> None:
    """At FOR_ITER, where there is no element."""
    known = evaluator.iterations.get(head.index)
    if known is not None:
        known.begin_again()


def note_repeated_test(evaluator: Frame, jump: DecodedInstruction) -> None:
    """At a jump back to the beginning of a loop."""
    if not 0 <= jump.target <= jump.index:
        return
    head = resolved(evaluator.decoded, jump.target)
    if evaluator.decoded.instructions[head].name == "FOR_ITER":
        return
    known = _note(evaluator, head, "while loop whose test is on no tensor")
    made = evaluator.graph.shapes.number_of_symbols - known.symbols_at_first
    if min(known.every, made) >= _MAX_SIZED_ITERATIONS:
        raise Unsupported(LONG_LOOP, f"{known.every} iterations, {made} sizes that data decides")


def _note(evaluator: Frame, head: int, reason: str | None) -> Iterations:
    """Count an iteration; where they are many, and put nodes into the graph, note why.

    :raises Unsupported: so many that compiling them would not end in time.
    """
    state = evaluator.state
    nodes = len(evaluator.graph.graph.nodes)
    begun = Iterations(nodes, nodes, evaluator.graph.shapes.number_of_symbols)
    known: Iterations = evaluator.iterations.setdefault(head, begun)
    if known.nodes < 0:
        known.nodes = nodes
    known.count += 1
    known.every += 1
    options, added = state.options, nodes - known.nodes_at_first
    limits = _LIMITS_BEHIND_CUT if state.frame.has_cut_loop else options.unrolled_limits
    for iterations, most in limits:
        if known.every >= iterations and added >= most:
            raise Unsupported(LONG_LOOP, f"{known.every} iterations, {added} operations")
    is_many = known.count == options.rolled_loop_length and nodes > known.nodes
    if reason is not None and is_many and options.keep_control_flow:
        place = (evaluator.code, head)
        state.cache.regions.note_unrolled(place, evaluator.decoded.line(head), reason)
    return known
