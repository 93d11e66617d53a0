"""What is known of tensors by identity, and values with tensors in them."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import torch

V = TypeVar("V")


class TensorMap(Generic[V]):
    """Values by tensor.  Tensors are compared by identity, and live as long as the map."""

    def __init__(self) -> None:
        self._entries: dict[int, tuple[torch.Tensor, V]] = {}

    def __setitem__(self, tensor: torch.Tensor, value: V) -> None:
        self._entries[id(tensor)] = tensor, value

    def __getitem__(self, tensor: torch.Tensor) -> V:
        return self._entries[id(tensor)][1]

    def __contains__(self, tensor: object) -> bool:
        return id(tensor) in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, tensor: torch.Tensor) -> V | None:
        entry = self._entries.get(id(tensor))
        return None if entry is None else entry[1]


def map_tensors(value: Any, function: Any) -> Any:
    """``value`` with ``function`` applied to the tensors in it; operators nest lists one deep."""
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, (list, tuple)):
        return type(value)(map_tensors(item, function) for item in value)
    if isinstance(value, dict):
        return {key: map_tensors(item, function) for key, item in value.items()}
    return value
