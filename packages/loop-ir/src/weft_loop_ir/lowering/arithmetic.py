"""Division, remainders and powers, with the formulas that eager uses for special exponents."""

from __future__ import annotations

from functools import partial
from typing import Any

import sympy
import torch

from weft_loop_ir.bodies import Value
from weft_loop_ir.lowering.context import LoweringContext
from weft_loop_ir.lowering.pointwise import elementwise
from weft_loop_ir.lowering.promotion import Operand, Promotion, promote
from weft_loop_ir.lowering.registry import NoLowering, register_lowering
from weft_loop_ir.lowering.tensors import TensorValue
from weft_loop_ir.recording import BodyRecorder
from weft_loop_ir.size_float import SizeFloat

aten = torch.ops.aten
D = Promotion.DEFAULT
F = Promotion.INT_TO_FLOAT


# -- division and remainder ------------------------------------------------------------------------------


@register_lowering(aten.div.Tensor_mode, aten.div.Scalar_mode)
def div_mode(
    context: LoweringContext, left: Operand, right: Operand, *, rounding_mode: str | None
) -> TensorValue:
    if rounding_mode is None:
        return elementwise(
            context, [left, right], F, lambda ops, a, b: ops.truediv(a, b), costly=True
        )
    if rounding_mode == "floor":
        return floor_divide(context, left, right)
    compute, _ = promote([left, right], D)
    _require_nonzero_divisor(compute, right)
    if compute.is_floating_point:
        return elementwise(
            context,
            [left, right],
            D,
            lambda ops, a, b: ops.trunc(ops.truediv(a, b)),
            instructions=2,
            costly=True,
        )
    return elementwise(context, [left, right], D, lambda ops, a, b: ops.truncdiv(a, b), costly=True)


def _divided(
    operation: str, context: LoweringContext, left: Operand, right: Operand
) -> TensorValue:
    """Floors of quotients, and remainders, which round a number to the dtype of a tensor first."""
    compute, _ = promote([left, right], D)
    _require_nonzero_divisor(compute, right)

    def formula(ops: BodyRecorder, a: Value, b: Value) -> Value:
        quotient: Value = getattr(ops, operation)(a, b)
        return quotient

    rounds = operation != "floordiv"
    return elementwise(context, [left, right], D, formula, costly=True, rounds_numbers=rounds)


floor_divide = partial(_divided, "floordiv")
register_lowering(aten.floor_divide.default, aten.floor_divide.Scalar)(floor_divide)
register_lowering(aten.remainder.Tensor, aten.remainder.Scalar, aten.remainder.Scalar_Tensor)(
    partial(_divided, "remainder")
)
register_lowering(aten.fmod.Tensor, aten.fmod.Scalar)(partial(_divided, "fmod"))


def _require_nonzero_divisor(compute: torch.dtype, divisor: Operand) -> None:
    """Integer division by zero raises in eager: loops take only a divisor that is known not to be."""
    if compute.is_floating_point:
        return
    if compute == torch.bool:
        raise NoLowering("division of bool")
    if isinstance(divisor, int) and divisor != 0:
        return
    if isinstance(divisor, sympy.Expr) and divisor.is_positive:
        return
    raise NoLowering("integer division by a value that may be zero")


# -- powers ----------------------------------------------------------------------------------------------


@register_lowering(aten.square.default)
def square(context: LoweringContext, tensor: TensorValue) -> TensorValue:
    if tensor.dtype == torch.bool:
        raise NoLowering("square of bool")
    return elementwise(context, [tensor], D, lambda ops, x: ops.mul(x, x))


@register_lowering(aten.pow.Tensor_Scalar, aten.pow.Tensor_Tensor, aten.pow.Scalar)
def power(context: LoweringContext, base: Operand, exponent: Operand) -> TensorValue:
    compute, _ = promote([base, exponent], D)
    if compute == torch.bool:
        raise NoLowering("pow of bool")
    if isinstance(exponent, int | float) and not isinstance(exponent, bool):
        special = _special_power(exponent, compute, roots=not _is_half_on_cpu(base))
        if special is not None:
            return _fixed_power(context, base, exponent, special)
    if not compute.is_floating_point:
        raise NoLowering("integer power")
    if isinstance(exponent, SizeFloat):
        raise NoLowering("power that varies: eager has formulas for some")
    return elementwise(context, [base, exponent], D, lambda ops, a, b: ops.pow(a, b), costly=True)


def _is_half_on_cpu(base: Operand) -> bool:
    return (
        isinstance(base, TensorValue) and base.dtype == torch.float16 and base.device.type == "cpu"
    )


def _fixed_power(
    context: LoweringContext, base: Operand, exponent: int | float, formula: Any
) -> TensorValue:
    """``formula`` of the base, which is converted first where the exponent promotes it."""
    return elementwise(
        context, [base, exponent], D, lambda ops, a, b: formula(ops, a), costly=True, instructions=2
    )


def _special_power(exponent: int | float, compute: torch.dtype, *, roots: bool) -> Any:
    """The formulas that eager uses for these exponents, None for another exponent.

    ``roots``: among them square roots, which differ from powers at -0 and -inf; not for float16 on the CPU.
    """
    if exponent == 0:
        return lambda ops, x: ops.number(1, ops.dtype_of(x))
    if exponent == 1:
        return lambda ops, x: x
    if exponent == 2:
        return lambda ops, x: ops.mul(x, x)
    if exponent == 3:
        return lambda ops, x: ops.mul(ops.mul(x, x), x)
    if compute.is_floating_point:
        if exponent == 0.5 and roots:
            return lambda ops, x: ops.sqrt(x)
        if exponent == -0.5 and roots:
            return lambda ops, x: ops.rsqrt(x)
        if exponent == -1:
            return lambda ops, x: ops.reciprocal(x)
        if exponent == -2:
            return lambda ops, x: ops.reciprocal(ops.mul(x, x))
        return None
    if isinstance(exponent, int) and 3 < exponent <= 64:
        return lambda ops, x: _integer_power(ops, x, exponent)
    return None


def _integer_power(ops: BodyRecorder, x: Value, exponent: int) -> Value:
    """By repeated squaring; integer products wrap, so their order doesn't matter."""
    result: Value | None = None
    square_: Value = x
    while exponent:
        if exponent & 1:
            result = square_ if result is None else ops.mul(result, square_)
        exponent >>= 1
        if exponent:
            square_ = ops.mul(square_, square_)
    assert result is not None
    return result
