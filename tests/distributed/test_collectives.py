"""Compiled programs that communicate, on two processes, beside eager."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch.distributed as dist

if not (dist.is_available() and dist.is_gloo_available()):
    pytest.skip("this torch has no gloo", allow_module_level=True)

from tests.distributed import collective_checks as checks
from tests.distributed.processes import run


def test_functional_collectives(tmp_path: Path) -> None:
    run(tmp_path, checks.functional_collectives)


def test_collectives_that_write(tmp_path: Path) -> None:
    run(tmp_path, checks.writing_collectives, checks.handles)


def test_breaks_groups_and_results_in_flight(tmp_path: Path) -> None:
    run(tmp_path, checks.breaks, checks.smaller_group, checks.given_in_flight)
