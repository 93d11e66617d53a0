"""Where memory is not to be had a call raises what eager raises, and the next call is right."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import weft
from torch import Tensor

HERE = Path(__file__).parent


@pytest.mark.kept
@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
@pytest.mark.skipif(sys.platform != "linux", reason="the library that fails is for ELF")
def test_every_allocation_of_a_compile_and_of_a_call_may_fail(tmp_path: Path) -> None:
    library = tmp_path / "failing_malloc.so"
    source = HERE / "failing_malloc.c"
    command = [
        "cc",
        "-O1",
        "-fno-builtin",
        "-shared",
        "-fPIC",
        str(source),
        "-o",
        str(library),
        "-ldl",
    ]
    subprocess.run(command, check=True)
    environment = os.environ | {
        "WEFT_CACHE_DIR": str(tmp_path / "cache"),
        "PYTHONWARNINGS": "ignore",
    }
    environment.pop("WEFT_STRICT", None)  # a compile that failed leaves the program to eager
    result = subprocess.run(
        [sys.executable, str(HERE / "programs.py"), str(library)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.endswith("done\n")
    assert result.stdout.count("MemoryError") > 10


def rows(x: Tensor) -> Tensor:
    return (x.exp().softmax(-1).cos()).sum(-1)


def intermediates(x: Tensor) -> Tensor:
    return (x * 2).sort(0)[0].flip(0) + 1


def result(x: Tensor) -> Tensor:
    return x * 2


def flat_product(x: Tensor) -> Tensor:
    return (x[:, None] * x).flatten() + 1


def sum_of_products(x: Tensor) -> Tensor:
    return (x[:, None] * x).sum()


@pytest.fixture
def bounded_memory() -> Iterator[None]:
    """Where the system promises more memory than it has, these programs would be killed instead."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (1 << 38, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.usefixtures("bounded_memory")
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    ("function", "size"),
    [
        (rows, 1 << 37),
        (rows, 1 << 40),
        (intermediates, 1 << 40),
        (result, 1 << 40),
        (flat_product, 1 << 22),
        (flat_product, 1 << 32),
        (sum_of_products, 1 << 32),
        (sum_of_products, 3 << 40),
    ],
)
def test_a_batch_too_large_for_memory_raises_as_eager(
    function: Callable[[Tensor], Any], size: int, dynamic: bool
) -> None:
    small, large = torch.rand(6), torch.ones(1).expand(size)
    compiled = weft.compile(function, dynamic=dynamic)
    if dynamic:
        torch.testing.assert_close(compiled(small), function(small))
    with pytest.raises(RuntimeError) as eager:
        function(large)
    with pytest.raises(RuntimeError) as error:
        compiled(large)
    for part in ("DefaultCPUAllocator: can't allocate memory: you tried to allocate", "overflow"):
        assert (part in str(error.value)) == (part in str(eager.value)), str(error.value)
    torch.testing.assert_close(compiled(small), function(small))
