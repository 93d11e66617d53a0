"""What is known of the masks of attention: which rows they hide wholly, and whether they are causal.

The softmax of a row whose scores are all minus infinity is NaN; the library's attention gives zeros there.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.fx

from weft_loop_ir.rewriting.constant_values import ConstantValues
from weft_loop_ir.rewriting.fakes import source_of

aten = torch.ops.aten


def hides_rows(value: torch.Tensor) -> bool:
    """Whether a row of a mask (bool, or what is added) hides all keys."""
    visible = value if value.dtype == torch.bool else value != -math.inf
    return not bool(visible.any(-1).all())


def is_causal(value: torch.Tensor) -> bool:
    """Whether a mask lets a query see just the keys up to its own position."""
    if value.dim() < 2 or value.shape[-1] != value.shape[-2] or value.shape[-1] < 2:
        return False
    visible = value if value.dtype == torch.bool else value == 0
    if not bool((visible == torch.ones_like(visible).tril()).all()):
        return False
    return value.dtype == torch.bool or bool((value[~visible] <= lowest(value.dtype)).all())


def hides_nothing(value: torch.Tensor) -> bool:
    """Whether a mask changes no score."""
    return bool(value.all() if value.dtype == torch.bool else (value == 0).all())


def lowest(dtype: torch.dtype) -> float:
    """The least finite number: in a sum with it every score is lost, beside any other it has no weight."""
    return torch.finfo(dtype).min


# ---- finite values ---------------------------------------------------------------------------------------


def is_finite(node: Any, known: ConstantValues) -> bool:
    """Whether every element is proven to be a finite number, of what is made by :data:`FINITE`."""
    number = known.number(node)
    if number is not None:
        return math.isfinite(number)
    if not isinstance(node, torch.fx.Node):
        return False
    value = known.tensor(node)
    if value is not None:
        return bool(torch.isfinite(value).all())
    operands = FINITE.get(node.target)
    return operands is not None and all(is_finite(o, known) for o in operands(node))


def _first(node: torch.fx.Node) -> tuple[Any, ...]:
    return node.args[:1]


def _chosen(node: torch.fx.Node) -> tuple[Any, ...]:
    return node.args[1:3]


def _converted(node: torch.fx.Node) -> tuple[Any, ...]:
    """The operand of a conversion that keeps finite numbers finite; something unknown for another."""
    source = source_of(node)
    before, after = source.meta["val"].dtype, node.meta["val"].dtype
    if before == torch.bool:
        return ()
    if not before.is_floating_point or not after.is_floating_point:
        return (None,)
    return (source,) if torch.finfo(after).max >= torch.finfo(before).max else (None,)


FINITE: dict[Any, Callable[[torch.fx.Node], tuple[Any, ...]]] = {
    aten.where.self: _chosen,
    aten.where.ScalarOther: _chosen,
    aten.where.ScalarSelf: _chosen,
    aten.where.Scalar: _chosen,
    aten._to_copy.default: _converted,
    **dict.fromkeys(
        (
            aten.expand.default,
            aten.view.default,
            aten._unsafe_view.default,
            aten.unsqueeze.default,
            aten.squeeze.dim,
            aten.slice.Tensor,
            aten.select.int,
            aten.transpose.int,
            aten.permute.default,
            aten.clone.default,
            aten.detach.default,
            aten.alias.default,
        ),
        _first,
    ),
}
"""Operators to those operands of which their results' elements are taken."""
