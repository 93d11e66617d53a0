"""Activations and other pointwise operators that are short formulas, with eager's order of operations."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch

from weft_loop_ir._torch import CLAMP_PASSES_NAN_BOUND, gelu_is_nan_at_infinity
from weft_loop_ir.bodies import Value, operation_named
from weft_loop_ir.lowering.context import LoweringContext, compute_dtype
from weft_loop_ir.lowering.pointwise import convert, elementwise, register_formula
from weft_loop_ir.lowering.promotion import (
    Operand,
    Promotion,
    broadcast_map,
    promote,
    require_float,
)
from weft_loop_ir.lowering.registry import NoLowering, register_lowering
from weft_loop_ir.lowering.tensors import TensorValue
from weft_loop_ir.recording import BodyRecorder
from weft_loop_ir.size_float import SizeFloat

aten = torch.ops.aten
D = Promotion.DEFAULT
F = Promotion.INT_TO_FLOAT
B = Promotion.TO_BOOL


@register_lowering(aten.gelu.default)
def gelu(
    context: LoweringContext, tensor: TensorValue, *, approximate: str = "none"
) -> TensorValue:
    """``x * Phi(x)``; NaN at infinity where eager gives that."""
    require_float(tensor)
    (source,) = context.call.all_input_nodes
    is_nan_at_infinity = gelu_is_nan_at_infinity(source.meta["val"])

    def exact(ops: BodyRecorder, x: Value) -> Value:
        inner = ops.erf(ops.mul(x, math.sqrt(0.5)))
        twice = ops.add(1.0, inner)
        if is_nan_at_infinity:
            twice = ops.add(twice, ops.sub(x, x))
        return ops.mul(ops.mul(x, 0.5), twice)

    def by_tanh(ops: BodyRecorder, x: Value) -> Value:
        cube = ops.mul(ops.mul(x, x), x)
        inner = ops.mul(math.sqrt(2 / math.pi), ops.add(x, ops.mul(0.044715, cube)))
        return ops.mul(ops.mul(0.5, x), ops.add(1.0, ops.tanh(inner)))

    formula = by_tanh if approximate == "tanh" else exact
    return elementwise(context, [tensor], D, formula, instructions=8, costly=True)


@register_formula(aten.silu.default, floats=True, instructions=4, costly=True)
def _silu(ops: BodyRecorder, x: Value) -> Value:
    return ops.truediv(x, ops.add(1.0, ops.exp(ops.neg(x))))


def _relu6(ops: BodyRecorder, x: Value) -> Value:
    """``min(max(x, 0), 6)``."""
    return ops.minimum(ops.maximum(x, 0.0), 6.0)


@register_formula(aten.hardswish.default, floats=True, instructions=5, costly=True)
def _hardswish(ops: BodyRecorder, x: Value) -> Value:
    shifted = _relu6(ops, ops.add(x, 3.0))
    return ops.truediv(ops.mul(x, shifted), 6.0)


@register_formula(aten.hardsigmoid.default, floats=True, instructions=4, costly=True)
def _hardsigmoid(ops: BodyRecorder, x: Value) -> Value:
    return ops.truediv(_relu6(ops, ops.add(x, 3.0)), 6.0)


def clamp_values(
    context: LoweringContext,
    tensor: TensorValue,
    low: Operand | None,
    high: Operand | None,
    *,
    passes_nan_bound: bool = False,
) -> TensorValue:
    """``minimum(high, maximum(low, tensor))``, NaN of any of them propagating.

    Of two zeros machines give the second, as eager's kernels do: the tensor's where bounds are numbers.
    ``passes_nan_bound``: the only bound may be NaN, and bounds nothing then.
    """
    operands = [o for o in (tensor, low, high) if o is not None]
    compute, _ = promote(operands, D)
    if compute == torch.bool:
        raise NoLowering("clamp of bool")
    for bound in (low, high):
        if isinstance(bound, float) and math.isnan(bound):
            raise NoLowering("clamp to NaN")
    (bound, *others) = [bound for bound in (low, high) if bound is not None]
    bound_wins = not others and isinstance(bound, TensorValue)

    def formula(ops: BodyRecorder, x: Value, *bounds: Value) -> Value:
        rest = list(bounds)
        clamped = x
        if low is not None:
            bound = rest.pop(0)
            clamped = ops.maximum(clamped, bound) if bound_wins else ops.maximum(bound, clamped)
        if high is not None:
            bound = rest.pop(0)
            clamped = ops.minimum(clamped, bound) if bound_wins else ops.minimum(bound, clamped)
        return ops.where(ops.isnan(bounds[0]), x, clamped) if passes_nan_bound else clamped

    return elementwise(context, operands, D, formula, instructions=2 + 2 * passes_nan_bound)


@register_lowering(aten.clamp.default, aten.clamp.Tensor)
def clamp(
    context: LoweringContext, tensor: TensorValue, min: Any = None, max: Any = None
) -> TensorValue:
    bounds = [bound for bound in (min, max) if bound is not None]
    passes = CLAMP_PASSES_NAN_BOUND and len(bounds) == 1 and isinstance(bounds[0], SizeFloat)
    return clamp_values(context, tensor, min, max, passes_nan_bound=passes)


@register_lowering(aten.clamp_min.default, aten.clamp_min.Tensor)
def clamp_min(context: LoweringContext, tensor: TensorValue, min: Any) -> TensorValue:
    return clamp_values(context, tensor, min, None)


@register_lowering(aten.clamp_max.default, aten.clamp_max.Tensor)
def clamp_max(context: LoweringContext, tensor: TensorValue, max: Any) -> TensorValue:
    return clamp_values(context, tensor, None, max)


@register_lowering(aten.hardtanh.default)
def hardtanh(
    context: LoweringContext, tensor: TensorValue, min_val: Any = -1, max_val: Any = 1
) -> TensorValue:
    require_float(tensor)
    return clamp_values(context, tensor, min_val, max_val)


register_lowering(aten.relu6.default)(partial(clamp_values, low=0, high=6))


@register_formula(aten.leaky_relu.default, floats=True, instructions=3)
def _leaky_relu(ops: BodyRecorder, x: Value, negative_slope: Any = 0.01) -> Value:
    return ops.where(ops.gt(x, 0.0), x, ops.mul(x, float(negative_slope)))


@register_formula(aten._prelu_kernel.default, operands=2, instructions=3)
def _prelu(ops: BodyRecorder, x: Value, weight: Value) -> Value:
    return ops.where(ops.gt(x, 0.0), x, ops.mul(weight, x))


@register_formula(aten.elu.default, floats=True, instructions=6, costly=True)
def _elu(
    ops: BodyRecorder, x: Value, alpha: Any = 1, scale: Any = 1, input_scale: Any = 1
) -> Value:
    negative = ops.mul(ops.expm1(ops.mul(x, float(input_scale))), float(alpha) * float(scale))
    positive = ops.mul(x, float(scale))
    return ops.where(ops.gt(x, 0.0), positive, negative)


@register_formula(aten.softplus.default, floats=True, instructions=6, costly=True)
def _softplus(ops: BodyRecorder, x: Value, beta: Any = 1, threshold: Any = 20) -> Value:
    """``log1p(exp(beta * x)) / beta``, or ``x`` where ``beta * x`` exceeds the threshold."""
    scaled = ops.mul(x, float(beta))
    soft = ops.truediv(ops.log1p(ops.exp(scaled)), float(beta))
    return ops.where(ops.gt(scaled, float(threshold)), x, soft)


@register_formula(aten.mish.default, floats=True, instructions=4, costly=True)
def _mish(ops: BodyRecorder, x: Value) -> Value:
    return ops.mul(x, ops.tanh(ops.log1p(ops.exp(x))))


@register_lowering(aten.log_sigmoid_forward.default)
def log_sigmoid_forward(
    context: LoweringContext, tensor: TensorValue
) -> tuple[TensorValue, TensorValue]:
    require_float(tensor)
    if tensor.device.type != "cpu":
        raise NoLowering("the second result depends on the device")

    def small(ops: BodyRecorder, x: Value) -> Value:
        return ops.exp(ops.neg(ops.abs(x)))

    def formula(ops: BodyRecorder, x: Value) -> Value:
        return ops.sub(ops.minimum(x, 0.0), ops.log1p(small(ops, x)))

    compute = compute_dtype(tensor.dtype)
    first, second = (
        broadcast_map(context, [tensor], compute, tensor.dtype, f, instructions=6, costly=True)
        for f in (formula, small)
    )
    return first, second


@register_formula(aten.hardshrink.default, floats=True, instructions=4)
def _hardshrink(ops: BodyRecorder, x: Value, lambd: Any = 0.5) -> Value:
    bound = abs(float(lambd)) if float(lambd) >= 0 else float(lambd)
    return ops.where(_is_within(ops, x, bound), 0.0, x)


def _is_within(ops: BodyRecorder, x: Value, bound: float) -> Value:
    low = ops.ge(x, -bound)
    return ops.logical_and(low, ops.le(x, bound))


@register_formula(aten.softshrink.default, floats=True, instructions=5)
def _softshrink(ops: BodyRecorder, x: Value, lambd: Any = 0.5) -> Value:
    bound = float(lambd)
    shrunk = ops.where(ops.gt(x, bound), ops.sub(x, bound), ops.mul(x, 0.0))
    return ops.where(ops.lt(x, -bound), ops.add(x, bound), shrunk)


@register_formula(
    aten.hardshrink_backward.default, aten.softshrink_backward.default,
    operands=2, floats=True, instructions=4,
)  # fmt: skip
def _shrink_backward(ops: BodyRecorder, g: Value, x: Value, lambd: Any) -> Value:
    """0 where the element was within the bounds, the gradient elsewhere."""
    return ops.where(_is_within(ops, x, float(lambd)), 0.0, g)


@register_formula(aten.threshold.default, bools=False, instructions=2)
def _threshold(ops: BodyRecorder, x: Value, threshold: Any, value: Any) -> Value:
    return ops.where(ops.le(x, threshold), value, x)


@register_formula(aten.heaviside.default, operands=2, bools=False, instructions=3)
def _heaviside(ops: BodyRecorder, x: Value, values: Value) -> Value:
    step = ops.to_dtype(ops.gt(x, 0), ops.dtype_of(x))
    return ops.where(ops.eq(x, 0), values, step)


# -- combinations ----------------------------------------------------------------------------------------


@register_formula(aten.lerp.Scalar, aten.lerp.Tensor, operands=3, floats=True, instructions=6)
def _lerp(ops: BodyRecorder, a: Value, b: Value, w: Value) -> Value:
    difference = ops.sub(b, a)
    near = ops.add(a, ops.mul(w, difference))
    far = ops.sub(b, ops.mul(difference, ops.sub(1.0, w)))
    return ops.where(ops.lt(ops.abs(w), 0.5), near, far)


def _scaled(ops: BodyRecorder, factor: Any, value: Value) -> Value:
    return value if factor == 1 else ops.mul(factor, value)


def _combined(
    operation: str,
    context: LoweringContext,
    tensor: TensorValue,
    tensor1: TensorValue,
    tensor2: TensorValue,
    *,
    value: Any = 1,
) -> TensorValue:
    """``tensor`` and ``value`` times a product or quotient."""
    compute, _ = promote([tensor, tensor1, tensor2], D)
    if not operation_named(operation).takes(compute) or compute == torch.bool:
        raise NoLowering(f"{operation} of {compute}")

    def formula(ops: BodyRecorder, a: Value, b: Value, c: Value) -> Value:
        return ops.add(a, getattr(ops, operation)(_scaled(ops, value, b), c))

    costly = operation_named(operation).is_costly
    operands = [tensor, tensor1, tensor2]
    return elementwise(context, operands, D, formula, instructions=3, costly=costly)


register_lowering(aten.addcmul.default)(partial(_combined, "mul"))
register_lowering(aten.addcdiv.default)(partial(_combined, "truediv"))


# -- rounding, tests, others -----------------------------------------------------------------------------


def _round_rule(operation: str) -> Any:
    def rule(context: LoweringContext, tensor: TensorValue) -> TensorValue:
        compute, _ = promote([tensor], D)
        if not compute.is_floating_point:
            if compute == torch.bool:
                raise NoLowering(f"{operation} of bool")
            return convert(context, tensor, tensor.dtype)
        return elementwise(context, [tensor], D, lambda ops, x: getattr(ops, operation)(x))

    return rule


for _name in ("floor", "ceil", "trunc", "round"):
    register_lowering(getattr(aten, _name).default)(_round_rule(_name))


def _ignoring_nan(
    comparison: str, context: LoweringContext, left: TensorValue, right: TensorValue
) -> TensorValue:
    """``right`` where it is beyond ``left``, or that is NaN: of two zeros the first, whatever its sign."""
    compute, _ = promote([left, right], D)
    if compute == torch.bool:
        raise NoLowering(f"{comparison} of bool")

    def formula(ops: BodyRecorder, a: Value, b: Value) -> Value:
        beyond = getattr(ops, comparison)(b, a)
        if compute.is_floating_point:
            beyond = ops.logical_or(beyond, ops.isnan(a))
        return ops.where(beyond, b, a)

    return elementwise(context, [left, right], D, formula, instructions=4)


register_lowering(aten.fmax.default)(partial(_ignoring_nan, "gt"))
register_lowering(aten.fmin.default)(partial(_ignoring_nan, "lt"))


@register_lowering(aten.isposinf.default, aten.isneginf.default)
def infinite_with_sign(context: LoweringContext, tensor: TensorValue) -> TensorValue:
    target = math.inf if context.operator == aten.isposinf.default else -math.inf
    if not tensor.dtype.is_floating_point:
        raise NoLowering("test for infinity of integers")
    return elementwise(context, [tensor], B, lambda ops, x: ops.eq(x, target))


@register_lowering(aten.nan_to_num.default)
def nan_to_num(
    context: LoweringContext, tensor: TensorValue, nan: Any = None, posinf: Any = None,
    neginf: Any = None,
) -> TensorValue:  # fmt: skip
    if not tensor.dtype.is_floating_point:
        return convert(context, tensor, tensor.dtype)
    limits = torch.finfo(tensor.dtype)

    def formula(ops: BodyRecorder, x: Value) -> Value:
        no_nan = ops.where(ops.isnan(x), 0.0 if nan is None else nan, x)
        low = limits.min if neginf is None else neginf
        high = limits.max if posinf is None else posinf
        is_low = ops.eq(x, -math.inf)
        is_high = ops.eq(x, math.inf)
        return ops.where(is_high, high, ops.where(is_low, low, no_nan))

    return elementwise(context, [tensor], D, formula, instructions=6)


@register_formula(aten.logaddexp.default, operands=2, floats=True, instructions=8, costly=True)
def log_add_exp(ops: BodyRecorder, a: Value, b: Value) -> Value:
    """``log(exp(a) + exp(b))``."""
    same_infinity = ops.logical_and(ops.isinf(a), ops.eq(a, b))
    largest = ops.maximum(a, b)
    small = ops.exp(ops.neg(ops.abs(ops.sub(a, b))))
    return ops.where(same_infinity, a, ops.add(largest, ops.log1p(small)))


@register_formula(
    aten.xlogy.Tensor, aten.xlogy.Scalar_Self, aten.xlogy.Scalar_Other,
    kind=F, operands=2, instructions=5, costly=True,
)  # fmt: skip
def _xlogy(ops: BodyRecorder, x: Value, y: Value) -> Value:
    product = ops.mul(x, ops.log(y))
    return ops.where(ops.isnan(y), y, ops.where(ops.eq(x, 0.0), 0.0, product))


@register_formula(aten.sinc.default, kind=F, instructions=5, costly=True)
def _sinc(ops: BodyRecorder, x: Value) -> Value:
    angle = ops.mul(math.pi, x)
    value = ops.truediv(ops.sin(angle), angle)
    return ops.where(ops.eq(x, 0.0), 1.0, value)


@register_formula(aten.frac.default, floats=True, instructions=2)
def _frac(ops: BodyRecorder, x: Value) -> Value:
    return ops.sub(x, ops.trunc(x))


@register_formula(aten.deg2rad.default, kind=F)
def _deg2rad(ops: BodyRecorder, x: Value) -> Value:
    return ops.mul(x, math.pi / 180.0)


@register_formula(aten.rad2deg.default, kind=F)
def _rad2deg(ops: BodyRecorder, x: Value) -> Value:
    return ops.mul(x, 180.0 / math.pi)


@register_formula(aten.logit.default, kind=F, instructions=7, costly=True)
def _logit(ops: BodyRecorder, x: Value, eps: Any = None) -> Value:
    if eps is not None:
        low, high = float(eps), 1.0 - float(eps)
        x = ops.where(ops.lt(x, low), low, ops.where(ops.gt(x, high), high, x))
    return ops.log(ops.truediv(x, ops.sub(1.0, x)))


@register_formula(aten.sigmoid_backward.default, operands=2, instructions=3)
def _sigmoid_backward(ops: BodyRecorder, g: Value, y: Value) -> Value:
    return ops.mul(ops.mul(g, ops.sub(1.0, y)), y)


@register_formula(aten.tanh_backward.default, operands=2, instructions=3)
def _tanh_backward(ops: BodyRecorder, g: Value, y: Value) -> Value:
    return ops.mul(g, ops.sub(1.0, ops.mul(y, y)))


@register_formula(aten.threshold_backward.default, operands=2, bools=False, instructions=2)
def _threshold_backward(ops: BodyRecorder, g: Value, x: Value, threshold: Any) -> Value:
    return ops.where(ops.le(x, threshold), 0, g)
