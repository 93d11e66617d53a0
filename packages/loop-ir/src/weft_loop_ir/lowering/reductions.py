"""Reductions over dims, with eager's accumulation dtypes, NaN propagation and ties."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import sympy
import torch

from weft_loop_ir.bodies import Value
from weft_loop_ir.expressions import product
from weft_loop_ir.lowering.context import LoweringContext, compute_dtype
from weft_loop_ir.lowering.promotion import broadcast_map, map_values
from weft_loop_ir.lowering.registry import NoLowering, register_lowering
from weft_loop_ir.lowering.tensors import Index, TensorValue
from weft_loop_ir.lowering.views import normalize_dim, remove_dims
from weft_loop_ir.recording import BodyRecorder
from weft_loop_ir.rewriting.fakes import is_view

aten = torch.ops.aten
Size = tuple[sympy.Expr, ...]
Transform = Callable[[Any, Value], Value]

CHEAP_INSTRUCTIONS = 4
"""Of an element that is computed where it is read, once for each time."""


def reduced_dims(dim: Any, rank: int) -> list[int]:
    """The dims to reduce, sorted; None and the empty list stand for all."""
    if dim is None or (isinstance(dim, list | tuple) and not dim):
        return list(range(rank))
    given = [dim] if isinstance(dim, int) else list(dim)
    return sorted({normalize_dim(d, rank) for d in given if rank})


def over_dims(
    context: LoweringContext,
    tensor: TensorValue,
    kinds: Sequence[str],
    dims: Sequence[int],
    keepdim: bool,
    accumulate: torch.dtype,
    transform: Transform | None = None,
) -> tuple[TensorValue, ...]:
    """Reduce ``tensor`` (converted to ``accumulate``, then ``transform``-ed) over ``dims``.

    Results have dtype ``accumulate`` (int64 for positions); reduced dims are kept as 1 with ``keepdim``.
    """
    rank = len(tensor.size)
    kept = [d for d in range(rank) if d not in dims]
    size = tuple(
        sympy.S.One if d in dims else tensor.size[d]
        for d in range(rank)
        if keepdim or d not in dims
    )
    lengths = tuple(tensor.size[d] for d in dims)

    def function(ops: BodyRecorder, index: Index, reduced: Index) -> Value:
        full: list[sympy.Expr] = [sympy.S.Zero] * rank
        for position, d in enumerate(kept):
            full[d] = index[d] if keepdim else index[position]
        for position, d in enumerate(dims):
            full[d] = reduced[position]
        value = ops.to_dtype(tensor.load(ops, tuple(full)), accumulate)
        return value if transform is None else transform(ops, value)

    terms = _written_out(context, tensor, dims)
    if terms and len(kinds) == 1 and kinds[0] in _JOINED_BY and not is_empty(size):

        def written_out(ops: BodyRecorder, index: Index) -> Value:
            values = [function(ops, index, place) for place in terms]
            return functools.reduce(getattr(ops, _JOINED_BY[kinds[0]]), values)

        cost = len(terms) * (1 + tensor.cost.instructions)
        made = context.pointwise(
            size, accumulate, tensor.device, written_out, [tensor], cost, transform is not None
        )
        return (made,)
    return context.reduce(kinds, size, lengths, function, [tensor], accumulate, tensor.device)


_JOINED_BY = {"sum": "add", "prod": "mul", "max": "maximum", "min": "minimum"}
"""The operation of two elements for each kind of reduction that may be written out."""


def _written_out(
    context: LoweringContext, tensor: TensorValue, dims: Sequence[int]
) -> tuple[Index, ...]:
    """The places of the few elements that one result is of, which are cheap; else none.

    Of the last dim neighbours are read together, and with what makes them: that stays a loop.  So does a sum
    of matrices that are multiplied here: kernels of attention add up what heads that share keys give.
    """
    lengths, cost = [tensor.size[d] for d in dims], tensor.cost
    count = product(tuple(lengths))
    if not count.is_Integer or not 1 < count <= context.options.written_out_terms:
        return ()
    if (
        dims[-1] == len(tensor.size) - 1
        or cost.costly
        or cost.instructions > CHEAP_INSTRUCTIONS
        or len(cost.reads) > 1
        or _is_product(context.call.args[0])
    ):
        return ()
    ranges = (range(int(length)) for length in lengths)
    return tuple(tuple(map(sympy.Integer, place)) for place in itertools.product(*ranges))


def _is_product(node: Any) -> bool:
    """Whether a node is a product of matrices, seen through views."""
    while isinstance(node, torch.fx.Node) and is_view(node):
        node = node.args[0]
    return isinstance(node, torch.fx.Node) and node.target in (aten.bmm.default, aten.mm.default)


def cast(context: LoweringContext, tensor: TensorValue, dtype: torch.dtype) -> TensorValue:
    """``tensor`` in ``dtype``: itself when it is already."""
    if tensor.dtype == dtype:
        return tensor
    return map_values(context, [tensor], dtype, lambda ops, v: v)


def count_of(tensor: TensorValue, dims: Sequence[int]) -> sympy.Expr:
    """How many elements one reduction over ``dims`` takes."""
    return product(tuple(tensor.size[d] for d in dims))


def is_empty(size: Sequence[sympy.Expr]) -> bool:
    """Whether a tensor of this size has provably no elements."""
    return any(n == 0 for n in size)


def _accumulated(
    kind: str,
    context: LoweringContext,
    tensor: TensorValue,
    dim: Any = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> TensorValue:
    """The ``kind`` ("sum", "prod", "mean") of elements that are rounded to the result's dtype before."""
    target = context.meta_dtype()
    if target == torch.bool:
        raise NoLowering(f"{kind} in bool")
    accumulate = compute_dtype(target)
    dims = reduced_dims(dim, len(tensor.size))
    rounded = _round_to(target) if target not in (tensor.dtype, accumulate) else None
    reduction = "prod" if kind == "prod" else "sum"
    (total,) = over_dims(context, tensor, [reduction], dims, keepdim, accumulate, rounded)
    if kind != "mean":
        return cast(context, total, target)
    count = count_of(tensor, dims)
    return map_values(context, [total], target, lambda ops, v: ops.truediv(v, count))


for _name, _dims in (("sum", "dim_IntList"), ("prod", "dim_int"), ("mean", "dim")):
    _packet = getattr(aten, _name)
    register_lowering(_packet.default, getattr(_packet, _dims))(partial(_accumulated, _name))


def _round_to(dtype: torch.dtype) -> Transform:
    """Round to ``dtype`` and back, as eager's conversion before the reduction does."""

    def transform(ops: BodyRecorder, value: Value) -> Value:
        return ops.to_dtype(ops.to_dtype(value, dtype), ops.dtype_of(value))

    return transform


def moments(
    context: LoweringContext, tensor: TensorValue, dims: Sequence[int], keepdim: bool
) -> tuple[TensorValue, TensorValue]:
    """The mean and the sum of squared deviations over ``dims``, by Welford.

    In the compute dtype, or in float64 instead of float32 where squares of all of its range are to be had
    (``wide_moments``): the deviation of numbers of 1e-30 is 1e-30, and their variance no float32.
    """
    context.realize_computed(tensor)
    accumulate = compute_dtype(tensor.dtype)
    if context.options.wide_moments and accumulate is torch.float32:
        accumulate = torch.float64
    mean_, m2 = over_dims(
        context, tensor, ["welford_mean", "welford_m2"], dims, keepdim, accumulate
    )
    return mean_, m2


def variance_of(
    context: LoweringContext,
    m2: TensorValue,
    count: sympy.Expr,
    correction: float,
    target: torch.dtype,
    root: bool = False,
) -> TensorValue:
    """``m2 / max(count - correction, 0)``, or its square root."""

    def formula(ops: BodyRecorder, value: Value) -> Value:
        dtype = ops.dtype_of(value)
        if isinstance(count, sympy.Integer):
            divisor = ops.constant(float(max(int(count) - correction, 0)), dtype)
        else:
            divisor = ops.maximum(ops.sub(ops.number(count, dtype), float(correction)), 0.0)
        variance = ops.truediv(value, divisor)
        return ops.sqrt(variance) if root else variance

    return map_values(context, [m2], target, formula, instructions=2 + root)


def _var_arguments(
    tensor: TensorValue, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[list[int], float, bool]:
    """``(dims, correction, keepdim)`` of any overload of var and std."""
    dim = kwargs.get("dim")
    rest = list(args)
    correction: Any = kwargs.get("correction", 1)
    if "unbiased" in kwargs:
        correction = 1 if kwargs["unbiased"] else 0
    if rest and isinstance(rest[0], bool):
        correction = 1 if rest.pop(0) else 0
    elif rest:
        dim = rest.pop(0)
        if rest:
            correction = 1 if rest.pop(0) else 0
    keepdim = bool(rest.pop(0)) if rest else bool(kwargs.get("keepdim", False))
    if not tensor.dtype.is_floating_point:
        raise NoLowering("variance of integers")
    return reduced_dims(dim, len(tensor.size)), 1 if correction is None else correction, keepdim


def _spread(
    root: bool,
    has_mean: bool,
    context: LoweringContext,
    tensor: TensorValue,
    *args: Any,
    **kwargs: Any,
) -> TensorValue | tuple[TensorValue, TensorValue]:
    """The variance, or its ``root``, and the mean beside it if the operator gives that."""
    dims, correction, keepdim = _var_arguments(tensor, args, kwargs)
    mean, m2 = moments(context, tensor, dims, keepdim)
    count, target = count_of(tensor, dims), context.meta_dtype(0 if has_mean else None)
    spread = variance_of(context, m2, count, correction, target, root)
    return (
        (spread, _mean_or_nan(context, mean, count, context.meta_dtype(1))) if has_mean else spread
    )


for _name in ("var", "std", "var_mean", "std_mean"):
    _packet = getattr(aten, _name)
    register_lowering(_packet.default, _packet.dim, _packet.correction)(
        partial(_spread, _name.startswith("std"), _name.endswith("mean"))
    )


def _mean_or_nan(
    context: LoweringContext, mean_: TensorValue, count: sympy.Expr, target: torch.dtype
) -> TensorValue:
    """A mean by Welford, which is 0 of no elements, as eager gives it: NaN of none."""
    if count.is_positive:
        return cast(context, mean_, target)

    def formula(ops: BodyRecorder, value: Value) -> Value:
        return ops.where(ops.gt(ops.number(count, torch.int64), 0), value, math.nan)

    return map_values(context, [mean_], target, formula, instructions=2)


@register_lowering(aten.amax.default, aten.amin.default, aten.max.default, aten.min.default)
def extremum(
    context: LoweringContext, tensor: TensorValue, dim: Any = None, keepdim: bool = False
) -> TensorValue:
    kind = "max" if context.operator in (aten.amax.default, aten.max.default) else "min"
    return _extremum(context, tensor, kind, reduced_dims(dim, len(tensor.size)), keepdim)


def _extremum(
    context: LoweringContext, tensor: TensorValue, kind: str, dims: Sequence[int], keepdim: bool
) -> TensorValue:
    _require_elements(tensor, dims)
    if tensor.dtype == torch.bool:
        kind = "any" if kind == "max" else "all"
    compute = compute_dtype(tensor.dtype)
    (result,) = over_dims(context, tensor, [kind], dims, keepdim, compute)
    return cast(context, result, tensor.dtype)


def _require_elements(tensor: TensorValue, dims: Sequence[int]) -> None:
    """Leave a reduction of nothing, which has no extremum, to eager's operator: it raises eager's error."""
    if is_empty([tensor.size[d] for d in dims]):
        raise NoLowering("extremum of no elements")


@register_lowering(aten.max.dim, aten.min.dim)
def extremum_with_index(
    context: LoweringContext, tensor: TensorValue, dim: int, keepdim: bool = False
) -> tuple[TensorValue, TensorValue]:
    kind = "max" if context.operator == aten.max.dim else "min"
    context.realize_computed(tensor)
    dims = reduced_dims(dim, len(tensor.size))
    position = _positions(context, tensor, "arg" + kind, dims, keepdim)
    return _extremum(context, tensor, kind, dims, keepdim), position


@register_lowering(aten.argmax.default, aten.argmin.default)
def arg_extremum(
    context: LoweringContext, tensor: TensorValue, dim: int | None = None, keepdim: bool = False
) -> TensorValue:
    kind = "argmax" if context.operator == aten.argmax.default else "argmin"
    if tensor.dtype == torch.bool:
        raise NoLowering(f"{kind} of bool, which eager rejects")
    return _positions(context, tensor, kind, reduced_dims(dim, len(tensor.size)), keepdim)


def _positions(
    context: LoweringContext, tensor: TensorValue, kind: str, dims: Sequence[int], keepdim: bool
) -> TensorValue:
    _require_elements(tensor, dims)
    compute = compute_dtype(tensor.dtype)
    if compute == torch.bool:
        compute = torch.uint8
    (result,) = over_dims(context, tensor, [kind], dims, keepdim, compute)
    return result


@register_lowering(
    aten.any.default, aten.any.dim, aten.any.dims, aten.all.default, aten.all.dim, aten.all.dims
)
def any_or_all(
    context: LoweringContext, tensor: TensorValue, dim: Any = None, keepdim: bool = False
) -> TensorValue:
    kind = "any" if context.operator.overloadpacket is aten.any else "all"
    if isinstance(dim, list | tuple) and not dim:
        raise NoLowering(f"{kind} over an empty list of dims")
    dims = reduced_dims(dim, len(tensor.size))
    (result,) = over_dims(context, tensor, [kind], dims, keepdim, torch.bool)
    return cast(context, result, context.meta_dtype())  # uint8 stays uint8


@register_lowering(aten.logsumexp.default)
def logsumexp(
    context: LoweringContext, tensor: TensorValue, dim: Any, keepdim: bool = False
) -> TensorValue:
    target = context.meta_dtype()
    compute = compute_dtype(target)
    dims = reduced_dims(dim, len(tensor.size))
    if is_empty([tensor.size[d] for d in dims]):
        raise NoLowering("logsumexp over no elements")
    context.realize_computed(tensor)
    (largest,) = over_dims(context, tensor, ["max"], dims, True, compute)

    def finite(ops: BodyRecorder, value: Value) -> Value:
        return ops.where(ops.isinf(value), 0.0, value)

    shift = map_values(context, [largest], compute, finite)
    total = sum_of_exponentials(context, tensor, shift, dims, keepdim, compute)
    base = shift if keepdim else remove_dims(shift, dims)
    return map_values(
        context, [total, base], target, lambda ops, s, m: ops.add(ops.log(s), m), costly=True
    )


def sum_of_exponentials(
    context: LoweringContext,
    tensor: TensorValue,
    shift: TensorValue,
    dims: Sequence[int],
    keepdim: bool,
    compute: torch.dtype,
) -> TensorValue:
    """``sum(exp(tensor - shift))`` over ``dims``; ``shift`` has those dims as 1."""
    terms = exponentials(context, tensor, shift, compute)
    (total,) = over_dims(context, terms, ["sum"], dims, keepdim, compute)
    return total


def exponentials(
    context: LoweringContext, tensor: TensorValue, shift: TensorValue, compute: torch.dtype
) -> TensorValue:
    """``exp(tensor - shift)``."""
    return broadcast_map(
        context,
        [tensor, shift],
        compute,
        compute,
        lambda ops, x, m: ops.exp(ops.sub(x, m)),
        instructions=3,
        costly=True,
    )


@register_lowering(aten.linalg_vector_norm.default)
def vector_norm(
    context: LoweringContext,
    tensor: TensorValue,
    ord: Any = 2,
    dim: Any = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> TensorValue:
    target = context.meta_dtype()
    compute = compute_dtype(target)
    dims = reduced_dims(dim, len(tensor.size))
    order = float(ord)
    if is_empty([tensor.size[d] for d in dims]):
        raise NoLowering("norm over no elements")
    if order and all(tensor.size[d] == 1 for d in dims):
        order = math.inf  # the absolute value, whose powers may be out of range
    kind, transform, root = _norm_formula(order, compute)
    (total,) = over_dims(context, tensor, [kind], dims, keepdim, compute, transform)
    return map_values(context, [total], target, root, costly=True)


def _norm_formula(order: float, dtype: torch.dtype) -> tuple[str, Transform, Transform]:
    """The reduction of the norm of this order: kind, what is reduced, what is done with the result."""

    def same(ops: BodyRecorder, value: Value) -> Value:
        return value

    def absolute(ops: BodyRecorder, value: Value) -> Value:
        return ops.abs(value)

    formulas: dict[float, tuple[str, Transform, Transform]] = {
        float("inf"): ("max", absolute, same),
        float("-inf"): ("min", absolute, same),
        0: ("sum", lambda ops, v: ops.to_dtype(ops.ne(v, 0.0), dtype), same),
        1: ("sum", absolute, same),
        2: ("sum", lambda ops, v: ops.mul(v, v), lambda ops, v: ops.sqrt(v)),
    }
    return formulas.get(order) or (
        "sum",
        lambda ops, v: ops.pow(ops.abs(v), order),
        lambda ops, v: ops.pow(v, 1.0 / order),
    )
