"""The generated source of a representative set; ``pytest --update-golden`` writes it anew."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from compiled_beside_eager import schedule_of
from matmul_cases import ALL
from torch.nn import functional as F
from weft_codegen_triton import TritonCodegen
from weft_codegen_triton.gpu import REFERENCE
from weft_codegen_triton.matmuls.fuse_matmuls import fuse_matmuls
from weft_loop_ir import Schedule, fuse_attention
from weft_loop_ir.lowering import activations

FOLDER = Path(__file__).parent / "golden"
E = torch.empty


def windowed_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    queries, keys = torch.arange(100)[:, None], torch.arange(100)
    scores = torch.tanh(q @ k.transpose(-1, -2) / 50) * 50
    scores = scores.masked_fill((keys > queries) | (keys <= queries - 30), float("-inf"))
    return torch.softmax(scores, -1) @ v


CASES: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...], bool]] = {
    "pointwise": (lambda x, y: F.gelu(x + y), (E(64, 100).half(), E(100).half()), False),
    "pointwise_dynamic": (lambda x, y: x.exp() + y, (E(64, 100), E(100)), True),
    "transpose": (lambda x, y: x.t() + y, (E(100, 64), E(64, 100)), False),
    "softmax": (lambda x: x.softmax(-1), (E(64, 100).half(),), False),
    "layer_norm": (
        lambda x, w, b: F.layer_norm(x, (100,), w, b),
        (E(64, 100), E(100), E(100)),
        False,
    ),
    "long_rows": (lambda x: x.softmax(-1), (E(64, 20000),), False),
    "argmax_of_columns": (lambda x: x.argmax(0), (E(64, 100),), False),
    "split_sum": (lambda x: x.sum(), (E(1 << 17),), False),
    "embedding": (lambda i, w: F.embedding(i, w) * 2, (E(4, dtype=torch.int64), E(9, 32)), False),
    "scatter_add": (
        lambda t, i, s: t.scatter_add(0, i, s),
        (E(9, 5), E(4, 5, dtype=torch.int64), E(4, 5)),
        False,
    ),
    "cumsum": (lambda x: x.cumsum(1) * 2, (E(300, 500),), False),
    "attention": (windowed_attention, tuple(E(2, 3, 100, 48).half() for _ in range(3)), False),
    "matmul": (lambda x, w: torch.relu(x @ w + 1), (E(8, 16), E(16, 32)), False),
}


PRODUCTS = {
    "matmul_with_loops": "a weight as it lies",
    "matmul_of_batches": "form, added to a batch",
    "matmul_of_one_row": "alone, one row",
    "matmul_with_producer": "before, a normalised row",
    "matmul_batch_added_up": "form, a batch added up",
    "convolution_of_pixels": "convolution, 1 x 1 in steps",
    "convolution": "convolution, 3 x 3",
    "convolution_channels_first": "convolution, channels first",
    "convolution_of_channels": "convolution, each channel by itself",
}
"""Files to names of cases, in kernels of ours."""


@pytest.fixture(autouse=True)
def without_nan_of_gelu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eager's gelu of infinity, which kernels follow, differs by processor where inputs are on the CPU."""
    monkeypatch.setattr(activations, "gelu_is_nan_at_infinity", lambda fake: False)


@pytest.mark.parametrize("name", CASES)
def test_source(codegen: TritonCodegen, name: str, request: pytest.FixtureRequest) -> None:
    function, inputs, dynamic = CASES[name]
    schedule = fuse_attention(schedule_of(function, inputs, codegen, dynamic), lambda _: True)
    _compare(name, codegen.print(schedule).source, request)


@pytest.mark.parametrize("name", PRODUCTS)
def test_product_source(codegen: TritonCodegen, name: str, request: pytest.FixtureRequest) -> None:
    function, inputs, _ = ALL[PRODUCTS[name]]
    schedule = schedule_of(function, inputs, codegen)
    _compare(name, _kernels(codegen, schedule), request)


def test_source_of_groups(codegen: TritonCodegen, request: pytest.FixtureRequest) -> None:
    inputs = E(41, 32).bfloat16(), E(3, 32, 48).bfloat16(), E(3, dtype=torch.int32)
    schedule = schedule_of(lambda x, w, e: torch._grouped_mm(x, w, e).relu(), inputs, codegen)
    _compare("matmul_of_groups", _kernels(codegen, schedule), request)


def _kernels(codegen: TritonCodegen, schedule: Schedule) -> str:
    """The kernels of ``schedule``, with every product in one of ours."""
    fused = fuse_matmuls(schedule, lambda forms: forms[0], codegen.schedule_options, REFERENCE)
    functions = codegen.print(fused).functions
    return "\n".join(function.module(name) for name, function in functions.items())


def _compare(name: str, source: str, request: pytest.FixtureRequest) -> None:
    path = FOLDER / f"{name}.txt"
    if request.config.getoption("--update-golden", default=False):
        path.parent.mkdir(exist_ok=True)
        path.write_text(source)
    assert source == path.read_text()
