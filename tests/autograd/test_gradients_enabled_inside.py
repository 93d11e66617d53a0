"""Functions that are called with gradients disabled and enable them for a part of what they do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import weft
from torch import Tensor


def partly(x: Tensor, w: Tensor) -> Sequence[Tensor]:
    constant = x * w
    with torch.enable_grad():
        tracked = (constant * w).sin()
        view = tracked[0]
        other = w * 3
    after = tracked * 2
    after.add_(1)
    return constant, tracked, view, after, other


def write(x: Tensor, w: Tensor) -> Sequence[Tensor]:
    """The argument gets a history where gradients are enabled, and new data where they are not."""
    with torch.enable_grad():
        x.mul_(w)
    x.add_(1)
    return (x * w,)


def outcome(program: Callable[..., Any]) -> list[Any]:
    generator = torch.Generator().manual_seed(0)
    x, w = (torch.randn(3, generator=generator, dtype=torch.float64) for _ in range(2))
    w.requires_grad_()
    with torch.no_grad():
        results = [*program(x, w), x]
        assert not torch.is_grad_enabled()
    tracked = [r for r in results if r.requires_grad]
    torch.stack([(k + 1) * r.sum() for k, r in enumerate(tracked)]).sum().backward()
    return [[r.requires_grad for r in results], *results, w.grad]


def check(program: Callable[..., Any]) -> None:
    want, got = outcome(program), outcome(weft.compile(program, fullgraph=True))
    assert got[0] == want[0]
    torch.testing.assert_close(got[1:], want[1:])


def test_some_results_have_gradients() -> None:
    check(partly)


def test_an_argument_is_written_in_both_modes() -> None:
    check(write)
