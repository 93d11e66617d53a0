"""Strides of what computes by element where a size is 0 or 1: eager's kernel is asked.

What computes by element lies as its operands do.  Where there is no element, kernels decide by other rules
than meta functions.  Of a dim of one element the stride does not say where elements lie, but decides whether
an operand is taken for contiguous or for channels-last: ``x * 2`` of a 38 x 1 matrix with strides (1, 38) has
these strides, ``x.relu()`` has (1, 1).  A program may read them, and ``roll`` tells an image by them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from ..._torch import OpOverload, pytree
from ..._torch.fakes import strides_of_kernel
from ..._torch.symbols import has_symbolic_layout, size_in_some_call

_FEW = 1 << 20
"""What operands may have of elements that a kernel is given to ask for strides."""

_MAX_ORDERED = 5
"""Dims of which every order is tried."""

aten = torch.ops.aten

_BY_PLACES = frozenset({aten.index.Tensor, aten.index_put.default})

_FURTHER = frozenset(
    {
        *(aten.floor_divide.default, aten.masked_fill.Tensor),  # not marked as by element
        *(aten.complex.default, aten.polar.default, aten.mse_loss.default, aten.huber_loss.default),
        *(aten.empty_like.default, aten.zeros_like.default, aten.ones_like.default),
        *(aten.fill.Scalar, aten.fill.Tensor, aten.zero.default),
        *(aten.full_like.default, aten.flip.default, aten.tril.default, aten.triu.default),
    }
    | {
        *(aten.roll.default, aten.index_add.default, aten.index_copy.default, aten.renorm.default),
        *(aten._log_softmax.default, aten._prelu_kernel.default, aten.sum.dim_IntList),
        aten.binary_cross_entropy_with_logits.default,
    }
    | _BY_PLACES
)
"""Operators that torch does not mark as computing by element, and whose results lie as those of such do,
or in rows where meta functions promise otherwise."""

_RANDOM = frozenset({aten.rand_like.default, aten.randn_like.default, aten.randint_like.default})
"""Operators whose results lie as those of ``empty_like``, which is asked: it draws no number."""

_MASKS = (torch.bool, torch.uint8)

Strides = tuple[Any, ...]


def may_have_other_strides(operator: Any, result: Any) -> bool:
    """Whether what torch's fake mode gives for an operator may lie otherwise than what a kernel gives."""
    if not isinstance(operator, OpOverload) or not isinstance(result, torch.Tensor):
        return False
    return (
        result.dim() > 1
        and result.device.type == "cpu"
        and result.layout is torch.strided
        and any(type(n) is int and n < 2 for n in result.shape)
        and (torch.Tag.pointwise in operator.tags or operator in _FURTHER | _RANDOM)
        and (torch.Tag.nondeterministic_seeded not in operator.tags or operator in _RANDOM)
        and not operator._schema.is_mutable
    )


def with_kernel_strides(
    operator: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], result: torch.Tensor
) -> torch.Tensor:
    """A fake result for which :func:`may_have_other_strides` holds, with eager's strides.

    The kernel computes nothing where a size is 0, and few numbers elsewhere.  Symbolic sizes are those of the
    call that is captured, sizes that depend on data those of any call.
    """
    leaves = pytree.tree_leaves((args, kwargs))
    tensors = [value for value in leaves if isinstance(value, torch.Tensor)]
    if operator in _BY_PLACES and any(x.dtype in _MASKS for x in tensors[1:]):
        return result
    if not all(x.device.type == "cpu" and x.layout is torch.strided for x in tensors):
        return result
    is_empty = any(type(n) is int and n == 0 for n in result.shape)
    if not is_empty and not any(_lies_oddly(x) for x in tensors):
        return result
    if any(math.prod(map(size_in_some_call, x.shape)) > _FEW for x in (result, *tensors)):
        return result
    if operator in _RANDOM:
        operator, args = aten.empty_like.default, args[:1]
    found = strides_of_kernel(operator, args, kwargs)
    promised = tuple(result.stride())
    if found is None or _in_some_call(promised) == found:
        return result
    strides: Strides | None = found
    if any(map(has_symbolic_layout, tensors)):
        alike = (s for s in _candidates(result, tensors) if _in_some_call(s) == found)
        strides = next(alike, None)
    return result if strides is None else result.new_empty_strided(result.shape, strides)


def _lies_oddly(tensor: torch.Tensor) -> bool:
    """Whether a dim of one element has a stride that neither a contiguous tensor's nor an image's has."""
    given = _in_some_call(tensor.stride())
    ones = [d for d, n in enumerate(tensor.shape) if type(n) is int and n == 1]
    orders = _usual_orders(tensor.dim())
    usual = [_in_some_call(_dense(tensor.shape, order)) for order in orders]
    return bool(ones) and all(any(given[d] != s[d] for d in ones) for s in usual)


def _usual_orders(rank: int) -> Iterator[list[int]]:
    """Dims from the fastest: contiguous, and channels-last of images."""
    yield list(range(rank))[::-1]
    if rank in (4, 5):
        yield [1, *range(2, rank)[::-1], 0]


def _dense(shape: Sequence[Any], order: Sequence[int]) -> Strides:
    """The strides of dims that follow one another in memory, the first of ``order`` the fastest."""
    strides: list[Any] = [1] * len(shape)
    step: Any = 1
    for d in order:
        strides[d] = step
        step = step * (1 if type(shape[d]) is int and shape[d] == 0 else shape[d])
    return tuple(strides)


def _candidates(result: torch.Tensor, operands: Sequence[torch.Tensor]) -> Iterator[Strides]:
    """Strides that the result may have, the likeliest first; they may be symbolic."""
    for operand in operands:
        if operand.dim() == result.dim():
            yield tuple(operand.stride())
    rank = result.dim()
    every = itertools.permutations(range(rank)) if rank <= _MAX_ORDERED else ()
    yield from (_dense(result.shape, order) for order in (*_usual_orders(rank), *every))


def _in_some_call(strides: Sequence[Any]) -> tuple[int, ...]:
    return tuple(map(size_in_some_call, strides))
