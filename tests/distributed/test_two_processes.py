"""Compiled modules that train and programs that communicate, on two processes, beside plain ones."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch.distributed as dist

if not (dist.is_available() and dist.is_gloo_available()):
    pytest.skip("this torch has no gloo", allow_module_level=True)

from tests.distributed import checks, collective_checks
from tests.distributed.processes import run

TRAINING = (
    checks.compiled_inside,
    checks.compiled_around,
    checks.static_graph,
    checks.unused_parameters,
    checks.small_buckets,
    checks.overlap,
    checks.fully_sharded,
)
COLLECTIVES = (
    checks.collectives,
    collective_checks.functional_collectives,
    collective_checks.writing_collectives,
    collective_checks.handles,
    collective_checks.breaks,
    collective_checks.smaller_group,
    collective_checks.given_in_flight,
)


@pytest.mark.kept
def test_training_and_collectives(tmp_path: Path) -> None:
    """One start of both processes for all checks: it takes longer than they do."""
    run(tmp_path, *TRAINING, *COLLECTIVES)
