"""Which calls of operators are contractions: a table of rules, one for each operator.

A rule takes the call and the schedule's buffers and gives a :class:`Contraction`, or None for arguments that
it does not handle; the library runs those.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import sympy
import torch

from weft_loop_ir.contractions.contraction import (
    BATCH,
    COLUMN,
    INNER,
    ROW,
    TAP,
    Bias,
    Contraction,
    Groups,
    Operand,
)
from weft_loop_ir.ir import Buffer, BufferView, ExternCall, is_dense

aten = torch.ops.aten

Rule = Callable[[ExternCall, Mapping[str, Buffer]], Contraction | None]
RULES: dict[Any, Rule] = {}
"""Operators to their rules."""

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
"""Of operands and results; sums are float32."""


def rule(*operators: Any) -> Callable[[Rule], Rule]:
    """Enter a function into the table."""

    def enter(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(operators, function))
        return function

    return enter


def contraction_of(call: ExternCall, buffers: Mapping[str, Buffer]) -> Contraction | None:
    """What ``call`` computes, if it is a contraction of one dtype and has one result, dense by rows."""
    function = RULES.get(call.operator)
    if function is None or call.holds or call.defines or len(call.outputs) != 1:
        return None
    (name,) = call.outputs
    if name is None:
        return None
    found = function(call, buffers)
    if found is None:
        return None
    operands = {found.left.buffer, found.right.buffer, *(a.buffer for a in found.biases)}
    layout = buffers[name].layout
    dtypes = {buffers[n].layout.dtype for n in operands} | {layout.dtype}
    if dtypes != {found.dtype} or found.dtype not in DTYPES:
        return None
    return found


def matmul_operands(call: ExternCall) -> tuple[BufferView, BufferView, BufferView | None]:
    """The left operand, the right one and what is added by ``mm``, ``bmm``, ``addmm`` or ``baddbmm``."""
    *added, left, right = call.arguments
    return left, right, added[0] if added else None


def element(view: BufferView, *places: sympy.Expr) -> sympy.Expr:
    """The position of an element of ``view``; of a dimension of one element the first."""
    pairs = zip(view.size, view.stride, places, strict=True)
    terms = [place * stride for size, stride, place in pairs if size != 1]
    return sympy.expand(sympy.Add(view.offset, *terms))


def operand(view: BufferView, *places: sympy.Expr) -> Operand:
    """``view`` as an operand of a matmul."""
    return Operand(view.buffer, element(view, *places))


def _scaled(call: ExternCall, contraction: Contraction, bias: BufferView) -> Contraction | None:
    """``contraction`` by ``alpha`` and ``bias`` by ``beta``, the keywords."""
    factors = {"beta": 1, "alpha": 1, **call.keywords}
    if set(factors) != {"beta", "alpha"}:
        return None
    beta, alpha = (_number(factors[k]) for k in ("beta", "alpha"))
    if beta is None or alpha is None:
        return None
    places = (BATCH, ROW, COLUMN)[3 - len(bias.size) :]
    index = element(bias, *places)
    # with a scale of 0 the bias does not count, NaN or not
    biases = () if beta == 0 else (Bias(bias.buffer, index, beta),)
    return replace(contraction, biases=biases, scale=alpha)


def _number(value: Any) -> float | None:
    if isinstance(value, sympy.Integer):
        return float(value)
    return float(value) if isinstance(value, int | float) else None


def _matmul(left: BufferView, right: BufferView) -> Contraction:
    batches = len(left.size) - 2
    places = (BATCH,) * batches
    return Contraction(
        left.size[0] if batches else sympy.S.One,
        left.size[-2],
        right.size[-1],
        left.size[-1],
        operand(left, *places, ROW, INNER),
        operand(right, *places, INNER, COLUMN),
        left.dtype,
    )


def _matrix_and_vector(matrix: BufferView, vector: BufferView) -> Contraction:
    """A row of results: the vector is the left operand, the matrix the right one, turned."""
    return Contraction(
        sympy.S.One,
        sympy.S.One,
        matrix.size[0],
        matrix.size[1],
        operand(vector, INNER),
        operand(matrix, COLUMN, INNER),
        matrix.dtype,
    )


def _sum_of_batch(left: BufferView, right: BufferView) -> Contraction:
    """The batch is one more place that is added up over."""
    return Contraction(
        sympy.S.One,
        left.size[1],
        right.size[2],
        left.size[2],
        operand(left, TAP, ROW, INNER),
        operand(right, TAP, INNER, COLUMN),
        left.dtype,
        taps=left.size[0],
    )


def _multiplied(
    contract: Callable[[BufferView, BufferView], Contraction],
    call: ExternCall,
    buffers: Mapping[str, Buffer],
) -> Contraction | None:
    """What ``contract`` says of the two last arguments, added to the first where there are three."""
    views = call.arguments
    if len(views) not in (2, 3) or not all(isinstance(a, BufferView) for a in views):
        return None
    if not is_dense(buffers[str(call.outputs[0])].layout):
        return None
    left, right, added = matmul_operands(call)
    contraction = contract(left, right)
    if added is not None:
        return _scaled(call, contraction, added)
    return None if call.keywords else contraction


for _contract, _operators in (
    (_matmul, (aten.mm, aten.bmm, aten.addmm, aten.baddbmm)),
    (_matrix_and_vector, (aten.mv, aten.addmv)),
    (_sum_of_batch, (aten.addbmm,)),
):
    rule(*(operator.default for operator in _operators))(partial(_multiplied, _contract))


def _grouped(call: ExternCall, buffers: Mapping[str, Buffer]) -> Contraction | None:
    """Rows in groups, each times its own matrix; the ends of the groups are in memory."""
    left, right, *others = [*call.arguments, *call.keywords.values()]
    views = [a for a in others if isinstance(a, BufferView)]
    if any(a is not None and not isinstance(a, BufferView) for a in others) or len(views) != 1:
        return None
    (ends,) = views
    if (
        len(left.size) != 2
        or len(right.size) != 3
        or not is_dense(buffers[str(call.outputs[0])].layout)
    ):
        return None
    numbers = (ends.size[0], ends.stride[0], ends.offset)
    if ends.dtype is not torch.int32 or not all(n.is_Integer for n in numbers):
        return None
    return Contraction(
        sympy.S.One,
        left.size[0],
        right.size[2],
        left.size[1],
        operand(left, ROW, INNER),
        operand(right, BATCH, INNER, COLUMN),
        left.dtype,
        groups=Groups(ends.buffer, int(ends.offset), int(ends.stride[0]), int(ends.size[0])),
    )


if hasattr(aten, "_grouped_mm"):  # since torch 2.8
    rule(aten._grouped_mm.default)(_grouped)
