"""Operators that do something else with a dimension of one element.

They leave it out (``nonzero().squeeze()``), or give a view where they copy several (``nonzero().flatten()``):
what is written to a view is seen in its base.

Shape rules take a size that depends on data for another number than one.  That is checked in each call, and a
call where it does not hold runs as it was written.  Where a check of the program's makes the size one
(``torch._check(found.shape[0] == 1)``), the only element is selected.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from functools import partial
from typing import Any

import torch

from ._torch import (
    OpOverload,
    data_dependent_symbols,
    is_data_dependent,
    is_zero,
    known_equal,
    with_value,
)
from .unsupported import Unsupported

_LEAVE_OUT = frozenset({"aten::squeeze", "aten::squeeze_", "aten::squeeze_copy"})


def check_sizes_of_one(
    operator: OpOverload, arguments: Sequence[Any], keywords: Mapping[str, Any]
) -> Callable[[torch.Tensor], torch.Tensor] | None:
    """Rely on sizes that depend on data not being one where ``operator`` would do something else then.

    Gives what takes the operator's place, of its tensor, where such sizes are known to be one.
    """
    if operator is torch.ops.aten.clone.default:
        if keywords.get("memory_format") is torch.contiguous_format:
            _check_copied(arguments[0])
        return None
    if operator._schema.name not in _LEAVE_OUT:
        return None
    tensor, dims = arguments[0], arguments[1:]
    given = dims[0] if dims else range(tensor.dim())
    given = [given] if isinstance(given, int) else given
    if not all(-tensor.dim() <= dim < tensor.dim() for dim in given):
        return None
    places = {dim % tensor.dim() for dim in given}
    known = {dim for dim in places if _is_known_one(tensor.shape[dim])}
    for dim in places - known:
        if is_data_dependent(tensor.shape[dim]):
            torch._check(tensor.shape[dim] != 1)
    return partial(_select, operator, known, places - known) if known else None


def _is_known_one(size: Any) -> bool:
    return is_data_dependent(size) and known_equal(size, 1)


def _select(
    operator: OpOverload, known: Set[int], others: Set[int], tensor: torch.Tensor
) -> torch.Tensor:
    """The tensor without the dims that are known to be one, and without the others if they are."""
    if operator._schema.name == "aten::squeeze_":
        raise Unsupported("change of layout by a size that data decides", str(operator))
    for dim in sorted(known, reverse=True):
        tensor = torch.ops.aten.select.int(tensor, dim, 0)
    rest = [dim - sum(one < dim for one in known) for dim in sorted(others)]
    is_copied = operator._schema.name == "aten::squeeze_copy"
    tensor = torch.ops.aten.squeeze.dims(tensor, rest) if rest else tensor
    return torch.ops.aten.clone.default(tensor) if is_copied else tensor


def _check_copied(tensor: torch.Tensor) -> None:
    """``contiguous`` and ``reshape`` copy the tensor, but if a size that data decides is one."""
    numbers = (*tensor.shape, *tensor.stride())
    for symbol, number in data_dependent_symbols(tensor.shape).items():
        for value in _VALUES:
            put_in = [with_value(n, symbol, value) for n in numbers]
            sizes, strides = put_in[: tensor.dim()], put_in[tensor.dim() :]
            is_one = any(
                size == 1 and not known_equal(given, 1)
                for size, given in zip(sizes, tensor.shape, strict=True)
            )
            if is_one and _is_in_order(sizes, strides):
                torch._check(number != value)


_VALUES = (1, 2, 3)
"""What a number that depends on data may be where a size is one: ``x[mask][1:]`` has two found elements."""


def _is_in_order(sizes: Sequence[Any], strides: Sequence[Any]) -> bool:
    """Whether the elements follow one another at one distance: then they have a flat view."""
    expected: Any = None
    for size, stride in zip(reversed(sizes), reversed(strides), strict=True):
        if size == 1:
            continue
        if expected is not None and not is_zero(stride - expected):
            return False
        expected = stride * size
    return True
