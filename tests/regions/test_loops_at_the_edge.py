"""Loops over what a graph without inputs draws, and loops whose carried tensors' layout sizes decide."""

from __future__ import annotations

import pytest
import torch
import weft


def test_a_loop_counted_by_what_was_drawn() -> None:
    def function() -> tuple[torch.Tensor, int]:
        drawn = torch.randn(4)
        n = int(drawn.argmax().item())
        for _ in range(n % 9):
            drawn = drawn + 1
        return drawn, n

    for seed in range(4):
        torch.manual_seed(seed)
        found, n = weft.compile(function)()
        torch.manual_seed(seed)
        wanted, m = function()
        torch.testing.assert_close(found, wanted)
        assert n == m


@pytest.mark.parametrize("sizes", [(1, 3, 5), (3, 1, 4), (2, 2)])
def test_a_loop_that_keeps_parts_of_a_split(sizes: tuple[int, ...]) -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        kept = [x]
        y.unsqueeze_(0)
        last = y.split(2, -1)[-1]
        for _ in x:
            kept[-1] = last
        return kept[-1]

    compiled = weft.compile(function)
    for n in sizes:
        x, y = torch.randn(n, n), torch.randn(n, n)
        found, wanted = compiled(x, y.clone()), function(x, y.clone())
        assert torch.equal(found, wanted)
        assert found.shape == wanted.shape


def test_two_loops_whose_one_turn_the_size_of_a_step_decides() -> None:
    """``clamp`` by ``-n`` makes a number of ``n``: both counters have one value then."""

    def function(x: torch.Tensor, n: int) -> tuple[torch.Tensor, torch.Tensor]:
        low = x.clamp(-n, 0.0)
        for i in range(n % 9):
            first = low.topk(1, 0)[0]
            first[0] = 0.5 + i
        for i in range(n % 7):
            second = low.topk(2, 0)[0]
            second[0] = 2.5 - i
        return first, second

    compiled = weft.compile(function, dynamic=True)
    x = torch.linspace(-3, 1, 8, dtype=torch.float64, requires_grad=True)
    for n in (1, 2, 1, 3):
        found, wanted = compiled(x, n), function(x, n)
        assert torch.equal(torch.cat(found), torch.cat(wanted))
        gradients = [torch.autograd.grad(torch.cat(r).sum(), x)[0] for r in (found, wanted)]
        torch.testing.assert_close(*gradients)
