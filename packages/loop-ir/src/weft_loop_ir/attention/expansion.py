"""Kernels of attention as ordinary loop nests: what they compute, matmul by matmul.

``verify`` checks these, ``evaluate`` runs them and dumps show them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import sympy
import torch

from weft_loop_ir.attention.operands import MatrixOperand
from weft_loop_ir.attention.softmax_rows import RowStatistic
from weft_loop_ir.bodies import LoopBody, Value
from weft_loop_ir.bodies.replay import Replayer
from weft_loop_ir.expressions import loop_symbol
from weft_loop_ir.ir import Buffer, Expansion, LocalBuffer, LoopVariable
from weft_loop_ir.loop_nests import LoopNests, dense
from weft_loop_ir.recording import BodyRecorder

if TYPE_CHECKING:
    from weft_loop_ir.attention.find_attention import AttentionKernel
    from weft_loop_ir.attention.find_gradients import AttentionGradientKernel

ROW, COLUMN, INNER = (loop_symbol(name, 0) for name in ("row", "column", "inner"))
ZERO, ONE = sympy.S.Zero, sympy.S.One


def element(operand: MatrixOperand, row: sympy.Expr, column: sympy.Expr) -> tuple[str, sympy.Expr]:
    """Where an element of a matrix lies; the matrix is counted by :attr:`MatrixOperand.batch`."""
    steps = operand.steps
    return operand.buffer, sympy.expand(operand.base + row * steps[0] + column * steps[1])


def _add_matmul(
    nests: LoopNests, left: MatrixOperand, right: MatrixOperand, result: str | MatrixOperand
) -> None:
    """``result = left @ right``, matrix by matrix; a buffer that is named alone is dense."""
    batches, rows, inner = left.size
    outer = (
        LoopVariable(MatrixOperand.batch, batches),
        LoopVariable(ROW, rows),
        LoopVariable(COLUMN, right.size[2]),
    )
    summed = (LoopVariable(INNER, inner),)
    product = _product(element(left, ROW, INNER), element(right, INNER, COLUMN))
    place = (result, dense(outer)) if isinstance(result, str) else element(result, ROW, COLUMN)
    nests.contract(outer, summed, product, place)


def _product(*elements: tuple[str, sympy.Expr]) -> Callable[[BodyRecorder], Value]:
    """Records the product of one or two elements of buffers in float32."""

    def record(ops: BodyRecorder) -> Value:
        factors = [ops.to_dtype(ops.load(*one), torch.float32) for one in elements]
        return ops.mul(*factors) if len(factors) > 1 else factors[0]

    return record


def _recorded(ops: BodyRecorder, body: LoopBody) -> Value:
    value = Replayer(ops).replay(body)
    assert value is not None
    return value


def expanded_attention(kernel: AttentionKernel, buffers: Mapping[str, Buffer]) -> Expansion:
    """What comes before, the scores, their softmax row by row, and the matmul of that with the values."""
    nests, score_rows, key = LoopNests(kernel.name, buffers), kernel.score_rows, kernel.key_loop
    for part in (*kernel.producers, *kernel.stored):
        nests.include(part, temporary=() if part in kernel.stored else part.writes)
    nests.temporary(kernel.scores, (score_rows.batches, score_rows.queries, key.size))
    _add_matmul(nests, kernel.query, kernel.key, kernel.scores)
    weights = nests.temporary(
        f"{kernel.name}_weights", (score_rows.batches, score_rows.queries, key.size)
    )
    row, largest, total = (f"{kernel.name}_{name}" for name in ("row", "largest", "total"))
    local = [LocalBuffer(row, torch.float32, key.size)]
    local += [LocalBuffer(name, torch.float32, ONE) for name in (largest, total)]

    def find_largest(ops: BodyRecorder) -> None:
        value = _recorded(ops, kernel.score)
        ops.store(row, key.symbol, value)
        ops.store(largest, ZERO, ops.reduction("max", torch.float32, value))

    def exponential(ops: BodyRecorder) -> Value:
        return ops.exp(ops.sub(ops.load(row, key.symbol), ops.load(largest, ZERO)))

    def add_up(ops: BodyRecorder) -> None:
        ops.store(total, ZERO, ops.reduction("sum", torch.float32, exponential(ops)))

    def divide(ops: BodyRecorder) -> None:
        value = ops.truediv(exponential(ops), ops.load(total, ZERO))
        if kernel.hidden_are_zero:
            lowest = ops.constant(float("-inf"), torch.float32)
            is_hidden = ops.eq(ops.load(largest, ZERO), lowest)
            value = ops.where(is_hidden, 0.0, value)
        ops.store(weights, score_rows.first_key + key.symbol, value)

    def keep(ops: BodyRecorder) -> None:
        for statistic, name in kernel.kept:
            value = ops.load(largest if statistic is RowStatistic.LARGEST else total, ZERO)
            value = ops.log(value) if statistic is RowStatistic.LOGARITHM else value
            ops.store(name, score_rows.number, value)

    stages = [((key,), find_largest), ((key,), add_up), ((key,), divide)]
    nests.add(kernel.outer, *stages, *([((), keep)] if kernel.kept else []), local=local)
    steps = (score_rows.queries * key.size, key.size, ONE)
    size = (score_rows.batches, score_rows.queries, key.size)
    of_weights = MatrixOperand(weights, size, MatrixOperand.batch * steps[0], steps[1:])
    _add_matmul(nests, of_weights, kernel.value, kernel.out)
    if kernel.counters is not None:
        add_zeros(nests, kernel.counters, score_rows.batches)
    return nests.expansion()


def add_zeros(nests: LoopNests, name: str, count: sympy.Expr) -> None:
    """Append what stores zeros in the first ``count`` elements of ``name``."""

    def store(ops: BodyRecorder) -> None:
        ops.store(name, ROW, ops.constant(0, nests.buffers[name].layout.dtype))

    nests.add((LoopVariable(ROW, count),), ((), store))


def expanded_gradients(kernel: AttentionGradientKernel, buffers: Mapping[str, Buffer]) -> Expansion:
    """The scores, the matrices made of them, and their matmuls or sum."""
    nests, score_rows, key = LoopNests(kernel.name, buffers), kernel.score_rows, kernel.key_loop
    size = (score_rows.batches, score_rows.queries, kernel.keys)
    for score in kernel.scores:
        nests.temporary(score.name, size)
        _add_matmul(nests, score.left, score.right, score.name)
    steps = (score_rows.queries * kernel.keys, kernel.keys, ONE)
    made = []
    for number, body in enumerate(kernel.matrices):
        name = nests.temporary(f"{kernel.name}_matrix{number}", size)
        made.append(MatrixOperand(name, size, MatrixOperand.batch * steps[0], steps[1:]))

        def store(ops: BodyRecorder, name: str = name, body: LoopBody = body) -> None:
            ops.store(name, score_rows.first_key + key.symbol, _recorded(ops, body))

        nests.add((*kernel.outer, key), ((), store))
    # Matrices that are added up: ``member`` of the group that ``major`` and ``minor`` tell.
    count, step = kernel.group.count, kernel.group.step
    major, minor, member = (loop_symbol(name, 0) for name in ("major", "minor", "member"))
    first = {MatrixOperand.batch: major * count * step + minor}
    batch = {MatrixOperand.batch: (major * count + member) * step + minor}
    groups = (
        LoopVariable(major, sympy.cancel(score_rows.batches / (count * step))),
        LoopVariable(minor, step),
    )

    def at(
        operand: MatrixOperand, row: sympy.Symbol, column: sympy.Symbol
    ) -> tuple[str, sympy.Expr]:
        name, index = element(operand, row, column)
        return name, sympy.expand(index.xreplace(batch))

    members = LoopVariable(member, count)
    for matmul, matrix in zip(kernel.matmuls, made, strict=False):
        matrix = matrix.turned() if kernel.by_columns else matrix
        _, rows, inner = matrix.size
        outer = (*groups, LoopVariable(ROW, rows), LoopVariable(COLUMN, matmul.other.size[2]))
        name, index = element(matmul.result, ROW, COLUMN)
        nests.contract(
            outer,
            (members, LoopVariable(INNER, inner)),
            _product(at(matrix, ROW, INNER), at(matmul.other, INNER, COLUMN)),
            (name, sympy.expand(index.xreplace(first))),
        )
    if kernel.total is not None:
        outer = (*groups, LoopVariable(ROW, size[1]), LoopVariable(COLUMN, size[2]))
        summand = _product(at(made[-1], ROW, COLUMN))
        nests.contract(outer, (members,), summand, (kernel.total.result, dense(outer)))
    return nests.expansion()
