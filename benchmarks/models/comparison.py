"""Comparing a model's outputs with a float64 reference."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.utils import _pytree as pytree


def tensors(output: Any) -> list[torch.Tensor]:
    """The floating-point tensors of a model's output, caches and output classes included.

    Nothing but the list keeps them alive: peaks of memory are measured around this.
    """
    return list(_tensors(output))


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        if value.is_floating_point():
            yield value
        return
    parts: Iterable[Any] = ()
    if isinstance(value, (list, tuple)):
        parts = value
    elif hasattr(value, "items"):
        parts = [part for _, part in value.items()]
    elif hasattr(value, "layers"):  # a key-value cache of transformers
        parts = [
            getattr(layer, name, None) for layer in value.layers for name in ("keys", "values")
        ]
    for part in parts:
        yield from _tensors(part)


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
