"""What ``torch.amp.GradScaler`` does to gradients, in plain Python."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def unscale(gradients: Sequence[Tensor], found_inf: Tensor, inv_scale: Tensor) -> None:
    """Multiply each gradient in place; ``found_inf`` becomes 1 where an element was not finite before.

    Halves are multiplied in float32, as the number has it.
    """
    factor = inv_scale.reshape(())
    for gradient in gradients:
        found_inf.masked_fill_(~torch.isfinite(gradient).all(), 1.0)
        if gradient.dtype in (torch.float16, torch.bfloat16):
            gradient.copy_(gradient.float() * factor)
        else:
            gradient.mul_(factor)
