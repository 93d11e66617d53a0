"""Every test draws the same random numbers in every run."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))  # the tests' own helper module


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.default_generator.manual_seed(0)  # those of devices that are not there take longer
