"""Hooks of tensors of which gradients are asked through what the function has written to alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import weft
from torch import Tensor

Write = Callable[[Tensor, Tensor], object]

WRITES: dict[str, Write] = {
    "add_": lambda total, h: total.add_(h.sum()),
    "copy_": lambda total, h: total.copy_(h),
    "element": lambda total, h: total.__setitem__(0, h[0]),
    "view": lambda total, h: total[1:].mul_(h[1:]),
    "out of a list": lambda total, h: [total][0].sub_(h),
}


class Holder:
    total: Tensor


def hook(gradient: Tensor) -> Tensor:
    return gradient * 2


@pytest.mark.parametrize("retains", [False, True])
@pytest.mark.parametrize("has_gradients", [False, True])
@pytest.mark.parametrize("is_attribute", [False, True])
@pytest.mark.parametrize("write", WRITES)
def test_gradients_through_what_is_written(
    write: str, is_attribute: bool, has_gradients: bool, retains: bool
) -> None:
    holder = Holder()

    def program(x: Tensor, total: Tensor) -> Tensor | None:
        h = x * 3
        h.register_hook(hook)
        WRITES[write](holder.total if is_attribute else total, h)
        if not retains:
            return None
        h.retain_grad()
        return h

    def outcome(function: Callable[[Tensor, Tensor], Tensor | None]) -> list[Tensor | None]:
        x = torch.arange(1.0, 4.0, dtype=torch.float64, requires_grad=True)
        total = x.detach() * 2
        if has_gradients:
            total = total + x.sin()
        holder.total = total
        h = function(x, total)
        total.sum().backward()
        return [x.grad, None if h is None else h.grad]

    expected = outcome(program)
    compiled = weft.compile(program)
    for _ in range(2):
        torch.testing.assert_close(outcome(compiled), expected, rtol=0, atol=0)
