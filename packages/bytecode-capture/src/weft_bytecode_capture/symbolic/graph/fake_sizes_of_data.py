"""What operators give for sizes that depend on data, where torch's meta functions ask for their values.

Torch has answers of its own since 2.13; before, a write to rows whose number data gives would end the graph,
and a slice of them would have a new symbol for its size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..._torch import OpOverload, checked_expand
from ..._torch.fakes import FAKES_TAKE_SIZES_OF_DATA
from ..._torch.symbols import guard_or_false, has_unbacked_symbols

aten = torch.ops.aten

Rule = Callable[..., torch.Tensor | None]
"""Gives what an operator gives of its arguments, None where torch's own answer is as good."""


def _copy(tensor: torch.Tensor, source: Any, non_blocking: bool = False) -> torch.Tensor | None:
    if not isinstance(source, torch.Tensor):
        return None
    checked_expand(source.to(tensor, non_blocking), tensor.shape)
    return tensor


def _with_same_strides(tensor: torch.Tensor, *rest: Any, **others: Any) -> torch.Tensor | None:
    if any(guard_or_false(stride == 0) for stride in tensor.stride()):
        return None
    return tensor.new_empty_strided(tensor.shape, tensor.stride())


def _slice(
    tensor: torch.Tensor, dim: int = 0, start: Any = None, end: Any = None, step: Any = 1
) -> torch.Tensor | None:
    if not -tensor.dim() <= dim < tensor.dim() or not guard_or_false(step > 0):
        return None  # an error
    size: Any = tensor.shape[dim]
    first, last = _position(start, size, 0), _position(end, size, size)
    if first is None or last is None:
        return None
    length = last - first if guard_or_false(last >= first) else torch.sym_max(last - first, 0)
    sizes: list[Any] = list(tensor.shape)
    strides: list[Any] = list(tensor.stride())
    offset = tensor.storage_offset() + first * strides[dim]
    sizes[dim], strides[dim] = (length + step - 1) // step, strides[dim] * step
    return tensor.as_strided(sizes, strides, offset)


def _position(given: Any, size: Any, otherwise: Any) -> Any:
    """The place from 0 to ``size`` that a slice's bound means; None where its sign isn't known."""
    if given is None:
        return otherwise
    if guard_or_false(given >= 0):
        return given if guard_or_false(given <= size) else torch.sym_min(given, size)
    if guard_or_false(given < 0):
        return torch.sym_max(given + size, 0)
    return None


RULES: dict[OpOverload, Rule] = (
    {}
    if FAKES_TAKE_SIZES_OF_DATA
    else {
        aten.copy_.default: _copy,
        aten.select_scatter.default: _with_same_strides,
        aten.slice_scatter.default: _with_same_strides,
        aten.slice.Tensor: _slice,
    }
)


def rule_for(operator: Any, args: Sequence[Any]) -> Rule | None:
    """The rule that takes the place of torch's, None where sizes are known."""
    rule = RULES.get(operator)
    if rule is None or not any(_depends_on_data(argument) for argument in args):
        return None
    return rule


def _depends_on_data(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return any(_depends_on_data(n) for n in (*value.shape, *value.stride()))
    return isinstance(value, torch.SymInt) and bool(has_unbacked_symbols(value))
