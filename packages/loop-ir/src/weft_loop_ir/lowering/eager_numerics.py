"""Which operators loops compute to the last bit as eager's kernels do.

Those that IEEE 754 rounds correctly (or that don't round) have one result, whoever computes it; eager rounds
it to the result's dtype after each operator, and so do bodies (``round_low_precision``).  Functions such as
``exp`` have many: eager's come from SLEEF or from a library.  Sums depend on their order.  What is not listed
here is called as it is, with ``LoweringOptions(eager_numerics=True)``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from weft_loop_ir._torch import OpOverload
from weft_loop_ir.lowering.registry import overload
from weft_loop_ir.lowering.tensors import TensorValue

MOVED = """
    clone lift_fresh_copy _to_copy copy contiguous where.self where.ScalarOther where.ScalarSelf
    masked_fill.Scalar masked_fill.Tensor view.dtype cat stack constant_pad_nd flip roll repeat tril triu
    slice_scatter select_scatter diagonal_scatter as_strided_scatter select_copy.int slice_copy.Tensor
    view_copy expand_copy permute_copy t_copy transpose_copy.int unsqueeze_copy squeeze_copy
    squeeze_copy.dim squeeze_copy.dims diagonal_copy detach_copy alias_copy unfold_copy narrow_copy
    embedding gather index_select index.Tensor _unsafe_index.Tensor prims.copy_strided
"""
"""Elements are moved or chosen."""

FILLED = """
    fill.Scalar fill.Tensor full full_like new_full new_ones new_zeros ones ones_like zeros zeros_like
    scalar_tensor empty.memory_format empty_like new_empty empty_strided new_empty_strided empty_permuted
    eye eye.m
"""

ROUNDED = """
    abs neg relu sign sgn signbit reciprocal square
    mul.Tensor mul.Scalar div.Tensor div.Scalar true_divide.Tensor
    ceil floor trunc round leaky_relu threshold threshold_backward
    logical_not logical_and logical_or logical_xor isnan isinf isposinf isneginf
    eq.Tensor eq.Scalar ne.Tensor ne.Scalar lt.Tensor lt.Scalar le.Tensor le.Scalar
    gt.Tensor gt.Scalar ge.Tensor ge.Scalar
    bitwise_not bitwise_and.Tensor bitwise_and.Scalar bitwise_and.Scalar_Tensor bitwise_or.Tensor
    bitwise_or.Scalar bitwise_or.Scalar_Tensor bitwise_xor.Tensor bitwise_xor.Scalar
    bitwise_xor.Scalar_Tensor __and__.Tensor __and__.Scalar __or__.Tensor __or__.Scalar __xor__.Tensor
    __xor__.Scalar
"""
"""One correctly rounded operation, or comparisons and bits; not ``sqrt``, which eager has MKL round."""

LIBRARY = """
    mm addmm bmm baddbmm convolution convolution_backward addmv mv dot linear matmul _int_mm
    scaled_dot_product_attention _scaled_dot_product_flash_attention_for_cpu
"""
"""Rules that call eager's operator, with ``inlined_matmuls`` at 0."""


def _adds_whole(arguments: Any, keywords: Mapping[str, Any]) -> bool:
    """Sums without a factor: eager fuses ``alpha`` in where vectors are full (``fma``)."""
    alpha = keywords.get("alpha", arguments[2] if len(arguments) > 2 else 1)
    return not isinstance(alpha, torch.SymInt | torch.SymFloat) and bool(alpha == 1)


def _is_squared(arguments: Any, keywords: Mapping[str, Any]) -> bool:
    return isinstance(arguments[1], int | float) and arguments[1] == 2


def _has_no_zero(arguments: Any, keywords: Mapping[str, Any]) -> bool:
    """Bounds that are numbers, none of them zero: of two zeros eager takes the one or the other."""
    bounds = [*arguments[1:], *keywords.values()]
    return all(b is None or (isinstance(b, int | float) and b != 0) for b in bounds)


def _never(arguments: Any, keywords: Mapping[str, Any]) -> bool:
    """Of two zeros eager takes the one or the other, by where in a vector they are."""
    return False


Condition = Callable[[Any, Mapping[str, Any]], bool]

CONDITIONS: Mapping[str, Condition] = {
    "add.Tensor": _adds_whole,
    "add.Scalar": _adds_whole,
    "sub.Tensor": _adds_whole,
    "sub.Scalar": _adds_whole,
    "rsub.Tensor": _adds_whole,
    "rsub.Scalar": _adds_whole,
    "pow.Tensor_Scalar": _is_squared,
    "clamp": _has_no_zero,
    "clamp_min": _has_no_zero,
    "clamp_max": _has_no_zero,
    "hardtanh": _has_no_zero,
    "maximum": _never,
    "minimum": _never,
    "clamp.Tensor": _never,
    "clamp_min.Tensor": _never,
    "clamp_max.Tensor": _never,
}
"""Operators that are so of integers, and of floats with some arguments."""


def _operators() -> dict[OpOverload, Condition | None]:
    names: dict[str, Condition | None] = dict.fromkeys(
        " ".join((MOVED, FILLED, ROUNDED, LIBRARY)).split()
    )
    names |= CONDITIONS
    found = {overload(name): condition for name, condition in names.items()}
    return {operator: condition for operator, condition in found.items() if operator is not None}


_OPERATORS = _operators()


def is_eagers(operator: OpOverload, arguments: Any, keywords: Mapping[str, Any]) -> bool:
    """Whether the lowering rule of ``operator`` gives eager's bits for such arguments."""
    if operator not in _OPERATORS:
        return False
    condition = _OPERATORS[operator]
    if condition is None:
        return True
    integers = all(
        not a.dtype.is_floating_point for a in arguments if isinstance(a, TensorValue)
    ) and not any(isinstance(a, float) for a in arguments)
    return integers or condition(arguments, keywords)
