"""``as_strided`` and ``as_strided_scatter`` by slices and views, whose gradients write to nothing.

A window whose elements lie apart is, dimension by dimension from the widest stride on, a row of blocks of
which the front is kept: the memory padded to whole blocks, viewed as (count, stride), and cut to what the
inner dimensions reach.  Blocks that overlap are ``unfold``'s.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

aten = torch.ops.aten


@dataclass(frozen=True)
class _Dimension:
    """``count`` blocks, one each ``stride`` elements, of each of which the first ``reach`` are used."""

    count: int
    stride: int
    reach: int

    @property
    def overlaps(self) -> bool:
        return self.reach > self.stride


@dataclass(frozen=True)
class _Window:
    """``span`` elements from ``start`` of a flat tensor, by dimensions ``order`` from wide to narrow."""

    start: int
    span: int
    dimensions: tuple[_Dimension, ...]
    order: tuple[int, ...]
    size: tuple[int, ...]


def _window(
    self: torch.Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None
) -> _Window | None:
    """None if sizes are symbolic, ``self`` is not contiguous, or a dimension stays at one place."""
    own = self.storage_offset()
    offset = own if storage_offset is None else storage_offset
    numbers = (*size, *stride, *self.shape, own, offset)
    if any(type(number) is not int for number in numbers) or not self.is_contiguous():
        return None
    order = sorted((d for d, n in enumerate(size) if n != 1), key=lambda d: stride[d], reverse=True)
    dimensions: list[_Dimension] = []
    reach = 1
    for d in reversed(order):
        if size[d] == 0 or stride[d] == 0:
            return None
        dimensions.append(_Dimension(size[d], stride[d], reach))
        reach += (size[d] - 1) * stride[d]
    start = int(offset - own)
    if start < 0 or start + reach > self.numel():
        return None
    return _Window(start, reach, tuple(reversed(dimensions)), tuple(order), tuple(size))


def _blocks(memory: torch.Tensor, dimension: _Dimension) -> torch.Tensor:
    """The last dimension as blocks, the last one filled up."""
    missing = dimension.count * dimension.stride - memory.size(-1)
    if missing:
        memory = aten.constant_pad_nd.default(memory, [0, missing])
    return memory.view(*memory.shape[:-1], dimension.count, dimension.stride)


def as_strided(
    self: torch.Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: Any = None
) -> Any:
    """The window, as a tensor that can be viewed as it can; NotImplemented where it has no such form.

    A stride is another one where whole blocks of the next dimension do not fit into it.
    """
    window = _window(self, size, stride, storage_offset)
    if window is None:
        return NotImplemented
    memory = self.view(-1).narrow(0, window.start, window.span)
    for dimension in window.dimensions:
        if dimension.overlaps:
            memory = memory.unfold(-1, dimension.reach, dimension.stride)
        else:
            memory = _blocks(memory, dimension).narrow(-1, 0, dimension.reach)
    inverse = [window.order.index(d) for d in sorted(window.order)]
    return memory.squeeze(-1).permute(inverse).view(window.size)


def as_strided_scatter(
    self: torch.Tensor,
    src: torch.Tensor,
    size: Sequence[int],
    stride: Sequence[int],
    storage_offset: Any = None,
) -> Any:
    """``self`` with the window replaced by ``src``; NotImplemented where it has no such form."""
    window = _window(self, size, stride, storage_offset)
    if window is None or any(dimension.overlaps for dimension in window.dimensions):
        return NotImplemented
    wide = [n for n in window.size if n != 1]
    ranks = sorted(window.order)
    new = src.reshape(wide).permute([ranks.index(d) for d in window.order])
    flat = self.view(-1)
    replaced = _replaced(flat.narrow(0, window.start, window.span), new, window.dimensions)
    end = window.start + window.span
    return torch.slice_scatter(flat, replaced, 0, window.start, end).view(self.shape)


def _replaced(
    memory: torch.Tensor, new: torch.Tensor, dimensions: tuple[_Dimension, ...]
) -> torch.Tensor:
    if not dimensions:
        return new.unsqueeze(-1)
    dimension, length = dimensions[0], memory.size(-1)
    blocks = _blocks(memory, dimension)
    inner = _replaced(blocks.narrow(-1, 0, dimension.reach), new, dimensions[1:])
    blocks = torch.slice_scatter(blocks, inner, -1, 0, dimension.reach)
    return blocks.flatten(-2).narrow(-1, 0, length)
