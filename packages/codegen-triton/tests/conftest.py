from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
import weft_loop_ir
from weft_codegen_triton import TritonCodegen, TritonOptions
from weft_codegen_triton.kernel import scan_printer

sys.path.insert(0, str(Path(__file__).parent))  # the tests' own helper modules
os.environ["TRITON_INTERPRET"] = "1"  # before anything imports Triton


def pytest_addoption(parser: pytest.Parser) -> None:
    with contextlib.suppress(ValueError):  # a run of several folders' tests has it from another one
        parser.addoption(
            "--update-golden",
            action="store_true",
            help="write the golden files instead of comparing",
        )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "filterwarnings", "ignore:.* encountered in .*:RuntimeWarning"
    )  # NumPy's, below the interpreter


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.default_generator.manual_seed(0)
    if torch.cuda.is_available():  # to seed what is not there takes longer than a quick test
        torch.cuda.manual_seed_all(0)


@pytest.fixture(scope="session", autouse=True)
def verified() -> Iterator[None]:
    """What is printed is well-formed, attention and matmuls in kernels of ours included."""
    plain = TritonCodegen.print

    def verifying(
        self: TritonCodegen, schedule: weft_loop_ir.Schedule, *args: Any, **kw: Any
    ) -> Any:
        weft_loop_ir.verify(schedule)
        return plain(self, schedule, *args, **kw)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TritonCodegen, "print", verifying)
        yield


@pytest.fixture(scope="session", autouse=True)
def quick_interpreter() -> None:
    """Kernels run in an interpreter that remembers what it is asked over and over."""
    if find_spec("triton") is not None:
        from quick_interpreter import make_interpreter_quick

        make_interpreter_quick()


@pytest.fixture
def deterministic() -> Iterator[None]:
    """Torch's deterministic algorithms are asked for."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(before)


@pytest.fixture
def short_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of scans so short that rows have several."""
    for name in ("ELEMENTS", "ELEMENTS_OF_FEW", "COSTLY_ELEMENTS"):
        monkeypatch.setattr(scan_printer, name, 16)
    monkeypatch.setattr(scan_printer, "UNROLLED_ELEMENTS", 256)
    monkeypatch.setattr(scan_printer, "UNROLLED", 2)
    monkeypatch.setattr(scan_printer, "AHEAD", 16)


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def codegen(cache: Path) -> TritonCodegen:
    """Runs kernels on CPU tensors, through Triton's interpreter."""
    return TritonCodegen(TritonOptions(cache_directory=cache))


@pytest.fixture(scope="session")
def looping(cache: Path) -> TritonCodegen:
    """Keeps only the shortest rows in registers, so that reductions loop."""
    return TritonCodegen(TritonOptions(cache_directory=cache, persistent_elements=4))


@pytest.fixture(scope="session")
def stepping(cache: Path) -> TritonCodegen:
    """As ``looping``, in blocks so short that rows have several."""
    options = TritonOptions(cache_directory=cache, persistent_elements=4, loop_elements=16)
    return TritonCodegen(options)
