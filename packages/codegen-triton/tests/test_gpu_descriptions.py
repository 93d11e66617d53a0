"""Kernels fit the GPU that they are made for: one of less shared memory gets smaller tiles."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from compiled_beside_eager import assert_equals_eager, schedule_of
from torch.nn import functional as F
from weft_codegen_triton import TritonCodegen, TritonOptions
from weft_codegen_triton.compilation.client import compile_server
from weft_codegen_triton.gpu import REFERENCE, Gpu
from weft_codegen_triton.kernel.kernel_printer import Function
from weft_codegen_triton.runtime.cuda_device import compile_job
from weft_codegen_triton.runtime.cuda_driver import gpu_of_device
from weft_loop_ir import Kernel

KIB = 1 << 10
GPUS = {
    "A100": Gpu(80, 108, 163 * KIB, 164 * KIB, 1 << 16, 40 << 20, 2.0e6, 312e6, 19.5e6),
    "RTX 4090": Gpu(89, 128, 99 * KIB, 100 * KIB, 1 << 16, 72 << 20, 1.0e6, 165e6, 82e6),
    "48 KiB": Gpu(86, 20, 48 * KIB, 64 * KIB, 1 << 16, 2 << 20, 0.3e6, 20e6, 5e6),
    "reference": REFERENCE,
}


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.softmax(torch.tanh(q @ k.transpose(-1, -2)), -1) @ v


def gradients(
    tangent: torch.Tensor,
    result: torch.Tensor,
    largest: torch.Tensor,
    logarithm: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
) -> tuple[torch.Tensor, ...]:
    """Backward of attention, which knows the largest score of a row and its sum's logarithm."""
    weights = torch.exp((q @ k.mT).float() - largest - logarithm)
    sums = (result * tangent).float().sum(-1, keepdim=True)
    of_scores = (weights * ((tangent @ v.mT).float() - sums)).to(q.dtype)
    return of_scores @ k, of_scores.mT @ q, weights.to(q.dtype).mT @ tangent


def linear(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.relu(x @ w + 1)


def gated(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.silu(x @ w) * (x @ w.neg())


def few_queries(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return -F.scaled_dot_product_attention(q, k, v)


def cached(queries: int, width: int) -> list[torch.Tensor]:
    return [torch.randn(1, 2, n, width).half() for n in (queries, 2000, 2000)]


def convolution(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.conv2d(x, w, padding=1).relu()


def matrices(rows: int, inner: int, columns: int, dtype: torch.dtype) -> list[torch.Tensor]:
    return [torch.randn(rows, inner).to(dtype), torch.randn(inner, columns).to(dtype)]


def heads(width: int, dtype: torch.dtype) -> list[torch.Tensor]:
    return [torch.randn(2, 3, 80, width).to(dtype) for _ in range(3)]


def given_to_gradients(width: int, dtype: torch.dtype) -> list[torch.Tensor]:
    kept = [torch.randn(2, 3, 80, 1) for _ in range(2)]
    return [*heads(width, dtype)[:2], *kept, *heads(width, dtype)]


HALF, FLOAT, DOUBLE = torch.float16, torch.float32, torch.float64
CASES: dict[str, tuple[Callable[..., Any], Callable[[], list[torch.Tensor]]]] = {
    "large": (linear, lambda: matrices(4096, 512, 2048, HALF)),
    "tall": (linear, lambda: matrices(20000, 128, 64, HALF)),
    "few rows": (linear, lambda: matrices(8, 512, 512, HALF)),
    "one row": (linear, lambda: matrices(1, 2048, 512, HALF)),
    "gated few rows": (gated, lambda: matrices(16, 512, 512, HALF)),
    "one query": (few_queries, lambda: cached(1, 64)),
    "few queries": (few_queries, lambda: cached(50, 128)),
    "float32": (linear, lambda: matrices(512, 256, 512, FLOAT)),
    "float64": (linear, lambda: matrices(256, 256, 256, DOUBLE)),
    "image": (
        convolution,
        lambda: [torch.randn(2, 32, 20, 20).half(), torch.randn(64, 32, 3, 3).half()],
    ),
    "reduced rows": (
        lambda x, w: (y := x @ w, *torch.var_mean(y, 0)),
        lambda: [torch.randn(1 << 16, 32).half(), torch.randn(32, 192).half()],
    ),
    "narrow heads": (attention, lambda: heads(64, HALF)),
    "heads": (attention, lambda: heads(128, HALF)),
    "wide heads": (attention, lambda: heads(256, HALF)),
    "heads in float32": (attention, lambda: heads(64, FLOAT)),
    "gradients of narrow heads": (gradients, lambda: given_to_gradients(64, HALF)),
    "gradients of wide heads": (gradients, lambda: given_to_gradients(256, HALF)),
    "gradients in float32": (gradients, lambda: given_to_gradients(64, FLOAT)),
    "wide gradients in float32": (gradients, lambda: given_to_gradients(256, FLOAT)),
    "scanned rows": (lambda x: x.cumsum(1), lambda: [torch.randn(64, 3000)]),
    "scanned columns": (lambda x: x.cumsum(0), lambda: [torch.randn(3000, 64)]),
    "rows": (lambda x: x.softmax(-1), lambda: [torch.randn(64, 5000)]),
    "columns": (lambda x: x.sum(0), lambda: [torch.randn(3000, 64)]),
    "transposed": (lambda x: x.t() + 1, lambda: [torch.randn(200, 300)]),
}


def options(gpu: Gpu, folder: Path) -> TritonOptions:
    return TritonOptions(cache_directory=folder, fuse_matmuls=True, fuse_attention=True, gpu=gpu)


def functions(gpu: Gpu, name: str, folder: Path) -> list[Function]:
    """Every function of a case's program, tiles that are to be timed included."""
    function, inputs = CASES[name]
    codegen = TritonCodegen(options(gpu, folder))
    program = codegen.compile(schedule_of(function, inputs(), codegen), {})
    printed = getattr(program, "_first", program).generated.printed
    found = list(printed.functions.values())
    return found + [other for function in found for other in function.alternatives]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(
    "gpu", ["48 KiB", *(pytest.param(g, marks=pytest.mark.slow) for g in ("A100", "RTX 4090"))]
)
def test_compiled_kernels_fit(gpu: str, name: str, cache: Path) -> None:
    """By the compiler's own count, for the GPU's architecture."""
    chosen = GPUS[gpu]
    server = compile_server(cache / "compiled", 1)
    (cache / "compiled").mkdir(mode=0o700, exist_ok=True)
    for function in functions(chosen, name, cache):
        job = compile_job(function, chosen.capability)
        binary = server.compile([job])[job.key()]
        assert binary.shared_bytes <= chosen.shared_bytes, function.constants


@pytest.mark.parametrize(
    "name", ["few rows", "float32", "narrow heads", "wide heads", "few queries"]
)
@pytest.mark.parametrize("gpu", ["48 KiB", "RTX 4090"])
def test_smaller_tiles_give_the_same(gpu: str, name: str, cache: Path) -> None:
    function, inputs = CASES[name]
    given = [x.float().div(8).to(x.dtype) for x in inputs()]
    codegen = TritonCodegen(options(GPUS[gpu], cache))
    program = codegen.compile(schedule_of(function, given, codegen), {})
    assert_equals_eager(program(*given), function, given)


def test_gradients_that_no_tile_is_small_enough_for(cache: Path) -> None:
    """Such a GPU has the library's matmuls instead."""
    function, inputs = CASES["wide gradients in float32"]
    for gpu, is_fused in (("48 KiB", False), ("reference", True)):
        codegen = TritonCodegen(options(GPUS[gpu], cache))
        program = codegen.compile(schedule_of(function, inputs(), codegen), {})
        assert ("attention_backward" in program.source) == is_fused


@pytest.mark.parametrize("gpu", GPUS)
def test_sums_of_columns_are_for_the_gpu(gpu: str, cache: Path) -> None:
    """They are split for about as many programs as run at once on that GPU."""
    codegen = TritonCodegen(options(GPUS[gpu], cache))
    kernel, _ = schedule_of(lambda x: x.sum(0), [torch.randn(1 << 15, 64)], codegen).steps
    assert isinstance(kernel, Kernel)
    columns, _ = codegen.schedule_options.split_column_tile
    programs = math.prod(int(loop.size) for loop in kernel.outer) // columns
    wanted = 4 * GPUS[gpu].multiprocessors
    assert wanted / 2 < programs < 2 * wanted


def test_a_choice_is_one_gpus(cache: Path) -> None:
    """Programs that are kept for other processes are kept apart."""
    texts = {TritonCodegen(options(gpu, cache)).environment() for gpu in GPUS.values()}
    assert len(texts) == len(GPUS)


def test_what_a_driver_says() -> None:
    """An H100's numbers, by those of ``CUdevice_attribute``."""
    said = {75: 9, 76: 0, 16: 132, 13: 1980000, 36: 2619000, 97: 227 * KIB, 81: 228 * KIB}
    said |= {82: 1 << 16, 38: 50 << 20, 37: 5120}
    found = Gpu.of_attributes(said.__getitem__)
    assert found.capability == 90 and found.many_tiles == 128
    assert found.tile_bytes < found.shared_bytes
    assert found.bandwidth == pytest.approx(3.35e6, rel=0.01)
    assert found.half_rate == pytest.approx(1070e6, rel=0.02)
    assert found.float_rate == pytest.approx(67e6, rel=0.02)


@pytest.mark.gpu
def test_the_device_is_described() -> None:
    found = gpu_of_device(torch.cuda.current_device())
    properties = torch.cuda.get_device_properties(0)
    assert found.multiprocessors == properties.multi_processor_count
    assert found.capability == 10 * properties.major + properties.minor
    assert 48 * KIB <= found.shared_bytes <= found.all_shared_bytes
    assert found.bandwidth > 1e5 and found.half_rate > found.float_rate > 1e6
