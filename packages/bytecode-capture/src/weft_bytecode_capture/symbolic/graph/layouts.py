"""How a tensor lies in its storage, for comparison."""

from __future__ import annotations

import torch


def layout_of(fake: torch.Tensor) -> tuple[str, ...]:
    """What ``unsqueeze_``, ``t_`` and the like change of a tensor."""
    return str(fake.shape), str(fake.stride()), str(fake.storage_offset())
