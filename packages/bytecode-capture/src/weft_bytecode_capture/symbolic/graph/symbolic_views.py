"""Views of fake tensors whose sizes are symbols, by rules on sizes and strides.

torch computes such a view by forms in Python that split and collapse one dimension after another, each an
operator of its own, at milliseconds a view; and a size that a program gives (the 16 of
``x.view(b, -1, 16, h)``) comes back as a quotient of symbols, which grows with each further view.  Here a
size is what the program says.  A rule decides by what is known of the symbols, without a guard but that of
the number of elements; where that does not decide it answers None, and torch's own form is asked.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from ..._torch.symbols import has_symbolic_layout, has_unbacked_symbols, statically_known_true


def has_symbols(args: Sequence[Any]) -> bool:
    """Whether a view is of a tensor with symbolic sizes."""
    return isinstance(args[0], torch.Tensor) and has_symbolic_layout(args[0])


def have_symbols(args: Sequence[Any]) -> bool:
    """Whether a view is of a tensor, or to sizes, of which some are symbols."""
    return has_symbols(args) or any(isinstance(n, torch.SymInt) for n in args[1])


def has_backed_symbols(args: Sequence[Any]) -> bool:
    """Whether a view is of a tensor, or to sizes, of which some are symbols and none depends on data."""
    tensor, sizes = args[0], args[1]
    symbolic = [n for n in (*tensor.shape, *tensor.stride(), *sizes) if isinstance(n, torch.SymInt)]
    return bool(symbolic) and not any(map(_depends_on_data, symbolic))


def permuted(tensor: torch.Tensor, dims: Sequence[int]) -> torch.Tensor | None:
    """``permute``, None where the dims are none or not all different."""
    count = tensor.dim()
    if not all(-count <= d < count for d in dims):
        return None
    places = [d % count for d in dims]
    if sorted(places) != list(range(count)):
        return None
    return _with(tensor, [tensor.shape[d] for d in places], [tensor.stride()[d] for d in places])


def transposed(tensor: torch.Tensor, first: int, second: int) -> torch.Tensor | None:
    """``transpose``, None where there is no such dim."""
    count = tensor.dim()
    if not all(-count <= d < count for d in (first, second)):
        return None
    places = list(range(count))
    places[first], places[second] = places[second], places[first]
    return permuted(tensor, places)


def unsqueezed(tensor: torch.Tensor, dim: int) -> torch.Tensor | None:
    """``unsqueeze``, whose new stride is what the dim behind it spans; None where there is no such dim."""
    count = tensor.dim()
    if not -count - 1 <= dim <= count:
        return None
    place = dim % (count + 1)
    sizes, strides = list(tensor.shape), list(tensor.stride())
    strides.insert(place, sizes[place] * strides[place] if place < count else 1)
    sizes.insert(place, 1)
    return _with(tensor, sizes, strides)


def squeezed(tensor: torch.Tensor, dims: int | Sequence[int] | None = None) -> torch.Tensor | None:
    """``squeeze`` of sizes that data decides and checks have made one; None where there are none."""
    count = tensor.dim()
    given = range(count) if dims is None else [dims] if isinstance(dims, int) else dims
    if not all(-count <= d < count for d in given):
        return None
    ones = {d % count for d in given if statically_known_true(tensor.shape[d] == 1)}
    if not any(_depends_on_data(tensor.shape[d]) for d in ones):
        return None
    kept = [d for d in range(count) if d not in ones]
    return _with(tensor, [tensor.shape[d] for d in kept], [tensor.stride()[d] for d in kept])


def unbound(tensor: torch.Tensor, dim: int = 0) -> list[torch.Tensor] | None:
    """``unbind``, which guards the size; None where there is no such dim, or data decides its size.

    Where that is of one element at most, of which torch's own form keeps the dim, it has one.
    """
    count = tensor.dim()
    if not -count <= dim < count:
        return None
    size = tensor.shape[dim]
    if _depends_on_data(size) and (size == 0 or not statically_known_true(size == 1)):
        return None
    place = dim % count
    sizes, strides, begin = list(tensor.shape), list(tensor.stride()), tensor.storage_offset()
    step = strides.pop(place)
    parts = 1 if _depends_on_data(sizes.pop(place)) else int(size)
    return [tensor.as_strided(sizes, strides, begin + step * part) for part in range(parts)]


def expanded(
    tensor: torch.Tensor, sizes: Sequence[Any], implicit: bool = False
) -> torch.Tensor | None:
    """``expand`` where each dim is known to keep its size, or to be one that is repeated."""
    added = len(sizes) - tensor.dim()
    if added < 0 or tensor.dim() == 0 or any(type(n) is int and n < 0 for n in sizes[:added]):
        return None
    olds = [1] * added + list(tensor.shape)
    old_strides = [None] * added + list(tensor.stride())
    new_sizes: list[Any] = []
    strides: list[Any] = []
    for size, old, stride in zip(*map(reversed, (sizes, olds, old_strides)), strict=True):
        keeps = _is(size, -1) or _same(size, old)
        if not keeps and not (_is(old, 1) and statically_known_true(size > 1)):
            return None
        if keeps and stride is None:  # as ATen has it
            stride = new_sizes[-1] * strides[-1]
        new_sizes.append(old if keeps else size)
        strides.append(stride if keeps else 0)
    return _with(tensor, new_sizes[::-1], strides[::-1])


def viewed(tensor: torch.Tensor, sizes: Sequence[Any]) -> torch.Tensor | None:
    """``view`` of a tensor that is known not to be empty, to the very sizes that are given."""
    if tensor.dim() == 0 or not sizes:
        return None
    count: Any = tensor.numel()
    if not statically_known_true(count > 0):
        return None
    whole = _whole_sizes(count, list(sizes))
    strides = None if whole is None else _strides(tensor, whole)
    return None if whole is None or strides is None else _with(tensor, whole, strides)


def _whole_sizes(count: Any, sizes: list[Any]) -> list[Any] | None:
    """The sizes with what stands for -1, guarded to hold ``count`` elements; None where they can't."""
    open_places = [place for place, size in enumerate(sizes) if _is(size, -1)]
    rest = math.prod(size for size in sizes if not _is(size, -1))
    if len(open_places) > 1 or not statically_known_true(rest > 0):
        return None
    if not open_places:
        return sizes if _same(count, rest) or bool(count == rest) else None
    if bool(count % rest != 0):
        return None
    (place,) = open_places
    sizes[place] = count // rest
    return sizes


def _strides(tensor: torch.Tensor, sizes: list[Any]) -> list[Any] | None:
    """The strides of a view, as ATen's ``computeStride`` finds them; None where that is not known to succeed.

    The tensor's dims come in chunks, from the last, each as one dim in memory; so many of the view's dims
    as have the elements of a chunk lie in it.  The stride of a size that may be 1 is as where it isn't, as
    in torch's own form.
    """
    chunks = _chunks(tensor)
    if chunks is None:
        return None
    strides: list[Any] = [0] * len(sizes)
    place = len(sizes) - 1
    for number, (elements, stride) in enumerate(chunks):
        is_last = number == len(chunks) - 1
        covered: Any = 1
        while place >= 0 and (is_last or _is(sizes[place], 1) or not _same(covered, elements)):
            strides[place] = covered * stride
            covered = covered * sizes[place]
            place -= 1
        if is_last:
            continue  # what is left has the elements that are left
        if place < 0:
            return None
    return strides


def _chunks(tensor: torch.Tensor) -> list[tuple[Any, Any]] | None:
    """Number of elements and stride of each chunk from the last; None where its ends are not known."""
    chunks: list[tuple[Any, Any]] = []
    elements: Any = 1
    sizes, strides = tensor.shape, tensor.stride()
    base = strides[-1]
    for place in reversed(range(len(sizes))):
        elements = elements * sizes[place]
        if place == 0:
            break
        before, stride = sizes[place - 1], strides[place - 1]
        if _is(before, 1) or _same(stride, elements * base):
            continue
        if not statically_known_true(stride - elements * base != 0):
            return None
        chunks.append((elements, base))
        elements, base = 1, stride
    return [*chunks, (elements, base)]


def _with(tensor: torch.Tensor, sizes: Sequence[Any], strides: Sequence[Any]) -> torch.Tensor:
    return tensor.as_strided(sizes, strides, tensor.storage_offset())


def _is(number: int | torch.SymInt, value: int) -> bool:
    return type(number) is int and number == value


def _same(left: Any, right: Any) -> bool:
    """Whether two numbers are known to be equal, whatever the symbols are."""
    return statically_known_true(left - right == 0)  # a * n and b * n are told apart


def _depends_on_data(number: int | torch.SymInt) -> bool:
    return isinstance(number, torch.SymInt) and bool(has_unbacked_symbols(number))
