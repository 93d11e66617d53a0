"""Proofs that a loop over all elements may end for each of them by itself."""

from __future__ import annotations

import math
from collections.abc import Iterable, Set

from weft_loop_ir.bodies import ADD, Connective, IndexValue, Load, Value, Where
from weft_loop_ir.recording import BodyRecorder
from weft_loop_ir.schedule.element_bodies import ElementBody, Test, Unproved
from weft_loop_ir.schedule.simplify_values import Simplifier, constant_of


def check_that_each_ends(
    body: ElementBody, flag: str, state: Iterable[str], not_minus_zero: Set[str]
) -> None:
    """Check that an iteration leaves an element's ``state`` as it is once the element doesn't go on.

    The loop goes on while ``flag`` is set at the end of an iteration; ``not_minus_zero`` names state that
    isn't -0.0 when it begins.  Raises :class:`Unproved`.

    An element goes on if its operand of the one test holds, which is about the state after the iteration or
    the one before it; both are tried.  In the second form the test may decide what the iteration does, so
    both of its results are.
    """
    if len(body.tests) != 1:
        raise Unproved
    (test,) = body.tests
    goes_on = _of_element(body, test, body.last[flag])
    names = list(state)
    if not all(name in body.first for name in names):
        raise Unproved
    for condition in (_before_iteration(body, goes_on), goes_on):
        if condition is not None and _keeps(body, condition, test, names, not_minus_zero):
            return
    raise Unproved


def _of_element(body: ElementBody, test: Test, flag: Value) -> Value:
    """The value that says whether an element goes on, if the loop does while one of them does."""
    simple = Simplifier(body.ops, {})
    outcome = simple(flag)
    if test.connective is Connective.OR and outcome == test.result:
        return simple(test.operand)
    if test.connective is Connective.AND and outcome == simple.negation(test.result):
        return simple.negation(test.operand)
    raise Unproved


def _keeps(
    body: ElementBody, condition: Value, test: Test, names: Iterable[str], not_minus_zero: Set[str]
) -> bool:
    """Whether an iteration changes nothing of an element of which ``condition`` doesn't hold."""
    for result in (True, False):
        simple = Simplifier(body.ops, {condition: False, test.result: result})
        for name in names:
            first, last = body.first[name], body.last[name]
            after = simple(last)
            if after == simple(first):
                continue
            is_sum = _is_sum(body.ops, first, last, name in not_minus_zero)
            if not (is_sum and _is_plus_zero(body.ops, first, after)):
                return False
    return True


def _is_sum(ops: BodyRecorder, first: Value, last: Value, may_be_kept: bool) -> bool:
    """Whether the state after an iteration is a sum with it, so that it isn't -0.0 from then on.

    The first iteration is made in any case.  State that is not -0.0 before it ``may_be_kept`` by some tests.
    """
    instruction = ops.at(last)
    if isinstance(instruction, Where) and may_be_kept:
        choices = (instruction.chosen, instruction.other)
        return all(_is_sum(ops, first, value, True) for value in choices)
    is_sum = instruction.operation is ADD and first in instruction.operands
    return is_sum or (may_be_kept and last == first)


def _is_plus_zero(ops: BodyRecorder, first: Value, value: Value) -> bool:
    """Whether ``value`` is ``first + 0.0``, which changes -0.0 only."""
    instruction = ops.at(value)
    if instruction.operation is not ADD or first not in instruction.operands:
        return False
    left, right = instruction.operands
    added = constant_of(ops, right if left == first else left)
    return added == 0 and math.copysign(1, added) > 0


def _before_iteration(body: ElementBody, value: Value) -> Value | None:
    """``value``, about the state after an iteration, as it is of the one before; None where there is none."""
    known = {body.last[name]: first for name, first in body.first.items()}
    moving = body.ops.body().bound_symbols | body.counter
    started = set(body.first.values())
    done: dict[Value, Value | None] = {}

    def moved(value: Value) -> Value | None:
        if value not in done:
            done[value] = known[value] if value in known else renewed(value)
        return done[value]

    def renewed(value: Value) -> Value | None:
        instruction = body.ops.at(value)
        if value in started or not instruction.operation.is_repeatable:
            return None
        if isinstance(instruction, Load | IndexValue):
            return value if moving.isdisjoint(instruction.free_symbols) else None
        operands = {v: moved(v) for v in instruction.operands}
        if None in operands.values():
            return None
        return body.ops.again(instruction, operands)

    return moved(value)
