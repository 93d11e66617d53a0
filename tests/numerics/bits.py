"""Equality to the last bit: of values, also the sign of zero, and of layouts; NaN equals NaN."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree as pytree

_BITS = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.int8}


def tensors_of(result: Any) -> list[torch.Tensor]:
    """The tensors in a result."""
    return [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]


def same_bits(found: Any, expected: Any) -> bool:
    """Whether two results hold the same tensors, bit for bit."""
    pairs = tensors_of(found), tensors_of(expected)
    return len(pairs[0]) == len(pairs[1]) and all(map(_same, *pairs))


def same_strides(found: Any, expected: Any) -> bool:
    """Whether the tensors in two results lie alike, also where a size is 0 or 1, and are views alike."""
    pairs = zip(tensors_of(found), tensors_of(expected), strict=True)
    return all(_lies(one) == _lies(other) for one, other in pairs)


def _lies(tensor: torch.Tensor) -> tuple[tuple[int, ...], bool, bool]:
    return tensor.stride(), tensor.is_conj(), tensor.is_neg()


def _same(found: torch.Tensor, expected: torch.Tensor) -> bool:
    if found.dtype != expected.dtype or found.shape != expected.shape:
        return False
    if found.is_complex():
        return _same(*(torch.view_as_real(t.resolve_conj()) for t in (found, expected)))
    if not found.is_floating_point():
        return torch.equal(found, expected)
    absent = expected.isnan()
    if not torch.equal(found.isnan(), absent):
        return False
    bits = (
        t.resolve_neg().contiguous().view(_BITS[t.itemsize]).masked_fill(absent, 0)
        for t in (found, expected)
    )
    return torch.equal(*bits)
