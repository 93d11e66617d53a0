"""Changes that autograd counts by a tensor's version, where a compiled graph makes them behind its back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch


def count_writes(positions: Sequence[int], computed: Sequence[Any]) -> None:
    """Have autograd count a change of the tensor at each of the ``positions`` among ``computed``."""
    if not torch.is_inference_mode_enabled():  # whose tensors count none
        torch.autograd.graph.increment_version([computed[k] for k in positions])


def data_of_version(version: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """Gives a tensor's ``.data``, which counts from 0 for itself, as of that version."""

    def data(tensor: torch.Tensor) -> torch.Tensor:
        alone = tensor.data
        count_writes([0] * version, [alone])
        return alone

    return data
