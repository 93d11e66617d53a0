"""Every test draws the same random numbers in every run.

The fixture imports torch: of a run's processes the one that hands the tests out needs none.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # the tests' own helper module


@pytest.fixture(autouse=True)
def seeded() -> None:
    import torch

    torch.default_generator.manual_seed(0)
    if torch.cuda.is_available():  # to seed what is not there takes longer than a quick test
        torch.cuda.manual_seed_all(0)
