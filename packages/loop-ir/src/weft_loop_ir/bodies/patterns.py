"""Patterns of values: what a value is computed by, as a tree with captures.

``call("truediv", call("exp", X), reduced("sum", call("exp", X)))`` matches what divides exponentials by
their sum.  A capture that stands in several places, or a pattern that does, has to be the same value in all
of them; recorders give equal computations one value.

A rewrite says what computes the same in the place of what a pattern matches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from weft_loop_ir.bodies.edit import without_unused
from weft_loop_ir.bodies.instructions import (
    Constant,
    Conversion,
    Elementwise,
    Instruction,
    LoopBody,
    Number,
    Reduction,
    Value,
    Where,
)
from weft_loop_ir.bodies.operations import OPERATIONS, Operation

At = Callable[[Value], Instruction]
Found = dict["Pattern", Value]


@dataclass(frozen=True, eq=False)
class Pattern:
    """A value of any kind: a capture."""

    dtype: torch.dtype | None = field(default=None, kw_only=True)

    def matches(self, at: At, value: Value, found: Found) -> Found | None:
        """``found`` and what this captures of ``value``; None where it does not match."""
        known = found.get(self)
        if known is not None:
            return found if known == value else None
        instruction = at(value)
        if self.dtype is not None and instruction.dtype != self.dtype:
            return None
        within = self._within(at, instruction, found)
        return None if within is None else {**within, self: value}

    def _within(self, at: At, instruction: Instruction, found: Found) -> Found | None:
        return found


@dataclass(frozen=True, eq=False)
class _Call(Pattern):
    operation: Operation
    operands: tuple[Pattern, ...]

    def _within(self, at: At, instruction: Instruction, found: Found) -> Found | None:
        if instruction.operation is not self.operation:
            return None
        orders = [instruction.operands]
        if self.operation.commutes:
            orders.append(instruction.operands[::-1])
        for order in orders:
            matched = _all(self.operands, at, order, found)
            if matched is not None:
                return matched
        return None


def _all(
    patterns: tuple[Pattern, ...], at: At, values: tuple[Value, ...], found: Found
) -> Found | None:
    matched: Found | None = found
    for pattern, value in zip(patterns, values, strict=True):
        if matched is None:
            return None
        matched = pattern.matches(at, value, matched)
    return matched


@dataclass(frozen=True, eq=False)
class _Reduced(Pattern):
    kind: str
    value: Pattern

    def _within(self, at: At, instruction: Instruction, found: Found) -> Found | None:
        if not isinstance(instruction, Reduction) or instruction.kind != self.kind:
            return None
        return self.value.matches(at, instruction.value, found)


@dataclass(frozen=True, eq=False)
class _Number(Pattern):
    is_one: Callable[[Number], bool]

    def _within(self, at: At, instruction: Instruction, found: Found) -> Found | None:
        return (
            found if isinstance(instruction, Constant) and self.is_one(instruction.number) else None
        )


@dataclass(frozen=True, eq=False)
class _Converted(Pattern):
    """A value, or a conversion of it, of that, ..."""

    value: Pattern

    def _within(self, at: At, instruction: Instruction, found: Found) -> Found | None:
        while isinstance(instruction, Conversion):
            source = instruction.value
            matched = self.value.matches(at, source, found)
            if matched is not None:
                return matched
            instruction = at(source)
        return None

    def matches(self, at: At, value: Value, found: Found) -> Found | None:
        return self.value.matches(at, value, found) or super().matches(at, value, found)


def capture(dtype: torch.dtype | None = None) -> Pattern:
    """A value of any kind, of ``dtype`` if one is given."""
    return Pattern(dtype=dtype)


def call(name: str, *operands: Pattern, dtype: torch.dtype | None = None) -> Pattern:
    """An operation of ``operands``, in either order where it commutes."""
    operation = OPERATIONS[name]
    assert operation.form in (Elementwise, Where)
    return _Call(operation, operands, dtype=dtype)


def reduced(kind: str, value: Pattern) -> Pattern:
    """A reduction over the inner loops."""
    return _Reduced(kind, value)


def number(value: Number) -> Pattern:
    """A constant."""
    return _Number(lambda constant: constant == value)


def at_least(value: Number) -> Pattern:
    """A constant that is no less."""
    return _Number(lambda constant: constant >= value)


def converted(value: Pattern) -> Pattern:
    """``value`` through any number of conversions."""
    return _Converted(value)


def match(at: At, value: Value, pattern: Pattern) -> Found | None:
    """What the parts of ``pattern`` are where ``value`` matches it, None where it does not.

    ``at`` gives the instruction of a value: ``body.at``, or a recorder's.
    """
    return pattern.matches(at, value, {})


# -- rewriting -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rewrite:
    """A value that ``pattern`` matches is ``operation`` of what ``operands``, parts of it, captured."""

    pattern: Pattern
    operation: Operation
    operands: tuple[Pattern, ...]


def rewritten(body: LoopBody, rules: Sequence[Rewrite]) -> LoopBody:
    """``body``, nested ones included, with the first of ``rules`` that matches in the place of each value.

    Patterns are of the body as it was.  What nothing uses any more is dropped.
    """
    made = tuple(_rewritten(body, k, rules) for k in range(len(body.instructions)))
    if made == body.instructions:
        return body
    return without_unused(LoopBody(made, body.result))


def _rewritten(body: LoopBody, position: int, rules: Sequence[Rewrite]) -> Instruction:
    instruction = body.instructions[position]
    for rule in rules:
        found = match(body.at, Value(position), rule.pattern)
        if found is not None:
            operands = tuple(found[operand] for operand in rule.operands)
            return rule.operation.instruction(operands, instruction.dtype)
    if not instruction.bodies:
        return instruction
    return instruction.mapped(lambda a: rewritten(a, rules) if isinstance(a, LoopBody) else a)
