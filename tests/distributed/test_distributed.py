"""Compiled modules that train on two processes, beside plain ones."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch.distributed as dist

if not (dist.is_available() and dist.is_gloo_available()):
    pytest.skip("this torch has no gloo", allow_module_level=True)

from tests.distributed import checks
from tests.distributed.processes import run


def test_data_parallel(tmp_path: Path) -> None:
    run(tmp_path, checks.compiled_inside, checks.compiled_around, checks.static_graph)


def test_data_parallel_with_unused_parameters_and_small_buckets(tmp_path: Path) -> None:
    run(tmp_path, checks.unused_parameters, checks.small_buckets, checks.overlap)


def test_collectives(tmp_path: Path) -> None:
    run(tmp_path, checks.collectives)


def test_fully_sharded_blocks(tmp_path: Path) -> None:
    run(tmp_path, checks.fully_sharded)
