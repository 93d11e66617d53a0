"""Operands that an operator refuses in eager and its fake lets pass: dtypes, and what other files check.

Later stages would compute with them.  Found by calling each operator with one operand of another dtype, on
torch 2.11 and 2.13.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ._torch import OpOverload
from .refused_by_kernels import check_by_kernel
from .refused_shapes import check_shapes
from .tensor_ssa.functional_counterparts import functional_counterpart, written_arguments
from .unsupported import Unsupported

# Names without the final "_" of operators in place.
_ONE_DTYPE: dict[str, tuple[int, ...]] = {
    "aten::mm": (0, 1),
    "aten::bmm": (0, 1),
    "aten::addmm": (0, 1, 2),
    "aten::addbmm": (0, 1, 2),
    "aten::baddbmm": (0, 1, 2),
    "aten::mv": (0, 1),
    "aten::addmv": (0, 1, 2),
    "aten::dot": (0, 1),
    "aten::linalg_cross": (0, 1),
    "aten::heaviside": (0, 1),
    "aten::binary_cross_entropy": (0, 1),
    "aten::index_put": (0, 2),
    "aten::index_copy": (0, 3),
    "aten::index_add": (0, 3),
}
"""The places of operands that must have one dtype."""

_WIDER_STATISTICS: dict[str, tuple[int, ...]] = {
    "aten::native_layer_norm": (0, 2, 3),
    "aten::native_group_norm": (0, 1, 2),
    "aten::native_batch_norm": (0, 1, 2, 3, 4),
    "aten::_native_batch_norm_legit": (0, 1, 2, 3, 4),
    "aten::_native_batch_norm_legit_no_training": (0, 1, 2, 3, 4),
}
"""The same, but beside values of 16 bits the others may be of float32."""

_SLOPES: dict[str, tuple[str, int, float]] = {
    "aten::elu_": ("alpha", 1, 1.0),
    "aten::celu_": ("alpha", 1, 1.0),
    "aten::leaky_relu_": ("negative_slope", 1, 0.01),
}
"""Of activations in place: the slope by name and place, and what it is by default.

Their gradients come from the results, which don't say on which side the operand was if a slope is negative.
"""

_NO_INTEGERS = frozenset(
    f"aten::{name}"
    for name in ("nll_loss_forward", "log_sigmoid_forward", "glu", "huber_loss", "lerp")
)
"""Operators whose first operand is a floating-point tensor."""


def check_operands(
    operator: OpOverload, arguments: Sequence[Any], keywords: Mapping[str, Any]
) -> None:
    """Raise :class:`Unsupported` where eager raises an error for fake ``arguments``, whatever their values.

    The graph then runs as it was captured, so that the error is eager's own.
    """
    check_shapes(operator, arguments, keywords)
    name = operator._schema.name.removesuffix("_")
    if (
        _differ(_ONE_DTYPE.get(name, ()), arguments, None)
        or _differ(_WIDER_STATISTICS.get(name, ()), arguments, torch.float32)
        or (name in _NO_INTEGERS and not _is_inexact(arguments[0]))
        or _cannot_hold_result(operator, arguments, keywords)
    ):
        raise Unsupported(
            "operands of dtypes that the operator refuses",
            str(operator),
            "give it tensors of the dtypes that eager takes",
        )
    _check_slope(operator, arguments, keywords)
    check_by_kernel(operator, arguments, keywords)


def _check_slope(
    operator: OpOverload, arguments: Sequence[Any], keywords: Mapping[str, Any]
) -> None:
    """Refuse what raises in backward: an activation in place, of a negative slope, that has gradients."""
    rule = _SLOPES.get(operator._schema.name)
    if rule is None or not (torch.is_grad_enabled() and arguments[0].requires_grad):
        return
    name, place, default = rule
    slope = arguments[place] if place < len(arguments) else keywords.get(name, default)
    if slope < 0:
        raise Unsupported("derivative whose formula raises", f"{operator} by a slope of {slope}")


def _differ(
    places: Sequence[int], arguments: Sequence[Any], beside_short: torch.dtype | None
) -> bool:
    """Whether operands differ in dtype; beside 16 bits those of ``beside_short`` are as good."""
    operands = [arguments[place] for place in places if place < len(arguments)]
    dtypes = [operand.dtype for operand in operands if isinstance(operand, torch.Tensor)]
    if not dtypes:
        return False
    allowed = {dtypes[0]}
    if beside_short is not None and dtypes[0] in (torch.float16, torch.bfloat16):
        allowed.add(beside_short)
    return not allowed.issuperset(dtypes)


def _is_inexact(operand: Any) -> bool:
    return (
        not isinstance(operand, torch.Tensor) or operand.is_floating_point() or operand.is_complex()
    )


def _cannot_hold_result(
    operator: OpOverload, arguments: Sequence[Any], keywords: Mapping[str, Any]
) -> bool:
    """Whether an operator in place has a result that integers cannot hold, as ``mul_(1.5)`` has."""
    if torch.Tag.pointwise not in operator.tags or not written_arguments(operator):
        return False
    target = arguments[0]
    if _is_inexact(target):
        return False
    counterpart = functional_counterpart(operator)
    if counterpart is None:
        return False
    result = counterpart(*arguments, **keywords)
    return isinstance(result, torch.Tensor) and not torch.can_cast(result.dtype, target.dtype)
