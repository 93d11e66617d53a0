from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import torch
from weft_codegen_cpp import CppCodegen, CppOptions

SHORT = 8000
"""Characters of source which the compiler optimizes in a quarter of a second."""

sys.path.insert(0, str(Path(__file__).parent))  # the tests' own helper module


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.default_generator.manual_seed(0)  # those of devices that are not there take longer


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def codegen() -> CppCodegen:
    """Fills the arena with NaN bytes before each call, so that a read of unwritten memory shows.

    Its libraries stay for other processes and runs: each is compiled for its source, compiler and flags.
    Where tests ask for no optimization, that is not for short programs here: what optimization does to the
    kernels is tested, too.
    """
    length = SHORT if os.environ.get("WEFT_UNOPTIMIZED_LENGTH") else None
    return CppCodegen(CppOptions(poison_arena=True, unoptimized_length=length))
