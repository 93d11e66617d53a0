"""Scans along a dimension: cumulative sums and the like, and ``associative_scan`` with any function.

They are lowered where the code generator has kernels for them (``LoweringOptions.scans``).  Elements are
combined in the dtype that arithmetic is done in: rounding halves at each step would add up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch

from weft_loop_ir.bodies import (
    COMBINED,
    LEFT,
    RIGHT,
    CombineFunction,
    IndexValue,
    Indirect,
    LoopBody,
    Masked,
    Scalar,
    Value,
)
from weft_loop_ir.expressions import contiguous_stride, dot, loop_symbol
from weft_loop_ir.index_simplify import ranges_for
from weft_loop_ir.ir import Buffer, BufferKind, Layout, LoopVariable
from weft_loop_ir.lowering.activations import log_add_exp
from weft_loop_ir.lowering.context import (
    LoweringContext,
    LoweringOptions,
    compute_dtype,
    is_read,
    storage_stride,
)
from weft_loop_ir.lowering.reductions import cast
from weft_loop_ir.lowering.registry import NoLowering, register_lowering
from weft_loop_ir.lowering.tensors import Index, InnerFunction, TensorValue
from weft_loop_ir.lowering.views import normalize_dim
from weft_loop_ir.recording import BodyRecorder
from weft_loop_ir.rewriting.fakes import ancestors

aten = torch.ops.aten

Combine = Callable[[BodyRecorder, Sequence[Value], Sequence[Value]], Sequence[Value]]


def combine_function_of(dtypes: Sequence[torch.dtype], combine: Combine) -> CombineFunction:
    """The combine function that ``combine(ops, left, right)`` computes, of values of ``dtypes``."""
    known = {f"{side}{k}": d for side in (LEFT, RIGHT) for k, d in enumerate(dtypes)}
    ops = BodyRecorder(ranges_for(()), known.__getitem__)
    left, right = (
        [ops.load(f"{side}{k}", sympy.S.Zero) for k in range(len(dtypes))] for side in (LEFT, RIGHT)
    )
    for k, value in enumerate(combine(ops, left, right)):
        ops.store(f"{COMBINED}{k}", sympy.S.Zero, value)
    return CombineFunction(ops.body(), tuple(dtypes))


def scan_node(
    context: LoweringContext,
    combine_function: CombineFunction,
    elements: Sequence[InnerFunction],
    inputs: Sequence[TensorValue],
    size: tuple[sympy.Expr, ...],
    dim: int,
    results: Sequence[tuple[int, torch.dtype, tuple[sympy.Expr, ...]]],
) -> tuple[TensorValue, ...]:
    """Append one node that scans ``elements``, functions of an index, along ``dim`` of ``size``.

    ``results`` are the values that are wanted: their number, dtype and strides.
    """
    outer = [d for d in range(len(size)) if d != dim]
    loops = tuple(LoopVariable(loop_symbol("i", k), size[d]) for k, d in enumerate(outer))
    along = LoopVariable(loop_symbol("r", 0), size[dim])
    index: list[sympy.Expr] = [v.symbol for v in loops]
    index.insert(dim, along.symbol)
    ops = context.recorder((*loops, along))
    values = [
        ops.to_dtype(element(ops, tuple(index)), dtype)
        for element, dtype in zip(elements, combine_function.dtypes, strict=True)
    ]
    made = []
    for number, dtype, stride in results:
        name = context.new_buffer(size, stride, dtype, inputs[0].device)
        value = ops.to_dtype(ops.scan(combine_function, number, *values), dtype)
        ops.store(name, dot(tuple(index), stride, sympy.S.Zero), value)
        made.append(context.buffer_tensor(name))
    context.append(loops, (along,), ops, context.origins_of(inputs))
    return tuple(made)


# -- operators with a function of their own ---------------------------------------------------------------


def _cumulative(
    context: LoweringContext, tensor: TensorValue, dim: int, combine: Combine
) -> TensorValue:
    """``tensor`` in the result's dtype, scanned; a tensor without dimensions is its own scan."""
    target = context.meta_dtype()
    if target is torch.bool:
        raise NoLowering("a scan in bool")
    if tensor.size:
        _check(context, tensor.size)
    if len(tensor.size) == 1 and not tensor.size[0].is_Integer:
        raise NoLowering("one row of any length, which the library reads once")
    given = cast(context, tensor, target)
    if not tensor.size:
        return given
    (result,) = scan_node(
        context,
        combine_function_of((compute_dtype(target),), combine),
        [given.load],
        [given],
        tensor.size,
        normalize_dim(dim, len(tensor.size)),
        [(0, target, contiguous_stride(tensor.size))],
    )
    return result


def _check(context: LoweringContext, size: Sequence[sympy.Expr]) -> None:
    """Leave to the library what there is no kernel for, or of whose size nothing is known beforehand."""
    if not context.options.scans:
        raise NoLowering("no kernels for scans")
    if any(extent.free_symbols - context.known_symbols for extent in size):
        raise NoLowering("a scan of a size that depends on data")


@register_lowering(aten.cumsum.default)
def cumsum(
    context: LoweringContext, tensor: TensorValue, dim: int, *, dtype: torch.dtype | None = None
) -> TensorValue:
    return _cumulative(context, tensor, dim, lambda ops, a, b: [ops.add(a[0], b[0])])


@register_lowering(aten.cumprod.default)
def cumprod(
    context: LoweringContext, tensor: TensorValue, dim: int, *, dtype: torch.dtype | None = None
) -> TensorValue:
    return _cumulative(context, tensor, dim, lambda ops, a, b: [ops.mul(a[0], b[0])])


@register_lowering(aten.logcumsumexp.default)
def logcumsumexp(context: LoweringContext, tensor: TensorValue, dim: int) -> TensorValue:
    if tensor.dtype is torch.float64:
        raise NoLowering("logarithms of doubles, which take long to compile")
    return _cumulative(context, tensor, dim, lambda ops, a, b: [log_add_exp(ops, a[0], b[0])])


@register_lowering(aten.cummax.default, aten.cummin.default)
def cumulative_extremum(
    context: LoweringContext, tensor: TensorValue, dim: int
) -> tuple[TensorValue, TensorValue]:
    """The extremum so far and where it is: the last of equals, and of NaNs, which stay."""
    compute = torch.uint8 if tensor.dtype is torch.bool else compute_dtype(tensor.dtype)
    if not tensor.size:
        raise NoLowering("a scan of no dimension")
    _check(context, tensor.size)
    better = "ge" if context.operator is aten.cummax.default else "le"

    def combine(ops: BodyRecorder, left: Sequence[Value], right: Sequence[Value]) -> list[Value]:
        takes = getattr(ops, better)(right[0], left[0])
        if compute.is_floating_point:
            stays = ops.logical_and(ops.logical_not(ops.isnan(left[0])), takes)
            takes = ops.logical_or(ops.isnan(right[0]), stays)
        return [ops.where(takes, b, a) for a, b in zip(left, right, strict=True)]

    dim = normalize_dim(dim, len(tensor.size))
    length = tensor.size[dim]
    is_short = length.is_Integer and length < 1 << 31
    position = torch.int32 if is_short else torch.int64
    stride = contiguous_stride(tensor.size)

    def element(ops: BodyRecorder, index: Index) -> Value:
        return ops.to_dtype(tensor.load(ops, index), compute)

    values, positions = scan_node(
        context,
        combine_function_of((compute, position), combine),
        [element, lambda ops, index: ops.index_expr(index[dim], position)],
        [tensor],
        tensor.size,
        dim,
        [(0, tensor.dtype, stride), (1, torch.int64, stride)],
    )
    return values, positions


# -- associative_scan -------------------------------------------------------------------------------------


Run = Callable[[Sequence[TensorValue], LoweringContext], Sequence[Any]]
"""Lowers the function of a scan, of the values that are given, in a context."""


def scan_whole(
    context: LoweringContext,
    node: torch.fx.Node,
    combine: torch.fx.GraphModule,
    rows: Sequence[TensorValue],
    run: Run,
) -> tuple[TensorValue | None, ...] | None:
    """The results of a call of ``associative_scan`` as one node, by number, None for those that nobody reads.

    None where ``combine``, which ``run`` lowers, needs more than the values that it combines.
    """
    wanted = [k for k in range(len(rows)) if is_read(node, k)]
    needed = needed_values(combine, wanted)
    combine_function = _combine_function(context.options, rows, needed, run)
    if combine_function is None:
        return None
    results = [
        (needed.index(k), rows[k].dtype, storage_stride(node.meta["val"][k])) for k in wanted
    ]
    used = [rows[k] for k in needed]
    elements = [row.load for row in used]
    made = scan_node(context, combine_function, elements, used, rows[0].size, 0, results)
    by_number = dict(zip(wanted, made, strict=True))
    return tuple(by_number.get(k) for k in range(len(rows)))


def _combine_function(
    options: LoweringOptions, rows: Sequence[TensorValue], needed: Sequence[int], run: Run
) -> CombineFunction | None:
    """The function, of the values ``needed`` alone, as a body; None where it reads anything else."""
    dtypes = [compute_dtype(row.dtype) for row in rows]
    size = rows[0].size[1:]
    stride = (sympy.S.Zero,) * len(size)
    context = LoweringContext(options, inlines=True)
    operands = []
    for side in (LEFT, RIGHT):
        for k, dtype in enumerate(dtypes):
            name = f"{side}{needed.index(k) if k in needed else f'_unused{k}'}"
            layout = Layout(rows[0].device, dtype, size, stride)
            context.buffers[name] = Buffer(name, BufferKind.INPUT, layout)
            operands.append(context.buffer_tensor(name))
    values = run(operands, context)
    ops = BodyRecorder(
        ranges_for(()),
        lambda name: context.buffers[name].layout.dtype,
        round_low_precision=options.round_low_precision,
    )
    for number, k in enumerate(needed):
        value = values[k].load(ops, (sympy.S.Zero,) * len(size))
        ops.store(f"{COMBINED}{number}", sympy.S.Zero, ops.to_dtype(value, dtypes[k]))
    body = ops.body()
    known = {f"{side}{k}" for side in (LEFT, RIGHT) for k in range(len(needed))}
    if context.nodes or not _is_of_values(body, known):
        return None
    return CombineFunction(body, tuple(dtypes[k] for k in needed))


def _is_of_values(body: LoopBody, known: set[str]) -> bool:
    """Whether ``body`` reads its values alone: no other memory, no places, no numbers of the host's."""
    if not known.issuperset(body.reads):
        return False
    others = (IndexValue, Indirect, Masked, Scalar)
    return not body.holds(*others)


def needed_values(combine: torch.fx.GraphModule, wanted: Sequence[int]) -> list[int]:
    """The numbers of the values that results with the numbers ``wanted`` depend on, and these."""
    placeholders = combine.graph.find_nodes(op="placeholder")
    (results,) = combine.graph.output_node().args
    results = results if isinstance(results, list | tuple) else (results,)
    found: set[int] = set()
    pending: list[Any] = list(wanted)
    while pending:
        position = pending.pop()
        if position in found:
            continue
        found.add(position)
        seen = ancestors([results[position]])
        count = len(results)
        pending += [
            k for k in range(count) if placeholders[k] in seen or placeholders[count + k] in seen
        ]
    return sorted(found)
