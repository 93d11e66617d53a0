"""Scans compiled for a GPU, from Python on, with gradients: by Triton's interpreter, beside eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import weft
from torch.utils import _pytree as pytree
from weft_codegen_triton import TritonCodegen, TritonOptions

from tests.regions.scan_programs import COMBINATIONS, program
from tests.triton_interpreter import require_interpreter

require_interpreter()

T = torch.Tensor
CODEGEN = TritonCodegen(TritonOptions(interpret=True))


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Has programs compiled for a GPU; the kernels of each, none of which calls a library."""
    found: list[int] = []
    compile_ = TritonCodegen.compile

    def compiling(self: TritonCodegen, schedule: Any, constants: Any) -> Any:
        made = compile_(self, schedule, constants)
        assert made.extern_count == 0
        found.append(made.kernel_count)
        return made

    monkeypatch.setitem(weft.registry.codegens, "cpu", lambda: CODEGEN)
    monkeypatch.setattr(TritonCodegen, "compile", compiling)
    return found


def check(function: Callable[[Any], Any], xs: Any) -> None:
    """Values, strides, and gradients of what is weighted by place."""
    compiled = weft.compile(function, fullgraph=True)
    with torch.no_grad():
        got, wanted = compiled(xs), function(xs)
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)
        for mine, theirs in zip(*map(pytree.tree_leaves, (got, wanted)), strict=True):
            assert mine.stride() == theirs.stride()
    inputs = pytree.tree_map(lambda x: x.requires_grad_(x.is_floating_point()), xs)
    leaves = [x for x in pytree.tree_leaves(inputs) if x.requires_grad]
    torch.testing.assert_close(
        *(_gradients(f(inputs), leaves) for f in (compiled, function)), rtol=1e-4, atol=1e-4
    )


def _gradients(results: Any, leaves: list[T]) -> tuple[T | None, ...]:
    total = sum(
        (y * torch.linspace(-1, 1, y.numel()).view(y.shape)).sum()
        for y in pytree.tree_leaves(results)
        if y.requires_grad
    )
    return torch.autograd.grad(total, leaves, allow_unused=True)


@pytest.mark.parametrize("size", [(3, 20), (2, 18, 5)], ids=str)
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("name", ["sum", "maximum", "linear recurrence", "segmented sum"])
def test_associative_scan(
    name: str, reverse: bool, size: tuple[int, ...], kernels: list[int]
) -> None:
    combine, make = COMBINATIONS[name]
    check(program(combine, 1, reverse), make(size, torch.float32))
    assert kernels[0] <= 1 + reverse * len(pytree.tree_leaves(make(size, torch.float32)))


@pytest.mark.parametrize("dim", [0, 1])
def test_cumulative_operators(dim: int, kernels: list[int]) -> None:
    def function(x: T) -> tuple[T, ...]:
        return x.cumsum(dim).sin(), torch.exp(x).cumprod(dim), x.logcumsumexp(dim)

    check(function, torch.randn(6, 11) / 3)
    assert kernels
