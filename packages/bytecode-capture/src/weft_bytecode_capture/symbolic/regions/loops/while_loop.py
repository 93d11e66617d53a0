"""Loops that a tensor's value ends: ``while`` with a test on a tensor, ``while True`` with ``break``.

The loop begins at its test, wherever in the loop that is: what comes before the first test has been evaluated
already.  One iteration goes from the test to the next, which CPython may have compiled a second time at the
loop's end.  The test's outcome is carried like the state.  A branch in between that leaves the loop has the
rest of the iteration in one branch, and the outcome False in the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import sympy
import torch
import torch.fx

from ....unsupported import Unsupported
from ...decode import DecodedCode, DecodedInstruction
from ...models.numbers.tensor_number import TensorNumberVariable, as_predicate
from ...models.torch.tensor import TensorVariable, on_device, tensor_of
from ...protocol import Frame
from ...variables.base import Variable
from ..branches.join_points import bound_names, loops, reachable, resolved
from ..decisions import ProgramPoint, refuse
from ..evaluation import check_unchanged, every_instruction, run_until
from ..filled_lists.appended import AppendedLists
from ..filled_lists.growing import GrowingLists
from ..identity.choices import Choice, note_choice
from ..state.python_state import ObjectStates
from ..state.slots import CarriedSlots
from ..subgraph import Carried, Subgraph, add_region, call_region, parameter
from .assumed_test import assumed_relation, is_repeated
from .carried import CarriedLocals
from .early_exit import (
    RolledLoop,
    flag,
    is_same_code,
    note_return,
    returned_value,
    rolling,
    unset_like,
)

_TESTS = ("POP_JUMP_FORWARD_IF_", "POP_JUMP_BACKWARD_IF_", "POP_JUMP_IF_")


@dataclass(frozen=True)
class WhileLoop:
    """``stay`` and ``leave`` are where its test goes; ``tests`` the instructions that are this test.

    ``stays_if`` is the outcome with which each of these goes on.  ``inside`` are the loop's instructions,
    ``head`` is the first one.
    """

    place: ProgramPoint
    head: ProgramPoint
    stay: int
    leave: int
    tests: dict[int, bool]
    inside: frozenset[int]


def find_while(evaluator: Frame, instruction: DecodedInstruction) -> WhileLoop | None:
    """The loop of which the conditional jump at hand is the test; None for other branches."""
    decoded, index = evaluator.decoded, instruction.index
    jumped, passed = instruction.target, index + 1
    every = loops(decoded)
    around = next((loop for loop in every if index in loop.body), None)
    if around is not None and (jumped in around.body) != (passed in around.body):
        stay, leave = (jumped, passed) if jumped in around.body else (passed, jumped)
    else:  # the copy of a test before its loop
        starting = [loop for loop in every if resolved(decoded, passed) == loop.head]
        if not starting or jumped in starting[-1].body:
            return None
        around, stay, leave = starting[-1], passed, jumped
    stay, leave = resolved(decoded, stay), resolved(decoded, leave)
    tests = {}
    for other in decoded.instructions:
        if other.name.startswith(_TESTS) and "NONE" not in other.name:
            ways = (resolved(decoded, other.target), resolved(decoded, other.index + 1))
            jumps_if = other.name.endswith("TRUE")
            if ways == (stay, leave):
                tests[other.index] = jumps_if
            elif ways == (leave, stay):
                tests[other.index] = not jumps_if
    if not any(k in around.body for k in tests):
        return None
    if any(k in evaluator.breaks for k in around.body):
        raise Unsupported("graph break inside a region")
    place, head = (evaluator.code, index), (evaluator.code, around.head)
    return WhileLoop(place, head, stay, leave, tests, around.body)


def keep_while(
    evaluator: Frame, loop: WhileLoop, asked: Variable | None, predicate: TensorVariable
) -> tuple[TensorVariable, Variable] | None:
    """Keep the loop, whose first test ``asked`` has the outcome ``predicate``, and go to where it leaves.

    ``asked`` is None where the test is known to hold the first time.  Gives whether an iteration has returned
    from the frame, and what; None if none does.
    """
    first = None if asked is None else _first_test(evaluator, loop)
    if first is not None and first != loop.place[1]:
        test = (evaluator.code, first)
        evaluator.state.cache.regions.note_within(loop.place, loop.head, test)
    return _WhileLoop(evaluator, loop, asked).run(predicate)


def find_whole(
    evaluator: Frame, instruction: DecodedInstruction, outcome: bool
) -> WhileLoop | None:
    """The loop to be kept from its own test on, which the jump at hand is; the test has this ``outcome``."""
    regions, index = evaluator.state.cache.regions, instruction.index
    if not regions.keep_whole_loops or not instruction.name.startswith(_TESTS):
        return None
    loop = find_while(evaluator, instruction)
    if loop is None or not regions.is_kept_whole(loop.head) or loop.tests[index] is not outcome:
        return None
    return loop if _first_test(evaluator, loop) == index else None


def _first_test(evaluator: Frame, loop: WhileLoop) -> int | None:
    """The instruction that tests first whether the loop goes on; None where another decision comes first."""
    decoded, head = evaluator.decoded, resolved(evaluator.decoded, loop.head[1])
    before = None
    for jump in decoded.instructions:
        if not jump.name.startswith(_TESTS) or "NONE" in jump.name:
            continue
        ways = [resolved(decoded, way) for way in (jump.target, jump.index + 1)]
        leaves = [way not in loop.inside for way in ways].count(True) == 1
        if jump.index in loop.inside:
            return before if before is not None or not leaves else jump.index
        if leaves and head in ways:  # a copy of the test before the loop
            before = jump.index
    return before


def _test_start(decoded: DecodedCode, index: int) -> int:
    """Where the expression begins of which the jump at ``index`` tests the value."""
    depth = decoded.depth_at(index)
    assert depth is not None
    return next(k for k in range(index - 1, -1, -1) if decoded.depth_at(k) == depth - 1)


_TEST = ".test"
"""The local, of a name that no program has, that says whether the loop goes on."""


class _RolledWhile(RolledLoop):
    """The loop while its body is evaluated; ``stack`` is the frame's before the test."""

    note = _TEST

    def __init__(self, evaluator: Frame, loop: WhileLoop, stack: list[Variable | None]) -> None:
        super().__init__(loop.inside, stack)
        self.loop = loop
        # What has been tested at the end, where, and in which graph.
        self.tested: list[tuple[Variable, int, torch.fx.Graph]] = []
        self.ends = loop.stay, loop.leave
        self.at = loop.place[1]
        self.tests = frozenset(loop.tests)
        self.head = min(loop.tests.keys() & loop.inside)
        decoded = evaluator.decoded
        self.exits = frozenset(
            i.index
            for i in decoded.instructions
            if i.index not in loop.inside and is_same_code(decoded, i.index, loop.leave)
        )

    def finish_branch(self, evaluator: Frame) -> None:
        run_until(evaluator, self.exits | self.tests, every_instruction(evaluator))
        self.note_end(evaluator, evaluator.next_index in self.exits)

    def note_end(self, evaluator: Frame, has_left: bool) -> None:
        if has_left or evaluator.finished:
            evaluator.locals[_TEST] = flag(evaluator, False)
            note_return(evaluator, self.stack, self.opens)
        elif _TEST not in evaluator.locals:
            test, index = evaluator.pop(), evaluator.next_index
            self.tested.append((test, index, evaluator.graph.graph))
            evaluator.locals[_TEST] = self.outcome(evaluator, test, index)

    def outcome(self, evaluator: Frame, test: Variable, index: int) -> TensorVariable:
        """Whether the loop goes on after the test at ``index``, as a tensor."""
        if isinstance(test, TensorNumberVariable):
            test = test.tensor
        if not isinstance(test, TensorVariable):
            raise Unsupported("loop whose test is no tensor in later iterations", repr(test))
        predicate = as_predicate(evaluator, test)
        if self.loop.tests[index]:
            return predicate
        return tensor_of(evaluator, "logical_not", predicate)


class _WhileLoop:
    def __init__(self, evaluator: Frame, loop: WhileLoop, asked: Variable | None) -> None:
        self.evaluator = evaluator
        self.loop = loop
        self.asked = asked
        self.assumed: Any = None  # what the loop's test says of sizes, in the body
        self.builder = evaluator.graph
        self.subgraph = Subgraph(self.evaluator)
        decoded = evaluator.decoded
        live = decoded.live_at(loop.stay) | decoded.live_at(loop.leave)
        self.rolled = _RolledWhile(evaluator, loop, list(evaluator.stack))
        stops = self.rolled.exits | loop.tests.keys()
        iteration = reachable(decoded, loop.stay, stops) | loop.inside
        self.live, self.dead = bound_names(decoded, loop.stay, iteration, live)
        self.carried = CarriedLocals(
            evaluator, self.subgraph, self.live, loop.place, self._differs, is_counted=False
        )

    def run(self, predicate: TensorVariable) -> tuple[TensorVariable, Variable] | None:
        evaluator, loop = self.evaluator, self.loop
        outer = self.builder.graph
        self.carried.begin()
        slots = CarriedSlots(evaluator, self.carried, self._unbound)
        self.carried.states = states = ObjectStates(evaluator)
        written = len(evaluator.state.aliases.written)
        lists = AppendedLists(evaluator, self.carried)
        self.rolled.opens, self.rolled.lists = states.is_new, lists.every
        evaluator.next_index = loop.stay
        try:
            with self.subgraph.active(), rolling(evaluator, self.rolled):
                self._assume_test()
                # The test may be at the very beginning: an instruction of the body comes first.
                run_until(evaluator, loop.tests, loop.inside)
                if evaluator.finished:
                    raise Unsupported("return inside a loop")
                self.rolled.note_end(evaluator, False)
                self.carried.end_iteration()
                slots.end_iteration()
                appended = lists.end_iteration(states.is_new)
        finally:
            lists.release()
        if len(evaluator.stack) != len(self.rolled.stack):
            raise Unsupported("return inside a loop")
        following = evaluator.locals.pop(_TEST)
        assert isinstance(following, TensorVariable)
        check_unchanged(states)
        slots.bind()
        first = self.rolled.outcome(evaluator, predicate, loop.place[1])
        with self.subgraph.active():
            following = on_device(evaluator, following, first.fake.device)
        returned = returned_value(evaluator, self.carried, outer)
        filling = GrowingLists(evaluator, loop.place, self.carried, appended, written)
        with self.subgraph.active(may_add_outside=True):
            filling.fill()
        bound = self.carried.bound(self.live)
        results = {name: self.carried.result(name, self._unbound) for name in bound}
        node, taken = self._emit(first, following)
        for name in self.dead:
            evaluator.locals.pop(name, None)
        evaluator.locals.update(results)
        slots.finish()
        filling.finish(node, taken)
        evaluator.next_index = loop.leave
        return returned

    def _assume_test(self) -> None:
        """Let the body rely on what the loop's test says of the sizes that vary."""
        place = self.loop.place
        self.carried.sizes.rely_on_bounds()
        if not self.evaluator.state.cache.regions.may_assume(place):
            return
        sizes, stays_if = self.carried.sizes, self.loop.tests[place[1]]
        if self.asked is None:
            asked, started = self._tested_inside(), {symbol: symbol for symbol in sizes.nodes}
        else:
            asked, started = self.asked, sizes.started()
        self.assumed = assumed_relation(asked, stays_if, started)
        if self.assumed is not None:
            sizes.rely_on(self.assumed)

    def _tested_inside(self) -> Variable:
        """The test of what an iteration begins with, whose graph is at hand."""
        evaluator, index = self.evaluator, self.loop.place[1]
        following, evaluator.next_index = (
            evaluator.next_index,
            _test_start(evaluator.decoded, index),
        )
        run_until(evaluator, {index}, every_instruction(evaluator))
        evaluator.next_index = following
        return evaluator.pop()

    def _check_assumed(self) -> None:
        """
        :raises RegionRefused: the test at the end of the body is another than the one before the loop.
        """
        if self.assumed is None:
            return
        tested, tests = self.rolled.tested, self.loop.tests
        if not tested or not all(
            is_repeated(self.assumed, tests[index], test, self._following(graph))
            for test, index, graph in tested
        ):
            raise refuse(self.evaluator, self.loop.place, "test that differs", unassumed=True)

    def _following(self, graph: torch.fx.Graph) -> dict[Any, Any]:
        """What the sizes of the next iteration are where the branch with ``graph`` is taken, by symbol."""
        following = self.carried.sizes.following()
        for *branches, sizes in reversed(self.rolled.joins):
            for branch, known in zip(branches, sizes, strict=True):
                if self.evaluator.state.aliases.is_inside(graph, branch):
                    following = {s: sympy.sympify(n).xreplace(known) for s, n in following.items()}
        return following

    def _unbound(self, like: TensorVariable) -> TensorVariable:
        if self.asked is None:
            return unset_like(self.evaluator, self.builder.graph, like)
        raise Unsupported("local that is unbound after no iteration", repr(like))

    def _differs(self, reason: str) -> NoReturn:
        raise refuse(self.evaluator, self.loop.place, reason)

    def _emit(
        self, first: TensorVariable, following: TensorVariable
    ) -> tuple[torch.fx.Node, list[torch.fx.Node]]:
        """Append the loop: the last of its results, and what it uses of other graphs."""
        evaluator, place = self.evaluator, self.loop.place
        kept = self.carried.finish(may_be_empty=True)
        self._check_assumed()
        last, taken = emit_while(evaluator, self.subgraph, first, following, kept)
        evaluator.state.aliases.note_loop(
            place, self.builder.graph, self.subgraph.graph, kept, taken, may_be_empty=True
        )
        self.carried.sizes.end_results()
        for carried in kept:
            # After no iteration the result is what the loop began with.
            note_choice(evaluator, Choice(carried.parameter, first, True, carried.start))
        return last, taken


# The operator of a loop that a tensor ends: its condition is the outcome of the test, which is carried.


def emit_while(
    evaluator: Frame,
    subgraph: Subgraph,
    first: TensorVariable,
    following: TensorVariable,
    kept: Sequence[Carried],
) -> tuple[torch.fx.Node, list[torch.fx.Node]]:
    """Append a ``while_loop`` whose body is ``subgraph``: its last result, and what the body takes.

    ``first`` says whether there is an iteration, ``following`` in the body whether there is another.
    Parameters in ``kept`` become the loop's results.
    """
    test = parameter(subgraph.graph, "goes_on", first.fake)
    own = OwnState(test, first.node, following.node, first.fake)
    items, taken = call_loop(
        evaluator, subgraph, own, kept, lambda graph, copies: copies[0], is_entered=first
    )
    for carried, node in zip(kept, items[1:], strict=True):
        carried.parameter.node = node
    return items[-1], taken


@dataclass(frozen=True)
class OwnState:
    """What a ``while_loop`` carries for itself, a counter or a test: before it, in its body, after it."""

    parameter: torch.fx.Node
    start: Any
    following: torch.fx.Node
    value: Any  # after the loop


def call_loop(
    evaluator: Frame,
    subgraph: Subgraph,
    own: OwnState,
    kept: Sequence[Carried],
    condition: Callable[[torch.fx.Graph, list[torch.fx.Node]], torch.fx.Node],
    used: Sequence[torch.fx.Node] = (),
    *,
    is_entered: TensorVariable | bool,
) -> tuple[list[torch.fx.Node], list[torch.fx.Node]]:
    """Append a ``while_loop``: its results, and the nodes of other graphs that it uses.

    ``condition`` says in a graph, of copies of the parameters, whether there is another iteration.
    ``used`` are nodes of other graphs that it takes.  ``is_entered``: whether there is a first iteration;
    False where that isn't known.
    """
    parameters = [own.parameter, *(c.parameter.node for c in kept)]
    results = (own.following, *(c.result.node for c in kept if c.result is not None))
    taken = list(dict.fromkeys((*subgraph.taken(*results), *used)))
    body, test = subgraph.close(parameters, taken, results), Subgraph(evaluator)
    copies = [parameter(test.graph, n.name, n.meta.get("example_value")) for n in parameters]
    tested = test.close(copies, taken, condition(test.graph, copies))
    arguments = (
        add_region(evaluator, "condition", tested),
        add_region(evaluator, "body", body),
        (own.start, *(c.start.node for c in kept)),
        tuple(taken),
    )
    values = [own.value, *(c.parameter.fake for c in kept)]
    if is_entered is True and not evaluator.graph.is_in_region:
        evaluator.graph.optional_gradients.note_run(subgraph.graph)
    evaluator.graph.region_histories.note_loop(
        ((c.start.fake, c.parameter.fake, c.result.fake) for c in kept if c.result is not None),
        subgraph.graph,
        is_entered,
    )
    return call_region(evaluator, torch.ops.higher_order.while_loop, arguments, values), taken
