"""Comparing a model's outputs with a float64 reference."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree as pytree


def tensors(output: Any) -> list[torch.Tensor]:
    """The floating-point tensors of a model's output, caches and output classes included."""
    found: list[torch.Tensor] = []

    def collect(value: Any) -> None:
        if isinstance(value, torch.Tensor):
            if value.is_floating_point():
                found.append(value)
        elif isinstance(value, (list, tuple)):
            for item in value:
                collect(item)
        elif hasattr(value, "items"):
            for _, item in value.items():
                collect(item)
        elif hasattr(value, "layers"):  # a key-value cache of transformers
            for layer in value.layers:
                collect([getattr(layer, "keys", None), getattr(layer, "values", None)])

    collect(output)
    return found


def relative_error(value: torch.Tensor, reference: torch.Tensor) -> float:
    """Norm of the difference over the norm of the float64 reference."""
    return ((value.double() - reference).norm() / reference.norm().clamp_min(1e-30)).item()


def same_strides(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether tensors of one shape are laid out alike; strides of dimensions of size 1 mean nothing."""
    rows = zip(left.shape, left.stride(), right.stride(), strict=True)
    return left.numel() == 0 or all(size == 1 or mine == other for size, mine, other in rows)


def in_double(inputs: dict[str, Any]) -> dict[str, Any]:
    return pytree.tree_map_only(
        torch.Tensor, lambda t: t.double() if t.is_floating_point() else t, inputs
    )
