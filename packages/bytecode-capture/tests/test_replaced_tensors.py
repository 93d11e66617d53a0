"""Tensors in attributes that the program replaces: known by identity at first, then passed to the graph."""

from __future__ import annotations

import torch
from test_symbolic_sizes import Compiled, assert_same


class Cache:
    def __init__(self, rows: int = 0) -> None:
        self.keys = torch.ones(rows, 3) if rows else None

    def update(self, x: torch.Tensor) -> torch.Tensor:
        self.keys = x if self.keys is None else torch.cat([self.keys, x])
        return self.keys


def test_a_cache_that_grows_takes_three_compilations() -> None:
    compiled = Compiled(lambda x, cache: cache.update(x).sum(0) + x)
    for _ in range(2):
        found, wanted = Cache(), Cache()
        for step in range(8):
            x = torch.randn(4 if step == 0 else 1, 3)
            assert_same(compiled.compiled(x, found), compiled.function(x, wanted))
            assert_same(found.keys, wanted.keys)
    assert compiled.count == 3


def test_a_running_mean_that_is_assigned_anew_takes_two_compilations() -> None:
    class Mean(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mean = torch.zeros(3)
            self.register_buffer("count", torch.zeros(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
            self.count += 1
            return x - self.mean

    found, wanted = Mean(), Mean()
    compiled = Compiled(found)
    for _ in range(6):
        x = torch.randn(2, 3)
        assert_same(compiled.compiled(x), wanted(x))
        assert_same(found.mean, wanted.mean)
        assert_same(found.count, wanted.count)
    assert compiled.count == 2


def test_a_replaced_parameter_trains() -> None:
    linear = torch.nn.Linear(3, 2)
    compiled = Compiled(linear)
    for _ in range(4):
        linear.weight = torch.nn.Parameter(torch.randn(2, 3))
        x = torch.randn(4, 3)
        compiled.check(x)
        compiled.compiled(x).sum().backward()
        assert_same(linear.weight.grad, x.sum(0).expand(2, 3).contiguous())
    assert compiled.count == 2


def test_tensors_that_become_one_are_told_from_two() -> None:
    class Pair:
        pass

    def function(x: torch.Tensor, pair: Pair) -> torch.Tensor:
        pair.first.add_(x)
        return pair.second * 2

    compiled = Compiled(function)
    shared = torch.zeros(3)
    for first, second in [(torch.zeros(3), torch.zeros(3)) for _ in range(3)] + [(shared, shared)]:
        pair, plain = Pair(), Pair()
        pair.first, pair.second = first.clone(), second.clone()
        plain.first, plain.second = first.clone(), second.clone()
        if first is second:
            pair.second, plain.second = pair.first, plain.first
        assert_same(compiled.compiled(torch.ones(3), pair), function(torch.ones(3), plain))
        assert_same(pair.first, plain.first)
