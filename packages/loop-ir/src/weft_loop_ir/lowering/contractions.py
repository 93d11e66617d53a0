"""Contractions: library calls, into memory that is given where that can be; small ones are loops.

So are those that read each element of a matrix once, where a library gains nothing: products of columns and
rows, of small matrices and vectors in a batch, and of rows of few elements with small matrices.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from weft_loop_ir._torch import OpOverload
from weft_loop_ir.bodies import Value
from weft_loop_ir.lowering.context import LoweringContext, compute_dtype
from weft_loop_ir.lowering.pointwise import elementwise
from weft_loop_ir.lowering.pooling_windows import expanded, fold
from weft_loop_ir.lowering.promotion import Promotion
from weft_loop_ir.lowering.registry import overload, register_lowering
from weft_loop_ir.lowering.tensors import Index, TensorValue
from weft_loop_ir.recording import BodyRecorder

aten = torch.ops.aten

OUT_VARIANTS: dict[OpOverload, OpOverload] = {
    aten.mm.default: aten.mm.out,
    aten.addmm.default: aten.addmm.out,
    aten.bmm.default: aten.bmm.out,
    aten.baddbmm.default: aten.baddbmm.out,
}

WIDE_OUT_VARIANTS: dict[OpOverload, OpOverload] = {
    aten.mm.dtype: aten.mm.dtype_out,
    aten.addmm.dtype: aten.addmm.dtype_out,
}
"""Matmuls whose results have another dtype than their factors."""

INLINED_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)

MIN_HEAD_SIZE = 16
"""Elements of a head of attention, at least, where it is worth a kernel of its own."""

MAX_SEARCHED = 64
"""Operators behind a product that are looked through for another one."""

LIBRARY = (
    "addmv mv dot linear matmul _int_mm "
    "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention "
    "_scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention "
    "_scaled_dot_product_fused_attention_overrideable scaled_dot_product_attention "
    "convolution_backward _embedding_bag_forward_only _scaled_mm"
).split()
OUT_OF_LIBRARY = {aten._scaled_mm.default: aten._scaled_mm.out, **WIDE_OUT_VARIANTS}
"""Of those, the operators that write to memory that is given."""


def _library_rule(operator: OpOverload) -> Callable[..., Any]:
    out_variant = OUT_VARIANTS.get(operator) or OUT_OF_LIBRARY.get(operator)

    def rule(context: LoweringContext, *args: Any, **kwargs: Any) -> Any:
        return context.extern(operator, args, kwargs, context.meta, "library", out_variant)

    return rule


@register_lowering(aten.convolution.default, any_dtype=True)
def _convolution(
    context: LoweringContext, image: TensorValue, weight: TensorValue, *rest: Any
) -> Any:
    """A list of one number, as ``padding="valid"`` gives ``[0]``, is one for each dim of the image."""
    rank = len(weight.size) - 2
    numbers = (list(expanded(n, rank)) if isinstance(n, list | tuple) else n for n in rest)
    arguments = (image, weight, *numbers)
    return context.extern(aten.convolution.default, arguments, {}, context.meta, "library")


def _matmul_rule(operator: OpOverload) -> Callable[..., Any]:
    in_library = _library_rule(operator)
    adds = operator in (aten.addmm.default, aten.baddbmm.default)

    def rule(context: LoweringContext, *args: Any, **kwargs: Any) -> Any:
        left, right = args[-2:]
        if kwargs or not _are_loops(context, left, right):
            return in_library(context, *args, **kwargs)
        operands = (*args[:-2], _product(context, left, right))
        result = left.dtype
        if not adds:
            return elementwise(context, operands, Promotion.DEFAULT, _same, result=result)
        return elementwise(context, operands, Promotion.DEFAULT, _sum, result=result)

    return rule


def _same(ops: BodyRecorder, value: Value) -> Value:
    return value


def _multiplied(ops: BodyRecorder, left: Value, right: Value) -> Value:
    return ops.mul(left, right)


def _sum(ops: BodyRecorder, left: Value, right: Value) -> Value:
    return ops.add(left, right)


def _are_loops(context: LoweringContext, left: TensorValue, right: TensorValue) -> bool:
    if left.dtype not in INLINED_DTYPES:
        return False
    return (
        _is_outer(context, left)
        or _is_with_vector(context, left, right)
        or _is_thin(context, right)
        or _is_small(context, left, right)
    )


def _is_outer(context: LoweringContext, left: TensorValue) -> bool:
    """Whether columns are multiplied with rows that no matmul is behind: attention's are matched as calls."""
    if left.size[-1] != 1 or context.options.eager_numerics:
        return False
    return not _follows_matmul(context.call)


def _follows_matmul(node: torch.fx.Node) -> bool:
    """Whether an operand is computed by another matmul, or by more than some operators."""
    seen: set[torch.fx.Node] = set()
    pending = [*node.all_input_nodes]
    while pending:
        found = pending.pop()
        if found.target in OUT_VARIANTS or len(seen) > MAX_SEARCHED:
            return True
        if found not in seen:
            seen.add(found)
            pending += found.all_input_nodes
    return False


def _is_with_vector(context: LoweringContext, left: TensorValue, right: TensorValue) -> bool:
    """Whether a small matrix is multiplied with a vector: of fewer terms than a head of attention has."""
    rows, terms, columns = left.size[-2], *right.size[-2:]
    elements = rows * terms * columns  # of the matrix, where the vector's other extent is 1
    if 1 not in (rows, columns) or not (elements.is_Integer and terms.is_Integer):
        return False  # 0 times a symbol is an integer too
    return int(terms) < MIN_HEAD_SIZE and 0 < int(elements) <= context.options.inlined_vectors


def _is_thin(context: LoweringContext, right: TensorValue) -> bool:
    """Whether rows of few elements become others: reading and writing them is all that it takes."""
    (terms, columns), options = right.size[-2:], context.options
    if not terms.is_Integer or 0 in (terms, columns):
        return False
    has_few = columns.is_Integer and int(columns) <= options.inlined_columns
    return int(terms) <= (options.inlined_columns if has_few else options.inlined_terms)


def _is_small(context: LoweringContext, left: TensorValue, right: TensorValue) -> bool:
    """Whether a matmul has so few multiplications that loops end before a library has begun to work.

    Loops over a right operand with rows side by side in memory are vectorised over columns, at the full
    speed of the processor; over others they add up a short row for each result.
    """
    extents = (left.size[-2], *right.size[-2:])
    if not all(n.is_Integer for n in left.size + extents):
        return False
    products = math.prod(int(n) for n in extents)
    limit = context.options.inlined_matmuls
    if not 0 < products <= limit:
        return False
    context.realize_computed(right)
    has_rows = right.stride is not None and right.stride[-1] == 1
    batch = math.prod(int(n) for n in left.size[:-2])
    slowdown = 4 if left.dtype.itemsize > 2 else 1  # a library takes longer to begin in 16 bits
    return has_rows or slowdown * batch * products <= limit


def _product(context: LoweringContext, left: TensorValue, right: TensorValue) -> TensorValue:
    """``left [..., m, k]`` times ``right [..., k, n]``, in the dtype that sums are added up in."""
    dtype = compute_dtype(left.dtype)
    if _is_outer(context, left):
        return elementwise(context, (left, right), Promotion.DEFAULT, _multiplied, result=dtype)
    for operand, others in ((left, right.size[-1]), (right, left.size[-2])):
        if others != 1:
            context.realize_computed(operand)  # not once for each row or column

    def function(ops: BodyRecorder, index: Index, reduced: Index) -> Value:
        *batch, row, column = index
        places = (left, (*batch, row, *reduced)), (right, (*batch, *reduced, column))
        values = (ops.to_dtype(operand.load(ops, place), dtype) for operand, place in places)
        return ops.mul(*values)

    size = (*left.size[:-1], right.size[-1])
    if _is_thin(context, right):
        return fold(context, "sum", size, left.size[-1:], function, (left, right), dtype)
    (result,) = context.reduce(
        ["sum"], size, left.size[-1:], function, (left, right), dtype, left.device
    )
    return result


for _operator in OUT_VARIANTS:
    register_lowering(_operator, any_dtype=True)(_matmul_rule(_operator))
for _operator in WIDE_OUT_VARIANTS:
    register_lowering(_operator, any_dtype=True)(_library_rule(_operator))
for _name in LIBRARY:
    _library_operator = overload(_name)
    if _library_operator is not None:
        register_lowering(_library_operator, any_dtype=True)(_library_rule(_library_operator))
