"""Loads at computed places that are positions of loops, as ``table[arange(n)]`` has them.

Such a place has been wrapped (a negative one counts from the end) and is checked; where its range shows that
neither matters, the load has an index like any other, whose bounds and dependences are known.
"""

from __future__ import annotations

import sympy
import torch

from weft_loop_ir.ir import Instruction, LoopBody, Value
from weft_loop_ir.recording import BodyRecorder
from weft_loop_ir.schedule.transform import Replayer, without_unused


def with_computed_positions(body: LoopBody, ops: BodyRecorder) -> LoopBody:
    """``body``, recorded anew by ``ops``, with indices for places that are proven to be in range."""
    result = _DirectPlaces(ops, lambda index: index).replay(body)
    return without_unused(ops.body(result))


class _DirectPlaces(Replayer):
    def _one(
        self,
        instruction: Instruction,
        values: list[Value | None],
        ops: BodyRecorder,
        renamed: dict[sympy.Symbol, sympy.Symbol],
    ) -> Value | None:
        if instruction.operation == "indirect" and ops is self.ops:
            place, symbol, size, _ = instruction.arguments
            value = values[place.index]
            index = None if value is None else _position(value, ops)
            if index is not None and ops.ranges.in_range(index, size):
                renamed[symbol] = index
                return None
        return super()._one(instruction, values, ops, renamed)


def _position(value: Value, ops: BodyRecorder) -> sympy.Expr | None:
    """An integer as an expression over loops; None if it is something else."""
    instruction = ops.instructions[value.index]
    operation, arguments = instruction.operation, instruction.arguments
    if instruction.dtype not in (torch.int64, torch.int32):
        return None
    if operation == "index_expr":
        expression: sympy.Expr = arguments[0]
        return expression
    if operation == "to_dtype":
        return _position(arguments[0], ops)
    if operation == "where" and _is_never_negative(arguments[0], ops):
        return _position(arguments[2], ops)
    return None


def _is_never_negative(condition: Value, ops: BodyRecorder) -> bool:
    """Whether ``condition`` asks whether a position is negative that never is."""
    instruction = ops.instructions[condition.index]
    if instruction.operation != "lt":
        return False
    left, right = instruction.arguments
    limit, position = ops.instructions[right.index], _position(left, ops)
    is_zero = limit.operation == "constant" and limit.arguments[0] == 0
    return is_zero and position is not None and ops.ranges.is_nonnegative(position)
