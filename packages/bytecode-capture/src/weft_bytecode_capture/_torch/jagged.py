"""Jagged tensors: the rows of sequences one behind another, and the offsets at which each begins."""

from __future__ import annotations

from typing import Any

import torch
from torch.nested._internal.nested_tensor import NestedTensor

JaggedTensor = NestedTensor

to_padded: Any = torch.nested.to_padded_tensor
from_jagged: Any = torch.nested.nested_tensor_from_jagged
new_jagged: Any = torch.nested.nested_tensor
as_jagged: Any = torch.nested.as_nested_tensor

LONGEST, SHORTEST = "max_seqlen", "min_seqlen"
"""Keys of a jagged tensor's cache: a tensor of shape ``[number, 0]`` for each number that is known."""

CACHE, OFFSETS, LENGTHS, DIMENSION = "_metadata_cache", "_offsets", "_lengths", "_ragged_idx"
"""Names of an instance's attributes."""


def values_of(tensor: Any) -> torch.Tensor:
    """The rows of all sequences, a view of the tensor with its history."""
    rows: torch.Tensor = torch._nested_get_values(tensor)
    return rows


def make_jagged(
    values: torch.Tensor, offsets: torch.Tensor, dim: int, cache: dict[str, torch.Tensor]
) -> Any:
    """A jagged tensor whose dimension ``dim`` is ragged: of ``values`` it is the one before."""
    known = {
        name: cache[key].shape[0]
        for name, key in (("min_seqlen", SHORTEST), ("max_seqlen", LONGEST))
        if key in cache
    }
    return from_jagged(values, offsets, jagged_dim=dim, **known)


def parts_of(tensor: Any) -> tuple[torch.Tensor, torch.Tensor, int, dict[str, torch.Tensor]]:
    """Values, offsets, the ragged dimension and the cache, which derived tensors share."""
    return values_of(tensor), tensor._offsets, tensor._ragged_idx, tensor._metadata_cache


def is_jagged(value: Any) -> bool:
    return isinstance(value, JaggedTensor)
