"""Compiled programs that communicate, on two processes, beside eager."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch.distributed as dist

if not (dist.is_available() and dist.is_gloo_available()):
    pytest.skip("this torch has no gloo", allow_module_level=True)

from tests.distributed import collective_checks as checks
from tests.distributed.checks import collectives
from tests.distributed.processes import run


def test_collectives(tmp_path: Path) -> None:
    """One start of both processes for all checks: it takes longer than they do."""
    run(
        tmp_path,
        collectives,
        checks.functional_collectives,
        checks.writing_collectives,
        checks.handles,
        checks.breaks,
        checks.smaller_group,
        checks.given_in_flight,
    )
