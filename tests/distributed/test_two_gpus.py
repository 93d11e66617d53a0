"""Compiled modules on two GPUs: one process each that talk through NCCL."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

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
