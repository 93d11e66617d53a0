"""Numbers that eager refuses beside a dtype that cannot hold them: ``masked_fill(mask, -1e9)`` of float16.

Fakes let them pass, and later stages would compute with infinity, or with what is left of an integer.  Found
by calling each operator with numbers beyond each dtype, on torch 2.11 and 2.13.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ._torch import OpOverload, is_data_dependent, schema_arguments
from .unsupported import Unsupported

# Names without the final "_" of operators in place.
_FILLS: dict[str, tuple[str, ...]] = {
    "aten::fill": ("value",),
    "aten::full": ("fill_value",),
    "aten::full_like": ("fill_value",),
    "aten::new_full": ("fill_value",),
    "aten::scalar_tensor": ("s",),
}
"""Arguments that have to fit the result's dtype, but for halves of a single element."""

_AS_RESULT: dict[str, tuple[str, ...]] = {
    "aten::constant_pad_nd": ("value",),
    "aten::index_fill": ("value",),
    "aten::linspace": ("start", "end"),
    "aten::masked_fill": ("value",),
    "aten::scatter": ("value",),
    "aten::threshold": ("threshold", "value"),
}
"""Arguments that have to fit the result's dtype."""

_ARITHMETIC: dict[str, tuple[str, ...]] = {
    "aten::add": ("alpha",),
    "aten::clamp": ("min", "max"),
    "aten::clamp_max": ("max",),
    "aten::clamp_min": ("min",),
    "aten::hardtanh": ("min_val", "max_val"),
    "aten::pow": ("exponent",),
    "aten::rsub": ("alpha",),
    "aten::sub": ("alpha",),
}
"""The same on the CPU; a GPU computes halves in float32."""

_COMPUTED: dict[str, tuple[str, ...]] = {
    "aten::addcdiv": ("value",),
    "aten::addcmul": ("value",),
    "aten::elu": ("alpha", "scale", "input_scale"),
    "aten::leaky_relu": ("negative_slope",),
    "aten::lerp": ("weight",),
    "aten::softplus": ("beta", "threshold"),
}
"""Arguments that have to fit the dtype that is computed in: float32 for halves."""

_DIVISORS = {"aten::celu": "alpha"}
"""Arguments that kernels divide by, and refuse where they are 0; of a symbol that is guarded."""

_EVERY = _FILLS | _AS_RESULT | _ARITHMETIC | _COMPUTED

_NEGATED = frozenset({"aten::rsub", "aten::sub"})
"""What they convert is the negative of the number."""

_HALVES = (torch.float16, torch.bfloat16)
_GREATEST_SYMBOL = torch.iinfo(torch.int64).max
_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def _kind(number: Any) -> type | None:
    """The type of a number, or of what a symbol stands for."""
    symbols = {torch.SymInt: int, torch.SymFloat: float}
    return type(number) if isinstance(number, int | float) else symbols.get(type(number))


def check_numbers(
    operator: OpOverload, arguments: Sequence[Any], keywords: Mapping[str, Any], result: Any
) -> None:
    """Raise :class:`Unsupported` where eager raises an error for a number among the arguments.

    ``result`` is what the operator gives of fake arguments.  The graph then runs as it was captured, so that
    the error is eager's own.
    """
    name = operator._schema.name.removesuffix("_")
    checked = _EVERY.get(name)
    divisor = _DIVISORS.get(name)
    if (checked is None and divisor is None) or not isinstance(result, torch.Tensor):
        return
    names = (argument.name for argument in schema_arguments(operator))
    given = dict(zip(names, arguments, strict=False)) | dict(keywords)
    if divisor is not None and given.get(divisor, 1) == 0:
        raise Unsupported("operands that the operator refuses", f"{operator} by a {divisor} of 0")
    for argument in checked or ():
        number: Any = given.get(argument)
        kind = _kind(number)
        if kind is None:
            continue
        converted = -number if name in _NEGATED else number
        if not _fits(converted, *_limits(name, result, kind)):
            raise Unsupported(
                "number that a dtype cannot hold",
                f"{number} beside {result.dtype} in {operator}",
                "use numbers within the limits of torch.finfo(dtype), or torch.iinfo's",
            )


def _limits(name: str, result: torch.Tensor, kind: type) -> tuple[float, float]:
    """The least and the greatest number of the type ``kind`` that the operator called ``name`` takes."""
    dtype = result.dtype
    if dtype in _INTEGERS:
        most = torch.iinfo(dtype).max
        wraps = not dtype.is_signed and kind is int and name != "aten::constant_pad_nd"
        return (-most if wraps else torch.iinfo(dtype).min), most
    if dtype in _HALVES:
        is_single = isinstance(result.numel(), int) and result.numel() == 1
        if name in _FILLS and is_single:
            dtype = torch.float64
        elif name in _COMPUTED or (name in _ARITHMETIC and result.device.type != "cpu"):
            dtype = torch.float32
    elif dtype != torch.float32 or name == "aten::pow":
        dtype = torch.float64
    return torch.finfo(dtype).min, torch.finfo(dtype).max


def fits(name: str, tensor: torch.Tensor, value: torch.Tensor) -> torch.Tensor | None:
    """Whether the operator called ``name`` can convert a value; None where any value of its dtype fits."""
    if value.is_complex() or tensor.is_complex() or torch.bool in (value.dtype, tensor.dtype):
        return None
    span: torch.finfo | torch.iinfo
    if value.is_floating_point():
        numbers, span = value.to(torch.float64), torch.finfo(value.dtype)
        least, most = map(float, _limits(name, tensor, float))
        is_integer = not tensor.is_floating_point()
    else:
        numbers, span, is_integer = value.to(torch.int64), torch.iinfo(value.dtype), False
        least, most = _limits(name, tensor, int)
    if least <= span.min and span.max <= most and not is_integer:
        return None
    within = (numbers >= least) & (numbers <= most)
    return within if is_integer or not value.is_floating_point() else within | ~numbers.isfinite()


def _holds(bound: Any, *, of_integers: bool) -> bool:
    """A bound of a symbol, guarded; one of data is asserted, but where infinity and NaN are taken."""
    if not isinstance(bound, torch.SymBool) or not is_data_dependent(bound):
        return bool(bound)
    if of_integers or all(symbol.is_integer for symbol in bound.node.expr.free_symbols):
        torch._check(bound)
    return True


def _fits(number: Any, least: float, most: float) -> bool:
    """As c10 converts numbers: floats have infinities and NaN.  Of symbols, which have not, it is guarded."""
    if isinstance(number, torch.SymInt | torch.SymFloat):
        if isinstance(number, torch.SymInt) and most >= _GREATEST_SYMBOL:
            return True
        bounds = number >= least, number <= most
        return all(_holds(bound, of_integers=isinstance(most, int)) for bound in bounds)
    if not isinstance(most, int) and not math.isfinite(number):
        return True
    if isinstance(number, float):
        return float(least) <= number <= float(most)
    return bool(least <= number <= most)
