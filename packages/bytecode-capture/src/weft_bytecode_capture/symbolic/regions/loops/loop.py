"""Loops over a range or a tensor's rows, evaluated once for all iterations and kept as ``while_loop``.

The body is evaluated on state that any iteration may begin with: the counter is a symbolic integer, each
local tensor that the body binds anew is a parameter.  What the body leaves must be like what it began with.
"""

from __future__ import annotations

import operator
from typing import NoReturn

import torch
import torch.fx

from ...._torch.symbols import assume, expression_of, known_bounds, new_integer
from ....unsupported import Unsupported
from ...decode import DecodedInstruction, after_loop
from ...models.iterators.builtin_iterators import (
    IteratorVariable,
    ListIteratorVariable,
    RangeIteratorVariable,
    kept_iterator,
)
from ...models.iterators.joint_iterators import JointIteratorVariable
from ...models.numbers.symbolic_integer import LoopCounter, SymbolicIntegerVariable
from ...models.numbers.symbolic_range import SymbolicRangeIteratorVariable
from ...models.torch.tensor import TensorVariable, on_device
from ...protocol import Frame
from ...variables.base import Variable
from ...variables.constant import ConstantVariable
from ..branches.branch import ElseOfLoop, ReturnFromLoop, is_undecided
from ..branches.join_points import bound_names, loops, reachable, resolved
from ..decisions import ProgramPoint, refuse
from ..evaluation import attempted, check_unchanged, may_attempt, run_until
from ..filled_lists.appended import AppendedLists
from ..filled_lists.filling import ListFilling
from ..filled_lists.listed_rows import listed_rows
from ..state.python_state import ObjectStates
from ..state.slots import CarriedSlots
from ..subgraph import Subgraph, parameter
from .candidates import candidate_iterator
from .carried import CarriedLocals
from .counted_loops import (
    CountedIterator,
    JointElements,
    Span,
    joint_span,
    node_of,
    value_of,
)
from .early_exit import (
    DONE,
    RolledFor,
    breaks_of,
    returned_value,
    rolling,
    unset_flag,
    unset_like,
)
from .while_loop import OwnState, call_loop

_ONLY_FIRST = frozenset(
    {
        "decision by a loop's counter",
        "decision by a number that the graph computes",
        "effect inside a region",
        "list that a loop appends to and looks at",
    }
)
"""Kinds of what may be so in the first iteration only: by its number, or as it changes an object first."""


def loop_iterator(
    evaluator: Frame, instruction: DecodedInstruction, iterated: Variable
) -> IteratorVariable | None:
    """At GET_ITER before a FOR_ITER: an iterator that the loop may keep, None for the usual one."""
    following = resolved(evaluator.decoded, instruction.index + 1)
    place = (evaluator.code, following)
    if evaluator.decoded.instructions[following].name == "RETURN_GENERATOR":
        # A generator expression that takes its iterator for its caller.
        caller = evaluator.parent
        may_keep = caller is not None and may_attempt(caller, place)
        return kept_iterator(evaluator, iterated) if may_keep else None
    if not may_attempt(evaluator, place):
        return None
    candidates = candidate_iterator(evaluator, instruction, iterated)
    return kept_iterator(evaluator, iterated) if candidates is None else candidates


def _counted(evaluator: Frame, iterator: Variable) -> tuple[CountedIterator, Span] | None:
    """What a loop over the rest of ``iterator`` counts; None if that is not known."""
    if isinstance(iterator, JointIteratorVariable) and iterator.iterators is not None:
        parts = [_counted(evaluator, part) for part in iterator.iterators]
        known = [part for part in parts if part is not None]
        if len(known) < len(parts):
            return None
        whole = joint_span(evaluator, [span for _, span in known], iterator.is_strict)
        return None if whole is None else (JointElements(iterator, known), whole)
    if isinstance(iterator, SymbolicRangeIteratorVariable):
        first = iterator.first(evaluator)
        if first is None:
            return None
        iterated = iterator.iterated
        bounds = (first, iterated.stop, iterated.step, iterated.ascends)
        return iterator, Span(*bounds, may_be_empty=iterated.differs)
    if type(iterator) is ListIteratorVariable:
        return listed_rows(evaluator, iterator)
    if not isinstance(iterator, RangeIteratorVariable):
        return None
    values = iterator.rest()
    start, stop, step = map(ConstantVariable, (values.start, values.stop, values.step))
    return iterator, Span(start, stop, step, values.step > 0)


def require_kept(evaluator: Frame, instruction: DecodedInstruction, condition: Variable) -> None:
    """
    :raises RegionRefused: a jump on data leaves a short loop that is unrolled, and may be kept.
    """
    loop = next((k for k in loops(evaluator.decoded) if instruction.index in k.body), None)
    if loop is None or not evaluator.stack or evaluator.graph.is_in_region:
        return
    head = resolved(evaluator.decoded, loop.head)
    place, iterator = (evaluator.code, head), evaluator.stack[-1]
    ways = (instruction.target in loop.body, instruction.index + 1 in loop.body)
    if evaluator.decoded.instructions[head].name != "FOR_ITER" or all(ways):
        return
    regions = evaluator.state.cache.regions
    if iterator is None or regions.is_kept_short(place) or not may_attempt(evaluator, place):
        return
    if _counted(evaluator, iterator) is not None and is_undecided(evaluator, condition):
        refusal = refuse(evaluator, place, "short loop that data ends")
        refusal.short = True
        raise refusal


def roll_loop(evaluator: Frame, instruction: DecodedInstruction, iterator: Variable) -> bool:
    """At FOR_ITER: keep the rest of the loop as one region and go to its exit; False to unroll.

    Raises :class:`RegionRefused`, after which the frame is evaluated again, where the body can't be kept.
    """
    place = (evaluator.code, instruction.index)
    if not may_attempt(evaluator, place):
        return False
    decoded, head = evaluator.decoded, instruction.index
    found = (loop.body for loop in loops(decoded) if resolved(decoded, loop.head) == head)
    inside = next(found, None)
    if inside is None or any(k in evaluator.breaks for k in inside):
        return False
    counted = _counted(evaluator, iterator)
    if counted is None or counted[0].position != evaluator.state.cache.regions.first_iteration(
        place
    ):
        return False
    values = counted[1].values
    if values is not None and not values:  # it is over
        return False
    is_short = values is not None and len(values) < evaluator.state.options.rolled_loop_length
    if is_short and not evaluator.state.cache.regions.is_kept_short(place):
        return False
    loop = _ForLoop(evaluator, instruction, *counted, inside, place)
    with attempted(evaluator, place, "the loop's body", _ONLY_FIRST):
        loop.run()
    return True


class _ForLoop:
    def __init__(
        self,
        evaluator: Frame,
        head: DecodedInstruction,
        iterator: CountedIterator,
        span: Span,
        inside: frozenset[int],
        place: ProgramPoint,
    ) -> None:
        self.evaluator = evaluator
        self.head = head
        self.iterator = iterator
        self.place = place
        self.inside = inside
        self.builder = evaluator.graph
        self.subgraph = Subgraph(self.evaluator)
        self.span = span
        live = evaluator.decoded.live_at(head.index)
        self.breaks = breaks_of(evaluator.decoded, head, inside)
        stops = self.breaks.every | {head.index}
        iteration = reachable(evaluator.decoded, head.index + 1, stops)
        self.live, self.dead = bound_names(evaluator.decoded, head.index, iteration, live)
        self.outer = self.builder.graph
        self.carried = CarriedLocals(evaluator, self.subgraph, self.live, place, self._differs)
        self._taken: list[torch.fx.Node] = []
        self._written = len(evaluator.state.aliases.written)  # before the body
        self.done: TensorVariable | None = None  # the parameter that says that the loop has ended

    def run(self) -> None:
        evaluator = self.evaluator
        index = self._counter()
        self.carried.begin()
        slots = CarriedSlots(evaluator, self.carried, self._unset)
        self.carried.states = states = ObjectStates(evaluator)
        lists = AppendedLists(evaluator, self.carried, self.span, index)
        try:
            depth = len(evaluator.stack)
            stack = list(evaluator.stack)
            rolled = RolledFor(
                self.head, self.inside, self.breaks, stack, states.is_new, lists.every
            )
            with self.subgraph.active(), rolling(evaluator, rolled):
                self.carried.sizes.rely_on_bounds()
                element = self.iterator.element(evaluator, index)
                evaluator.stack.append(element)
                run_until(evaluator, {self.head.index}, self.inside)
                self.carried.end_iteration(None if DONE in evaluator.locals else element)
                slots.end_iteration()
                appended = lists.end_iteration(states.is_new)
            if evaluator.finished or len(evaluator.stack) != depth:  # in every iteration
                raise Unsupported("return inside a loop")
        finally:
            lists.release()
        check_unchanged(states)
        slots.bind()
        self._end_early(evaluator.locals.pop(DONE, None))
        returned = returned_value(evaluator, self.carried, self.outer)
        filling = ListFilling(
            evaluator, self.place, self.span, self.carried, appended, self.done, self._written
        )
        with self.subgraph.active(may_add_outside=True):
            filling.fill(index)
        results = {name: self._result(name, element) for name in self.carried.bound(self.live)}
        loop = self._emit(index)
        for name in self.dead:
            evaluator.locals.pop(name, None)
        evaluator.locals.update(results)
        slots.finish()
        filling.finish(loop, self._taken)
        evaluator.stack.pop()
        self.iterator.exhaust()
        evaluator.next_index = after_loop(self.head)
        if returned is not None:
            ReturnFromLoop(evaluator, self.head, *returned, evaluator.next_index).run()
        elif self.done is not None and self.breaks.others:
            ElseOfLoop(evaluator, self.head, self.done, self.breaks.landing).run()

    def _result(self, name: str, element: Variable) -> Variable:
        """What a local is after the loop."""
        is_read = name in self.evaluator.decoded.live_at(self.head.index + 1)
        is_last = self.done is None and not is_read  # by the next iteration
        if self.evaluator.locals.get(name) is element and is_last:
            return self.iterator.element(self.evaluator, self.span.last(self.evaluator))
        return self.carried.result(name, self._unset)

    def _unset(self, like: TensorVariable) -> TensorVariable:
        if self.span.may_be_empty:
            raise Unsupported("local that is unbound after no iteration", repr(like))
        return unset_like(self.evaluator, self.outer, like)

    def _end_early(self, done: Variable | None) -> None:
        """Carry whether an iteration has left the loop on a tensor's value."""
        if done is None:
            return
        assert isinstance(done, TensorVariable)
        start = unset_flag(self.evaluator, self.outer)
        with self.subgraph.active():
            done = on_device(self.evaluator, done, start.fake.device)
        self.done = self.carried.add("done", start, done).parameter

    def _differs(self, reason: str) -> NoReturn:
        """The first iteration may differ from the others only: it is tried without that one."""
        raise refuse(self.evaluator, self.place, reason, peel=True)

    # Before the body.

    def _counter(self) -> SymbolicIntegerVariable:
        span = self.span
        start, stop = value_of(span.start), value_of(span.stop)
        if span.values is not None:
            ends = (min(span.values), max(span.values))
            value = new_integer(self.builder.fake_mode, *ends)
        else:
            ends = (start, stop - 1) if span.ascends else (stop + 1, start)
            bounds = known_bounds(ends[0])[0], known_bounds(ends[1])[1]
            value = new_integer(self.builder.fake_mode, *bounds)
            assume(value < stop if span.ascends else value > stop)
            assume(value >= start if span.ascends else value <= start)
        index = SymbolicIntegerVariable(parameter(self.subgraph.graph, "index", value), value)
        self.builder.counters[expression_of(value)] = LoopCounter(index, *ends)
        return index

    # The region.

    def _emit(self, index: SymbolicIntegerVariable) -> torch.fx.Node:
        evaluator, graph = self.evaluator, self.subgraph.graph
        kept = self.carried.finish(self.span.may_be_empty)
        following = graph.call_function(operator.add, (index.node, node_of(self.span.step)))
        stop = node_of(self.span.stop)
        ends = [self.done is c.parameter for c in kept]

        def goes_on(test: torch.fx.Graph, copies: list[torch.fx.Node]) -> torch.fx.Node:
            """The counter is inside the range, and no iteration has ended the loop."""
            compare = operator.lt if self.span.ascends else operator.gt
            result = test.call_function(compare, (copies[0], stop))
            if self.done is None:
                return result
            negated = test.call_method("logical_not", (copies[1 + ends.index(True)],))
            return test.call_function(operator.and_, (result, negated))

        own = OwnState(index.node, node_of(self.span.start), following, value_of(self.span.stop))
        used = [stop] if isinstance(stop, torch.fx.Node) else []
        may_be_empty = self.span.may_be_empty
        items, self._taken = call_loop(
            evaluator, self.subgraph, own, kept, goes_on, used, is_entered=not may_be_empty
        )
        evaluator.state.aliases.note_loop(
            self.place, self.builder.graph, graph, kept, self._taken, may_be_empty
        )
        for carried, node in zip(kept, items[1:], strict=True):
            carried.parameter.node = node
        self.carried.sizes.end_results()
        return items[-1]
