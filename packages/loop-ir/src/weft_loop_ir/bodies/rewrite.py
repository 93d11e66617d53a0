"""Algebra on bodies: a table of patterns, and what computes the same in their place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from weft_loop_ir.bodies.edit import without_unused
from weft_loop_ir.bodies.instructions import Instruction, LoopBody, Value
from weft_loop_ir.bodies.operations import Operation
from weft_loop_ir.bodies.patterns import Pattern, match


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
