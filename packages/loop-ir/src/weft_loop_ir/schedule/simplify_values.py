"""Simplification of recorded values where some are known: what a body computes once a test has failed."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from weft_loop_ir.bodies import EQ, NE, Connective, Constant, Conversion, Masked, Number, Value
from weft_loop_ir.ops import STORAGE_ONLY
from weft_loop_ir.recording import BodyRecorder


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
        instruction = self.ops.at(value)
        operation, operands = instruction.operation, instruction.operands
        parts = {Connective.NOT: not holds, Connective.AND if holds else Connective.OR: holds}
        if operation.connective in parts:
            for operand in operands:
                if self.ops.dtype_of(operand) is torch.bool:
                    self._assume(operand, parts[operation.connective])
        negation = operation.negation
        is_float = negation is not None and self.ops.dtype_of(operands[0]).is_floating_point
        if negation is not None and (operation in (EQ, NE) or not is_float):  # floats may be NaN
            other = self.ops.record(negation.name, *operands)
            self._done[other] = self.ops.constant(not holds, torch.bool)

    def __call__(self, value: Value) -> Value:
        found = self._done.get(value)
        if found is None:
            found = self._done[value] = self._simplified(value)
        return found

    def _simplified(self, value: Value) -> Value:
        instruction = self.ops.at(value)
        if not instruction.operands or isinstance(instruction, Masked):
            return value
        operands = {operand: self(operand) for operand in instruction.operands}
        if isinstance(instruction, Conversion):
            return self._converted(operands[instruction.value], instruction.dtype)
        rule = _RULES.get(instruction.operation.name)
        if rule is not None:
            simpler = rule(self.ops, tuple(operands[o] for o in instruction.operands))
            if simpler is not None:
                return simpler
        return self.ops.again(instruction, operands)

    def _converted(self, value: Value, dtype: torch.dtype | None) -> Value:
        """A conversion: none of what was widened from the same half precision."""
        assert dtype is not None
        source = self.ops.at(value)
        if isinstance(source, Conversion) and dtype in STORAGE_ONLY:
            original = source.value
            if self.ops.dtype_of(original) == dtype and source.dtype == torch.float32:
                return original
        return self.ops.to_dtype(value, dtype)

    def negation(self, value: Value) -> Value:
        """The simplified opposite of a bool."""
        return _logical_not(self.ops, (self(value),))


def constant_of(ops: BodyRecorder, value: Value) -> Number | None:
    """The number that ``value`` is, None where it isn't a constant."""
    instruction = ops.at(value)
    return instruction.number if isinstance(instruction, Constant) else None


Rule = Callable[[BodyRecorder, tuple[Value, ...]], Value | None]


def _where(ops: BodyRecorder, operands: tuple[Value, ...]) -> Value | None:
    condition, first, second = operands
    holds = constant_of(ops, condition)
    if holds is not None:
        return first if holds else second
    if first == second:
        return first
    constants = [constant_of(ops, value) for value in (first, second)]
    if ops.dtype_of(first) is torch.bool and None not in constants:
        return condition if constants[0] else _logical_not(ops, (condition,))
    return None


def _logical_not(ops: BodyRecorder, operands: tuple[Value, ...]) -> Value:
    (value,) = operands
    constant = constant_of(ops, value)
    if constant is not None:
        return ops.constant(not constant, torch.bool)
    instruction = ops.at(value)
    if instruction.operation.connective is Connective.NOT:
        (inner,) = instruction.operands
        if ops.dtype_of(inner) is torch.bool:
            return inner
    return ops.record("logical_not", value)


def _absorbing(zero: bool) -> Rule:
    """``and`` (``zero`` is false) and ``or`` of bools."""

    def rule(ops: BodyRecorder, operands: tuple[Value, ...]) -> Value | None:
        if any(ops.dtype_of(o) is not torch.bool for o in operands):
            return None
        if any(constant_of(ops, o) is not None and constant_of(ops, o) == zero for o in operands):
            return ops.constant(zero, torch.bool)
        return _other_than(not zero, ops, operands)

    return rule


def _add(ops: BodyRecorder, operands: tuple[Value, ...]) -> Value | None:
    """``x + 0`` of integers: of floats it is another zero where ``x`` is -0.0."""
    if ops.dtype_of(operands[0]).is_floating_point:
        return None
    return _other_than(0, ops, operands)


def _sub(ops: BodyRecorder, operands: tuple[Value, ...]) -> Value | None:
    """``x - 0``, but for ``x - -0.0``, which is another zero where ``x`` is -0.0."""
    is_zero = str(constant_of(ops, operands[1])) in ("0", "0.0", "False")
    return operands[0] if is_zero else None


def _mul(ops: BodyRecorder, operands: tuple[Value, ...]) -> Value | None:
    dtype = ops.dtype_of(operands[0])
    if not dtype.is_floating_point and 0 in [constant_of(ops, o) for o in operands]:
        return ops.constant(0, dtype)
    return _other_than(1, ops, operands)


def _other_than(number: Number, ops: BodyRecorder, operands: tuple[Value, ...]) -> Value | None:
    """The operand beside one that is ``number``."""
    for operand, other in (operands, operands[::-1]):
        if constant_of(ops, operand) == number:
            return other
    return None


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
