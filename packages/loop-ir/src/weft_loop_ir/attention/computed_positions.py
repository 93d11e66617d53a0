"""Loads at computed places that are positions of loops, as ``table[arange(n)]`` has them.

Such a place has been wrapped (a negative one counts from the end) and is checked; where its range shows that
neither matters, the load has an index like any other, whose bounds and dependences are known.
"""

from __future__ import annotations

import sympy
import torch

from weft_loop_ir.bodies import (
    Conversion,
    IndexValue,
    Indirect,
    Instruction,
    LoopBody,
    Value,
    Where,
)
from weft_loop_ir.bodies.edit import without_unused
from weft_loop_ir.bodies.patterns import call, capture, match, number
from weft_loop_ir.bodies.replay import Replayer
from weft_loop_ir.recording import BodyRecorder

COMPARED = capture()
IS_NEGATIVE = call("lt", COMPARED, number(0))


def with_computed_positions(body: LoopBody, ops: BodyRecorder) -> LoopBody:
    """``body``, recorded anew by ``ops``, with indices for places that are proven to be in range."""
    result = _DirectPlaces(ops).replay(body)
    return without_unused(ops.body(result))


class _DirectPlaces(Replayer):
    def _one(
        self,
        instruction: Instruction,
        values: list[Value | None],
        ops: BodyRecorder,
        renamed: dict[sympy.Symbol, sympy.Symbol],
    ) -> Value | None:
        if isinstance(instruction, Indirect) and ops is self.ops:
            value = values[instruction.value.index]
            index = None if value is None else _position(value, ops)
            if index is not None and ops.ranges.in_range(index, instruction.size):
                renamed[instruction.symbol] = index
                return None
        return super()._one(instruction, values, ops, renamed)


def _position(value: Value, ops: BodyRecorder) -> sympy.Expr | None:
    """An integer as an expression over loops; None if it is something else."""
    instruction = ops.at(value)
    if instruction.dtype not in (torch.int64, torch.int32):
        return None
    if isinstance(instruction, IndexValue):
        return instruction.index
    if isinstance(instruction, Conversion):
        return _position(instruction.value, ops)
    if isinstance(instruction, Where) and _is_never_negative(instruction.condition, ops):
        return _position(instruction.other, ops)
    return None


def _is_never_negative(condition: Value, ops: BodyRecorder) -> bool:
    """Whether ``condition`` asks whether a position is negative that never is."""
    found = match(ops.at, condition, IS_NEGATIVE)
    position = None if found is None else _position(found[COMPARED], ops)
    return position is not None and ops.ranges.is_nonnegative(position)
