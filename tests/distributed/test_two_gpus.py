"""Compiled modules on two GPUs: one process each that talk through NCCL, and one process that uses both."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
import weft
from torch import nn

from tests.distributed import checks, processes

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs"),
]


@pytest.mark.parametrize(
    "check",
    [
        checks.compiled_inside, checks.compiled_around, checks.static_graph, checks.unused_parameters,
        checks.small_buckets, checks.fully_sharded, checks.collectives,
    ],
)  # fmt: skip
def test_two_processes(tmp_path: Path, check: processes.Check) -> None:
    processes.run(tmp_path, check, backend="nccl")


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_one_process_uses_both(mode: str) -> None:
    """Each device has kernels and recordings of its own; the current device stays what it was."""
    plain = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.LayerNorm(64))
    compiled = weft.compile(lambda module, x: module(x).softmax(-1), mode=mode, fullgraph=True)
    modules = [copy.deepcopy(plain).to(f"cuda:{index}") for index in range(2)]
    for number in range(6):
        module = modules[number % 2]
        x = torch.randn(32, 64, device=f"cuda:{number % 2}", requires_grad=number >= 4)
        found, wanted = compiled(module, x), module(x).softmax(-1)
        assert found.device == x.device
        torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-4)
        if x.requires_grad:
            torch.testing.assert_close(
                torch.autograd.grad(found[0].sum(), x), torch.autograd.grad(wanted[0].sum(), x),
                rtol=1e-3, atol=1e-4,
            )  # fmt: skip
        assert torch.cuda.current_device() == 0
