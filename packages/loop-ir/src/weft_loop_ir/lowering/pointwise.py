"""Pointwise operators: one table of those that are one operation, and rules for the rest."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from weft_loop_ir._torch import OpOverload
from weft_loop_ir.bodies import Cost, Value, operation_named
from weft_loop_ir.lowering.context import LoweringContext, compute_dtype
from weft_loop_ir.lowering.promotion import (
    Operand,
    Promotion,
    broadcast_size,
    map_values,
    promote,
    read,
    require_float,
    result_type,
    tensors_of,
)
from weft_loop_ir.lowering.registry import NoLowering, overload, register_lowering
from weft_loop_ir.lowering.tensors import Index, TensorValue
from weft_loop_ir.recording import BodyRecorder

aten = torch.ops.aten
Formula = Callable[..., Value]
"""``formula(ops, *values)`` on values of the compute dtype."""

D = Promotion.DEFAULT
F = Promotion.INT_TO_FLOAT
B = Promotion.TO_BOOL


def elementwise(
    context: LoweringContext,
    operands: Sequence[Operand],
    kind: Promotion,
    formula: Formula,
    *,
    instructions: int = 1,
    costly: bool = False,
    result: torch.dtype | None = None,
    rounds_numbers: bool | None = None,
) -> TensorValue:
    """The lazy tensor of ``formula`` over broadcast operands, with eager's promotion.

    ``result`` overrides the result's dtype.  Beside tensors of half precision eager rounds others to that
    first; with ``rounds_numbers`` (the default in comparisons) numbers and tensors without dimensions too.
    """
    tensors = tensors_of(operands)
    compute, promoted = promote(operands, kind)
    target = promoted if result is None else result
    size = broadcast_size([t.size for t in tensors])
    rounds = kind is Promotion.TO_BOOL if rounds_numbers is None else rounds_numbers
    common = promoted if kind is D else result_type(operands)

    def function(ops: BodyRecorder, index: Index) -> Value:
        values = []
        for operand in operands:
            rounded = rounds or (isinstance(operand, TensorValue) and bool(operand.size))
            values.append(read(ops, operand, index, size, compute, common if rounded else compute))
        return ops.to_dtype(formula(ops, *values), target)

    device = context.meta_device()
    return context.pointwise(size, target, device, function, tensors, instructions, costly)


def register_formula(
    *overloads: OpOverload,
    kind: Promotion = D,
    operands: int = 1,
    floats: bool = False,
    bools: bool = True,
    instructions: int = 1,
    costly: bool = False,
) -> Callable[[Formula], Formula]:
    """Make the decorated ``formula(ops, *values, *numbers)`` the rule of ``overloads``.

    The first ``operands`` arguments are broadcast, the others are numbers of the formula.  It is refused on
    integers where it is of ``floats``, and in bool without ``bools``.
    """

    def register(formula: Formula) -> Formula:
        @register_lowering(*overloads)
        def rule(context: LoweringContext, *arguments: Any, **numbers: Any) -> TensorValue:
            values, rest = arguments[:operands], arguments[operands:]
            if floats:
                for tensor in tensors_of(values):
                    require_float(tensor)
            elif not bools and promote(values, kind)[0] == torch.bool:
                raise NoLowering(f"{overloads[0].overloadpacket.__name__} of bool")

            def applied(ops: BodyRecorder, *elements: Value) -> Value:
                return formula(ops, *elements, *rest, **numbers)

            return elementwise(
                context, values, kind, applied, instructions=instructions, costly=costly
            )

        return formula

    return register


def _operation(name: str) -> Formula:
    def formula(ops: BodyRecorder, *values: Value) -> Value:
        return getattr(ops, name)(*values)  # type: ignore[no-any-return]

    return formula


TABLE = {
    D: """
        abs neg relu sign sgn:sign bitwise_not hypot nextafter maximum minimum
        mul.Tensor mul.Scalar bitwise_and.Tensor bitwise_and.Scalar bitwise_and.Scalar_Tensor
        bitwise_or.Tensor bitwise_or.Scalar bitwise_or.Scalar_Tensor
        bitwise_xor.Tensor bitwise_xor.Scalar bitwise_xor.Scalar_Tensor
        __and__.Tensor:bitwise_and __and__.Scalar:bitwise_and
        __or__.Tensor:bitwise_or __or__.Scalar:bitwise_or
        __xor__.Tensor:bitwise_xor __xor__.Scalar:bitwise_xor
        __lshift__.Tensor:left_shift __lshift__.Scalar:left_shift
        __rshift__.Tensor:right_shift __rshift__.Scalar:right_shift
        bitwise_left_shift.Tensor:left_shift bitwise_left_shift.Tensor_Scalar:left_shift
        bitwise_right_shift.Tensor:right_shift bitwise_right_shift.Tensor_Scalar:right_shift
    """,
    F: """
        reciprocal sigmoid sqrt rsqrt exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan
        sinh cosh tanh asinh acosh atanh erf erfc erfinv lgamma digamma atan2
        copysign.Tensor copysign.Scalar div.Tensor:truediv div.Scalar:truediv
        true_divide.Tensor:truediv
    """,
    B: """
        logical_not isinf isnan signbit logical_and logical_or logical_xor
        eq.Tensor eq.Scalar ne.Tensor ne.Scalar lt.Tensor lt.Scalar le.Tensor le.Scalar
        gt.Tensor gt.Scalar ge.Tensor ge.Scalar
    """,
}
"""By promotion, ATen overloads; the operation stands behind a colon where it has another name."""


def _register_table() -> None:
    for kind, names in TABLE.items():
        for name, _, operation in (entry.partition(":") for entry in names.split()):
            operator = overload(name)
            if operator is not None:
                rule = _table_rule(operation or name.partition(".")[0], kind)
                register_lowering(operator)(rule)


def _table_rule(operation: str, kind: Promotion) -> Callable[..., TensorValue]:
    formula = _operation(operation)
    on_integers = ON_INTEGERS.get(operation, formula)
    on_bools = ON_BOOLS.get(operation, on_integers)
    costly = operation_named(operation).cost > Cost.SIMPLE

    def rule(context: LoweringContext, *operands: Operand) -> TensorValue:
        if operation == "nextafter" and len(set(promote(operands, kind))) > 1:
            raise NoLowering("next number of a dtype that is computed in a wider one")
        chosen = formula
        if on_bools is not formula:
            compute, _ = promote(operands, kind)
            if compute == torch.bool:
                chosen = on_bools
            elif not compute.is_floating_point:
                chosen = on_integers
        return elementwise(context, operands, kind, chosen, costly=costly)

    return rule


def _identity(ops: BodyRecorder, value: Value) -> Value:
    return value


def _constant_false(ops: BodyRecorder, value: Value) -> Value:
    return ops.constant(False, torch.bool)


def _refused_on_bools(ops: BodyRecorder, value: Value) -> Value:
    raise NoLowering("an operation that bools don't have")


ON_INTEGERS: dict[str, Formula] = {"isnan": _constant_false, "isinf": _constant_false}
ON_BOOLS: dict[str, Formula] = {
    "mul": _operation("logical_and"),
    "maximum": _operation("logical_or"),
    "minimum": _operation("logical_and"),
    "sign": _identity,
    "abs": _refused_on_bools,
}
"""What operations are on dtypes for which they aren't their own."""

_register_table()


def _added(
    operation: str, context: LoweringContext, left: Operand, right: Operand, alpha: Any = 1
) -> TensorValue:
    """``left`` and ``right`` times ``alpha``, added or subtracted.

    Eager rounds numbers that it adds to tensors of half precision on the CPU.
    """
    compute, _ = promote([left, right], D)
    if compute == torch.bool:
        if alpha != 1 or operation != "add":
            raise NoLowering(f"{operation} of bool")
        return elementwise(context, [left, right], D, _operation("logical_or"))

    def formula(ops: BodyRecorder, a: Value, b: Value) -> Value:
        return _operation(operation)(ops, a, b if alpha == 1 else ops.mul(b, alpha))

    rounds = context.meta_device().type == "cpu"
    return elementwise(context, [left, right], D, formula, rounds_numbers=rounds)


@register_lowering(aten.rsub.Tensor, aten.rsub.Scalar)
def rsub(context: LoweringContext, left: Operand, right: Operand, alpha: Any = 1) -> TensorValue:
    return _added("sub", context, right, left, alpha)


for _name in ("add", "sub"):
    _packet = getattr(aten, _name)
    register_lowering(_packet.Tensor, _packet.Scalar)(functools.partial(_added, _name))


@register_lowering(aten.where.self, aten.where.ScalarOther, aten.where.ScalarSelf)
def where(
    context: LoweringContext, condition: TensorValue, value: Operand, other: Operand
) -> TensorValue:
    compute, target = promote([value, other], D)
    return _picked(context, [condition, value, other], compute, target)


def _picked(
    context: LoweringContext, operands: Sequence[Operand], compute: torch.dtype, target: torch.dtype
) -> TensorValue:
    """``where`` of a condition and two values, which are read in ``compute``."""
    tensors = tensors_of(operands)
    size = broadcast_size([t.size for t in tensors])
    dtypes = (torch.bool, compute, compute)

    def function(ops: BodyRecorder, index: Index) -> Value:
        values = [read(ops, o, index, size, d) for o, d in zip(operands, dtypes, strict=True)]
        return ops.to_dtype(ops.where(*values), target)

    return context.pointwise(size, target, context.meta_device(), function, tensors)


@register_lowering(aten.masked_fill.Scalar, aten.masked_fill.Tensor)
def masked_fill(
    context: LoweringContext, tensor: TensorValue, mask: TensorValue, fill: Operand
) -> TensorValue:
    compute = compute_dtype(tensor.dtype)
    return _picked(context, [mask, fill, tensor], compute, tensor.dtype)


def convert(context: LoweringContext, tensor: TensorValue, dtype: torch.dtype) -> TensorValue:
    """A lazy copy converted to ``dtype``."""

    return map_values(context, [tensor], dtype, lambda ops, v: v)


@register_lowering(aten._to_copy.default)
def to_copy(
    context: LoweringContext,
    tensor: TensorValue,
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
    non_blocking: bool = False,
    memory_format: torch.memory_format | None = None,
) -> TensorValue:
    if device is not None and torch.device(device) != tensor.device:
        raise NoLowering("copy between devices")
    return convert(context, tensor, tensor.dtype if dtype is None else dtype)


@register_lowering(aten.clone.default, aten.lift_fresh_copy.default)
def clone(
    context: LoweringContext,
    tensor: TensorValue,
    *,
    memory_format: torch.memory_format | None = None,
) -> TensorValue:
    return convert(context, tensor, tensor.dtype)


@register_lowering(aten.copy.default)
def copy(
    context: LoweringContext, target: TensorValue, source: TensorValue, non_blocking: bool = False
) -> TensorValue:
    if target.device != source.device:
        raise NoLowering("copy between devices")

    def function(ops: BodyRecorder, index: Index) -> Value:
        return read(ops, source, index, target.size, target.dtype)

    return context.result(function, [source])


@register_lowering(aten.view.dtype)
def view_dtype(context: LoweringContext, tensor: TensorValue, dtype: torch.dtype) -> TensorValue:
    if tensor.dtype == dtype:
        return tensor
    if dtype.itemsize != tensor.dtype.itemsize or torch.bool in (dtype, tensor.dtype):
        raise NoLowering("a view as elements of another width")
    return map_values(context, [tensor], dtype, lambda ops, v: ops.to_dtype_bitcast(v, dtype))
