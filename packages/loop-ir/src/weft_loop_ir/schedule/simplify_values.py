"""Simplification of recorded values where some are known: what a body computes once a test has failed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from weft_loop_ir.ir import Instruction, Value
from weft_loop_ir.ops import STORAGE_ONLY
from weft_loop_ir.recording import BodyRecorder

Constant = bool | int | float

_COMPLEMENTS = {"eq": "ne", "ne": "eq"}
_COMPLEMENTS_OF_INTEGERS = {"lt": "ge", "ge": "lt", "gt": "le", "le": "gt"}  # floats may be NaN
_ALL_HOLD = ("logical_and", "bitwise_and")
_NONE_HOLDS = ("logical_or", "bitwise_or")


class Simplifier:
    """Simplifies values of ``ops`` exactly, with the constants that some of them are ``known`` to be.

    Results are values of the same recorder, so that equal ones are the same.
    """

    def __init__(self, ops: BodyRecorder, known: Mapping[Value, bool]) -> None:
        self.ops = ops
        self._done: dict[Value, Value] = {}
        for value, constant in known.items():
            self._assume(value, constant)

    def _assume(self, value: Value, holds: bool) -> None:
        """Note that a bool is ``holds``, and what follows for those that it is made of."""
        self._done[value] = self.ops.constant(holds, torch.bool)
        operation, operands = _called(self.ops, value)
        if operation == "logical_not":
            self._assume(operands[0], not holds)
        if operation in (_ALL_HOLD if holds else _NONE_HOLDS):
            for operand in operands:
                self._assume(operand, holds)
        complement = _COMPLEMENTS.get(operation)
        if operation in _COMPLEMENTS_OF_INTEGERS:
            is_float = self.ops.dtype_of(operands[0]).is_floating_point
            complement = None if is_float else _COMPLEMENTS_OF_INTEGERS[operation]
        if complement is not None:
            other = self.ops.record(complement, operands, torch.bool)
            self._done[other] = self.ops.constant(not holds, torch.bool)

    def __call__(self, value: Value) -> Value:
        found = self._done.get(value)
        if found is None:
            found = self._done[value] = self._simplified(value)
        return found

    def _simplified(self, value: Value) -> Value:
        instruction = self.ops.instructions[value.index]
        operation, arguments = instruction.operation, instruction.arguments
        if operation in ("load", "masked", "constant", "index_expr", "scalar"):
            return value
        arguments = tuple(self(a) if isinstance(a, Value) else a for a in arguments)
        if operation == "to_dtype":
            return self._converted(*arguments)
        rule = _RULES.get(operation)
        constants = [constant_of(self.ops, a) for a in arguments if isinstance(a, Value)]
        simpler = None if rule is None else rule(self.ops, arguments, constants)
        if simpler is not None:
            return simpler
        assert instruction.dtype is not None
        return self.ops.record(operation, arguments, instruction.dtype)

    def _converted(self, value: Value, dtype: torch.dtype) -> Value:
        """A conversion: none of what was widened from the same half precision."""
        operation, operands = _called(self.ops, value)
        if operation == "to_dtype" and dtype in STORAGE_ONLY:
            original: Value = operands[0]
            if self.ops.dtype_of(original) == dtype and self.ops.dtype_of(value) == torch.float32:
                return original
        return self.ops.to_dtype(value, dtype)

    def negation(self, value: Value) -> Value:
        """The simplified opposite of a bool."""
        return _logical_not(self.ops, (self(value),), [constant_of(self.ops, self(value))])


def constant_of(ops: BodyRecorder, value: Value) -> Constant | None:
    """The number that ``value`` is, None where it isn't a constant."""
    instruction = ops.instructions[value.index]
    return instruction.arguments[0] if instruction.operation == "constant" else None


def _called(ops: BodyRecorder, value: Value) -> tuple[str, tuple[Any, ...]]:
    instruction: Instruction = ops.instructions[value.index]
    return instruction.operation, instruction.arguments


Rule = Callable[[BodyRecorder, tuple[Any, ...], list[Constant | None]], Value | None]


def _where(
    ops: BodyRecorder, arguments: tuple[Any, ...], constants: list[Constant | None]
) -> Value | None:
    condition, first, second = arguments
    if constants[0] is not None:
        chosen: Value = first if constants[0] else second
        return chosen
    if first == second:
        return first  # type: ignore[no-any-return]
    if ops.dtype_of(first) is torch.bool and None not in constants[1:]:
        holds: Value = condition
        return holds if constants[1] else _logical_not(ops, (holds,), [None])
    return None


def _logical_not(
    ops: BodyRecorder, arguments: tuple[Any, ...], constants: list[Constant | None]
) -> Value:
    (value,) = arguments
    if constants[0] is not None:
        return ops.constant(not constants[0], torch.bool)
    operation, operands = _called(ops, value)
    if operation == "logical_not" and ops.dtype_of(operands[0]) is torch.bool:
        inner: Value = operands[0]
        return inner
    return ops.record("logical_not", (value,), torch.bool)


def _absorbing(zero: bool) -> Rule:
    """``and`` (``zero`` is false) and ``or`` of bools."""

    def rule(
        ops: BodyRecorder, arguments: tuple[Any, ...], constants: list[Constant | None]
    ) -> Value | None:
        if any(ops.dtype_of(a) is not torch.bool for a in arguments):
            return None
        if zero in constants:
            return ops.constant(zero, torch.bool)
        return _other_than(not zero, arguments, constants)

    return rule


def _add(
    ops: BodyRecorder, arguments: tuple[Any, ...], constants: list[Constant | None]
) -> Value | None:
    """``x + 0`` of integers: of floats it is another zero where ``x`` is -0.0."""
    if ops.dtype_of(arguments[0]).is_floating_point:
        return None
    return _other_than(0, arguments, constants)


def _sub(
    ops: BodyRecorder, arguments: tuple[Any, ...], constants: list[Constant | None]
) -> Value | None:
    is_zero = constants[1] is not None and str(constants[1]) in ("0", "0.0", "False")
    value: Value = arguments[0]
    return value if is_zero else None


def _mul(
    ops: BodyRecorder, arguments: tuple[Any, ...], constants: list[Constant | None]
) -> Value | None:
    dtype = ops.dtype_of(arguments[0])
    if 0 in constants and not dtype.is_floating_point:
        return ops.constant(0, dtype)
    return _other_than(1, arguments, constants)


def _other_than(
    number: Constant, arguments: tuple[Any, ...], constants: list[Constant | None]
) -> Value | None:
    """The operand beside one that is ``number``."""
    first, second = arguments
    found: Value | None = None
    if constants[0] is not None and constants[0] == number:
        found = second
    elif constants[1] is not None and constants[1] == number:
        found = first
    return found


_RULES: dict[str, Rule] = {
    "where": _where,
    "logical_not": _logical_not,
    "logical_and": _absorbing(False),
    "bitwise_and": _absorbing(False),
    "logical_or": _absorbing(True),
    "bitwise_or": _absorbing(True),
    "add": _add,
    "sub": _sub,
    "mul": _mul,
}
