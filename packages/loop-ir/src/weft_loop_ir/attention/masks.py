"""Masks and biases that are computed where a score is, instead of being kept in memory.

What they load at computed places that are positions of loops, as ``table[arange(n)]`` has them, becomes a
load like any other: such a place has been wrapped (a negative one counts from the end) and is checked; where
its range shows that neither matters, bounds and dependences of the index are known.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

import sympy
import torch

from weft_loop_ir.attention.operands import FindWriter
from weft_loop_ir.bodies import (
    Conversion,
    Cost,
    IndexValue,
    Indirect,
    Instruction,
    LoopBody,
    Scalar,
    Value,
    Where,
)
from weft_loop_ir.bodies.edit import part_of, without_unused
from weft_loop_ir.bodies.patterns import call, capture, match, number
from weft_loop_ir.bodies.replay import Replayer
from weft_loop_ir.ir import Buffer, Kernel, LoopVariable, Schedule
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


MAX_INSTRUCTIONS = 24
"""Of what is computed again for each row and batch; beyond that, memory is cheaper."""
MIN_SHRINKING = 8
"""How many times smaller what a mask is made of has to be than the mask."""


def with_masks_computed(
    body: LoopBody,
    scores: Collection[str],
    outer: tuple[LoopVariable, ...],
    key: LoopVariable,
    schedule: Schedule,
    writer: FindWriter,
) -> LoopBody:
    """``body``, over ``outer`` and ``key``, with what cheap kernels write computed instead of loaded.

    ``scores``, the names of matmuls, are loaded as they were, in float32.
    """
    loops = (*outer, key)
    dtypes = {load.buffer: load.dtype for load in body.loads()}

    def dtype_of(name: str) -> torch.dtype:
        return dtypes.get(name) or schedule.buffers[name].layout.dtype

    ops = BodyRecorder.over(loops, dtype_of)

    def load(target: BodyRecorder, name: str, index: sympy.Expr) -> Value:
        kernel = None if name in scores or target is not ops else writer(name)
        made = None if kernel is None else _producer(kernel, name, schedule.buffers)
        places = None if made is None else _places(made[1], index, made[2], loops)
        if made is None or places is None:
            return target.load(name, index)
        part, _, _ = made
        value = Replayer(target, lambda e: e.xreplace(places), load).replay(part)
        assert value is not None
        return value

    result = Replayer(ops, load=load).replay(body)
    made = without_unused(ops.body(result))
    return with_computed_positions(made, BodyRecorder.over(loops, dtype_of))


def _producer(
    kernel: Kernel, name: str, buffers: Mapping[str, Buffer]
) -> tuple[LoopBody, sympy.Expr, tuple[LoopVariable, ...]] | None:
    """What computes an element of ``name``, where it is stored, and the loops; None if that is costly."""
    body = kernel.pointwise_body
    store = None if body is None else body.only_store(name)
    if body is None or store is None:
        return None
    part = part_of(body, store.value)
    ops = BodyRecorder.over(kernel.outer, lambda n: buffers[n].layout.dtype)
    part = with_computed_positions(part, ops)
    if len(part.instructions) > MAX_INSTRUCTIONS:
        return None
    if not all(map(_is_cheap, part.instructions)):
        return None
    read = part.reads
    if read and not MIN_SHRINKING * sum(_elements(buffers[n]) for n in read) <= _elements(
        buffers[name]
    ):
        return None
    return part, store.index, kernel.outer


def _is_cheap(instruction: Instruction) -> bool:
    """Whether it may be computed for each score: simple, and no number that the host computes."""
    operation = instruction.operation
    is_simple = operation.is_repeatable and operation.cost <= Cost.SIMPLE
    return is_simple and not isinstance(instruction, Scalar)


def _elements(buffer: Buffer) -> float:
    size = buffer.layout.size
    return math.prod(int(n) for n in size) if all(n.is_Integer for n in size) else math.inf


def _places(
    store: sympy.Expr,
    load: sympy.Expr,
    stored: tuple[LoopVariable, ...],
    loops: tuple[LoopVariable, ...],
) -> dict[sympy.Symbol, sympy.Expr] | None:
    """The loops of what stores at ``store`` as those of what loads at ``load``; None where they don't fit."""
    places: dict[sympy.Symbol, sympy.Expr] = {}
    rest = sympy.expand(load)
    for loop in stored:
        places[loop.symbol] = sympy.S.Zero
        step = store.coeff(loop.symbol)
        if loop.size == 1:
            continue
        for other in loops:
            if sympy.expand(other.size - loop.size) == 0 and rest.coeff(other.symbol) == step != 0:
                places[loop.symbol] = other.symbol
                rest = sympy.expand(rest - other.symbol * step)
                break
    offset = store.xreplace({loop.symbol: sympy.S.Zero for loop in stored})
    return places if sympy.expand(rest - offset) == 0 else None
