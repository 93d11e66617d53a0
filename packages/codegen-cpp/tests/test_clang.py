"""Clang compiles what GCC compiles, for this processor and for ARM's; skipped where there is no Clang."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import weft_loop_ir
from torch.fx.experimental.proxy_tensor import make_fx
from weft_codegen_cpp import CppCodegen, CppOptions
from weft_codegen_cpp.toolchain import FLAGS, RUNTIME
from weft_loop_ir import Schedule


@pytest.fixture(scope="module")
def clang(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Clang by its name, or the one in the package ``ziglang``."""
    path = shutil.which("clang++")
    if path is not None:
        return path
    zig = importlib.util.find_spec("ziglang")
    if zig is None or not zig.submodule_search_locations:
        pytest.skip("neither clang++ nor the package ziglang is installed")
    script = tmp_path_factory.mktemp("clang") / "clang.zig"
    program = Path(zig.submodule_search_locations[0]) / "zig"
    script.write_text(f'#!/bin/sh\nexec "{program}" c++ "$@"\n')
    script.chmod(0o755)
    return str(script)


def pointwise(x: torch.Tensor, y: torch.Tensor) -> tuple[Any, ...]:
    """The functions of ``weft_math.h``, comparisons, and a narrow dtype."""
    positive = x.abs() + 0.5
    smooth = x.exp() + positive.log() + x.tanh() + x.erf() + x.sin() + positive.pow(y) + y.sigmoid()
    low = (x.bfloat16() * y.bfloat16()).relu()
    return smooth, low, (x > 0) & (y > 1), torch.where(x > y, x.int(), y.int()) // 3, F.gelu(x)


def reductions(x: torch.Tensor, y: torch.Tensor) -> tuple[Any, ...]:
    """Rows, columns, moments and positions."""
    rows = torch.softmax(x, -1) * F.layer_norm(y, y.shape[-1:])
    return rows, x.sum(0), x.var(-1), y.argmax(-1), (x > 0).any(0), y.amax()


def movements(x: torch.Tensor, y: torch.Tensor) -> tuple[Any, ...]:
    """Transposed and indexed accesses, a scatter, and a library call."""
    rows = torch.tensor([3, 1, 1, 0])
    turned = x.t() + y.reshape(-1)[: x.numel()].view(x.shape[1], x.shape[0])
    return turned, x[rows], torch.zeros_like(x).index_add(0, rows, y[rows]), x @ y.t()


def attention(x: torch.Tensor, y: torch.Tensor) -> tuple[Any, ...]:
    """The kernel of the runtime, in both of its dtypes."""
    queries, keys = (t[:, :32].reshape(1, 1, -1, 32) for t in (x, y))
    low = F.scaled_dot_product_attention(queries.bfloat16(), keys.bfloat16(), keys.bfloat16())
    return F.scaled_dot_product_attention(queries, keys, keys), low


PROGRAMS = [pointwise, reductions, movements, attention]


def scheduled(program: Callable[..., Any], *inputs: torch.Tensor) -> Schedule:
    graph = make_fx(program, tracing_mode="symbolic")(*inputs)
    return weft_loop_ir.schedule(weft_loop_ir.lower(graph))


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_results(clang: str, program: Callable[..., Any], tmp_path: Path) -> None:
    inputs = torch.randn(37, 45), torch.randn(37, 45)
    schedule = scheduled(program, *inputs)
    codegen = CppCodegen(CppOptions(compiler=clang, cache_directory=tmp_path))
    for result, expected in zip(
        codegen.compile(schedule, {})(*inputs), program(*inputs), strict=True
    ):
        low = {"rtol": 1.6e-2, "atol": 1e-3} if expected.dtype == torch.bfloat16 else {}
        torch.testing.assert_close(result, expected, **low)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
@pytest.mark.parametrize("system", ["linux", "macos"])
def test_compiles_for_arm(
    clang: str, system: str, program: Callable[..., Any], tmp_path: Path
) -> None:
    """The whole unit, kernels and host program, with vectors of NEON's width."""
    is_zig = Path(clang).suffix == ".zig"
    macos = "aarch64-macos" if is_zig else "arm64-apple-macos11"
    target = macos if system == "macos" else "aarch64-linux-gnu"
    inputs = torch.randn(37, 45), torch.randn(37, 45)
    unit, _ = CppCodegen(CppOptions(lanes=4)).print(scheduled(program, *inputs), {})
    source = tmp_path / "unit.cpp"
    source.write_text(unit.whole)
    flags = [flag for flag in FLAGS if flag != "-shared"]
    command = [clang, *flags, "-target", target, "-DWEFT_LANES=4", f"-I{RUNTIME}"]
    result = subprocess.run(
        [*command, "-Wno-everything", "-c", str(source), "-o", str(tmp_path / "unit.o")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
