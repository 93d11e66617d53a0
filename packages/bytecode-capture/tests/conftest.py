"""Seeds every test; the tests' own helper modules are imported by name."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)
