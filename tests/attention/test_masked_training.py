"""A mask among the tensors of a library call that are given by name, in backward: beside eager."""

from __future__ import annotations

import torch
import weft
from torch import Tensor


def attended(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    heads = [x.transpose(1, 2) for x in (q, k, v)]
    return torch.nn.functional.scaled_dot_product_attention(*heads, attn_mask=mask, scale=0.25)


def test_gradients_of_attention_under_a_mask() -> None:
    inputs = [torch.randn(2, 12, 4, 16, requires_grad=True) for _ in range(3)]
    mask = torch.ones(2, 1, 12, 12, dtype=torch.bool).tril()
    found = []
    for function in (attended, weft.compile(attended)):
        result = function(*inputs, mask)
        found.append([result, *torch.autograd.grad(result.pow(2).sum(), inputs)])
    for mine, plain in zip(found[1], found[0], strict=True):
        torch.testing.assert_close(mine, plain, rtol=1e-4, atol=1e-5)
