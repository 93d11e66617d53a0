"""Backward computes again from a copy of an argument, which lies otherwise than one with gaps does."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import weft
from torch import Tensor
from torch.nn import functional as F

pytestmark = pytest.mark.native

MASKS: dict[str, Callable[[], Tensor]] = {
    "repeated columns": lambda: (torch.arange(4) > 1)[:, None].expand(4, 4),
    "repeated rows": lambda: (torch.arange(4) > 1)[None].expand(4, 4),
    "gaps": lambda: torch.eye(4, 8, dtype=torch.bool)[:, ::2],
    "windows": lambda: (torch.arange(7) > 2).unfold(0, 4, 1),
}


@pytest.mark.parametrize("name", MASKS)
def test_masks_that_are_not_dense(name: str) -> None:
    """What eager keeps is what it computed of the mask; kept is the mask, which is smaller."""

    def program(q: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        attended = F.scaled_dot_product_attention(q, q, q, attn_mask=mask)
        return attended, q.exp()[..., :4] * torch.where(mask, 0.5, 3.0)

    leaves = [torch.randn(1, 2, 4, 8).requires_grad_() for _ in range(2)]
    leaves[1].data.copy_(leaves[0].data)
    for function, q in zip((program, weft.compile(program)), leaves, strict=True):
        mask = MASKS[name]()
        torch.stack([r.square().sum() for r in function(q, mask)]).sum().backward()
    torch.testing.assert_close(leaves[1].grad, leaves[0].grad)
