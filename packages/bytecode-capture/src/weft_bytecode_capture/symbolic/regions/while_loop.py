"""Loops that a tensor's value ends: ``while`` with a test on a tensor, ``while True`` with one ``break``.

The loop begins at its test, wherever in the loop that is: what comes before the first test has been evaluated
already.  One iteration goes from the test to the next, which CPython may have compiled a second time at the
loop's end.  The test's outcome is carried like the state.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from ...unsupported import Unsupported
from ..decode import Instruction
from ..variables.tensor import TensorVariable
from .carried import CarriedLocals
from .choices import Choice, note_choice
from .decisions import Place
from .emission import emit_while
from .evaluation import as_predicate, check_unchanged, refuse, run_until
from .join_points import loops, resolved
from .slots import CarriedSlots
from .state import ObjectStates
from .subgraph import Subgraph, note_aliases

if TYPE_CHECKING:
    from ..evaluator import Evaluator

_TESTS = ("POP_JUMP_FORWARD_IF_", "POP_JUMP_BACKWARD_IF_", "POP_JUMP_IF_")


@dataclass(frozen=True)
class WhileLoop:
    """``stay`` and ``leave`` are where its test goes; ``tests`` the instructions that are this test.

    ``stays_if`` is the outcome with which each of these goes on.  ``inside`` are the loop's instructions.
    """

    place: Place
    stay: int
    leave: int
    tests: dict[int, bool]
    inside: frozenset[int]


def find_while(evaluator: Evaluator, instruction: Instruction, jump_if: bool) -> WhileLoop | None:
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
            sides = (resolved(decoded, other.target), resolved(decoded, other.index + 1))
            jumps_if = other.name.endswith("TRUE")
            if sides == (stay, leave):
                tests[other.index] = jumps_if
            elif sides == (leave, stay):
                tests[other.index] = not jumps_if
    if not any(k in around.body for k in tests):
        return None
    if any(k in evaluator.breaks for k in around.body):
        raise Unsupported("graph break inside a region")
    return WhileLoop((evaluator.code, index), stay, leave, tests, around.body)


def keep_while(evaluator: Evaluator, loop: WhileLoop, predicate: TensorVariable) -> None:
    """Keep the loop, whose first test has the outcome ``predicate``, and go to where it leaves."""
    _WhileLoop(evaluator, loop).run(predicate)


class _WhileLoop:
    def __init__(self, evaluator: Evaluator, loop: WhileLoop) -> None:
        self.evaluator = evaluator
        self.loop = loop
        self.builder = evaluator.graph
        self.subgraph = Subgraph(self.evaluator)
        decoded = evaluator.decoded
        live = decoded.live_at(loop.stay) | decoded.live_at(loop.leave)
        stored = {
            i.operand
            for i in evaluator.decoded.instructions
            if i.index in loop.inside and i.name in ("STORE_FAST", "DELETE_FAST")
        }
        self.live = [name for name in sorted(stored) if name in live]
        self.dead = [name for name in sorted(stored) if name not in live]
        self.carried = CarriedLocals(
            evaluator, self.subgraph.graph, self.live, loop.place, self._differs
        )

    def run(self, predicate: TensorVariable) -> None:
        evaluator, loop = self.evaluator, self.loop
        self.carried.begin()
        slots = CarriedSlots(evaluator, self.carried)
        states = ObjectStates(evaluator)
        depth = len(evaluator.stack)
        evaluator.next_index = loop.stay
        with self.subgraph.active():
            # The test may be at the very beginning: at least one instruction of the body comes first.
            run_until(evaluator, loop.tests, loop.inside)
            if evaluator.finished or len(evaluator.stack) != depth + 1:
                raise Unsupported("return inside a loop")
            test = evaluator.pop()
            if not isinstance(test, TensorVariable):
                raise Unsupported("loop whose test is no tensor in later iterations", repr(test))
            following = self._outcome(as_predicate(evaluator, test), evaluator.next_index)
        slots.settle()
        check_unchanged(states)
        first = self._outcome(predicate, loop.place[1])
        results = {name: self.carried.result(name, self._unbound) for name in self.live}
        self._emit(first, following)
        for name in self.dead:
            evaluator.locals.pop(name, None)
        evaluator.locals.update(results)
        slots.finish()
        evaluator.next_index = loop.leave

    def _outcome(self, predicate: TensorVariable, test: int) -> TensorVariable:
        """Whether the loop goes on, as a tensor."""
        if self.loop.tests[test]:
            return predicate
        result = self.builder.call_method(self.evaluator, "logical_not", predicate, (), {})
        assert isinstance(result, TensorVariable)
        return result

    def _unbound(self, like: TensorVariable) -> TensorVariable:
        raise Unsupported("local that is unbound after no iteration", repr(like))

    def _differs(self, reason: str) -> NoReturn:
        raise refuse(self.evaluator, self.loop.place, reason)

    def _emit(self, first: TensorVariable, following: TensorVariable) -> None:
        evaluator, place = self.evaluator, self.loop.place
        kept = self.carried.finish()
        inner = [c.result for c in kept if c.result is not None]
        outside = emit_while(evaluator, self.subgraph, first, following, kept)
        note_aliases(evaluator, place, [c.parameter for c in kept], inner, outside)
        for carried in kept:
            # After no iteration the result is what the loop began with.
            start = [carried.start.node]
            note_aliases(evaluator, place, [carried.parameter], [carried.start], start)
            note_choice(evaluator, Choice(carried.parameter, first, True, carried.start))
