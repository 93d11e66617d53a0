"""Version counters: whatever writes to a tensor, or to a view of it, moves its counter."""

from __future__ import annotations

import torch

UNCOUNTED = -1


def version_of(tensor: torch.Tensor) -> int:
    """A tensor's version counter, which all its views share; inference tensors have none."""
    return UNCOUNTED if tensor.is_inference() else tensor._version
