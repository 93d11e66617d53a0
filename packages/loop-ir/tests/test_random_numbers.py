"""Philox beside its authors' own results, and its operators in loops."""

from __future__ import annotations

import torch
import weft_loop_ir
from torch.fx.experimental.proxy_tensor import make_fx
from weft_loop_ir.random_numbers import philox


def test_the_known_answer() -> None:
    words = philox(torch.tensor(0), torch.tensor(0))
    assert [int(w) for w in words] == [0x6627E8D5, 0xE169C58D]  # Random123's kat_vectors


def test_both_halves_of_seed_and_position_count() -> None:
    seeds = torch.tensor([0, 1, 1 << 32, -1, (1 << 63) - 1])
    positions = torch.tensor([[0], [1], [1 << 33]])
    words = philox(seeds, positions)
    assert all(int(w.min()) >= 0 and int(w.max()) < 1 << 32 for w in words)
    assert words[0].unique().numel() == words[1].unique().numel() == 15


def test_in_loops() -> None:
    def function(seeds: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        uniform = torch.ops.weft.uniform_at(seeds, 1, [5, 7])
        normal = torch.ops.weft.normal_at(seeds, 0, [5, 7])
        return uniform.t() + x, normal.sum(1), (uniform < 0.5).any(0), normal[2:4]

    inputs = (torch.tensor([3, -9]), torch.randn(7, 5))
    graph = make_fx(function, tracing_mode="fake")(*inputs)
    schedule = weft_loop_ir.schedule(weft_loop_ir.lower(graph))
    assert not schedule.fallbacks
    for got, want in zip(weft_loop_ir.evaluate(schedule, inputs), function(*inputs), strict=True):
        torch.testing.assert_close(got, want)
        assert got.stride() == want.stride()
