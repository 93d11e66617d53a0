"""Calls that the host program makes of its own choice, on operands that the callee does not take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import weft_loop_ir
from building import Builder
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F
from weft_codegen_cpp import CppCodegen, CppOptions
from weft_codegen_cpp.host.api import OPTIONAL_TORCH_FUNCTIONS, TORCH_FUNCTIONS
from weft_loop_ir import CALLEES, BufferKind, Schedule

aten = torch.ops.aten
ONEDNN = CppOptions(matmul_library="onednn")

needs_onednn = pytest.mark.skipif(
    not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN"
)


def test_what_the_host_program_calls_is_in_the_table() -> None:
    operators = []
    for function in TORCH_FUNCTIONS + OPTIONAL_TORCH_FUNCTIONS:
        _, of_the_cpu, name = function.partition("aoti_torch_cpu_")
        if of_the_cpu:
            operators.append(name.removesuffix("_out"))
    spelled = {name.removeprefix("mkldnn_") for name in operators}
    known = {name.partition("::")[2] for name in CALLEES}
    assert spelled
    assert spelled - known == set()


BIASES = {
    "side by side": lambda n: torch.randn(n),
    "none": lambda n: None,
    "every other": lambda n: torch.randn(2 * n)[::2],
    "expanded": lambda n: torch.randn(1).expand(n),
    "column": lambda n: torch.randn(n, 3)[:, 1],
    "offset": lambda n: torch.randn(n + 1)[1:],
}

IMAGES = {
    "whole": lambda: torch.randn(2, 16, 20, 20),
    "channels-last": lambda: torch.randn(2, 16, 20, 20).to(memory_format=torch.channels_last),
    "expanded": lambda: torch.randn(1, 16, 1, 1).expand(2, 16, 20, 20),
    "columns": lambda: torch.randn(2, 16, 20, 40)[..., ::2],
    "transposed": lambda: torch.randn(2, 16, 20, 20).transpose(2, 3),
    "offset": lambda: torch.randn(2 * 16 * 400 + 1)[1:].view(2, 16, 20, 20),
    "no image": lambda: torch.randn(0, 16, 20, 20),
}


def _schedule(function: Callable[..., Any], *inputs: torch.Tensor, mode: str) -> Schedule:
    graph = make_fx(function, tracing_mode=mode)(*inputs)  # type: ignore[arg-type]
    return weft_loop_ir.schedule(weft_loop_ir.lower(graph))


@needs_onednn
@pytest.mark.parametrize("mode", ["fake", "symbolic"])
@pytest.mark.parametrize(
    ("bias", "image"),
    [*((b, "whole") for b in BIASES), *((b, i) for b in ("offset", "column") for i in IMAGES)],
)
def test_convolutions(cache: Path, bias: str, image: str, mode: str) -> None:
    """oneDNN reads a bias from its address on as if its elements lay side by side."""
    x, b = IMAGES[image](), BIASES[bias](32)
    w = torch.randn(32, 16, 3, 3)

    def convolve(x: torch.Tensor, w: torch.Tensor, *b: torch.Tensor) -> torch.Tensor:
        return F.conv2d(x, w, *b, padding=1)

    inputs = (x, w) if b is None else (x, w, b)
    program = CppCodegen(replace(ONEDNN, cache_directory=cache)).compile(
        _schedule(convolve, *inputs, mode=mode), {}
    )
    if image == "whole":
        runs_in_onednn = "onednn_convolution(" in program.source
        assert runs_in_onednn == (bias not in ("every other", "expanded", "column"))
    (got,) = program(*inputs)
    torch.testing.assert_close(got, convolve(*inputs), rtol=1e-4, atol=1e-4)


@needs_onednn
def test_oneDNN_that_is_switched_off(cache: Path) -> None:
    def network(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.conv2d(x, w, padding=1).flatten(1) @ v

    inputs = torch.randn(2, 16, 20, 20), torch.randn(32, 16, 3, 3), torch.randn(12800, 300) / 100
    schedule = _schedule(network, *inputs, mode="fake")
    sources = {}
    for enabled in (True, False):
        with torch.backends.mkldnn.flags(enabled=enabled):
            program = CppCodegen(replace(ONEDNN, cache_directory=cache)).compile(schedule, {})
            torch.testing.assert_close(program(*inputs)[0], network(*inputs), rtol=1e-3, atol=1e-3)
        sources[enabled] = program.source
    assert "onednn_convolution(" in sources[True]
    assert "onednn_convolution(" not in sources[False]
    assert "linear(v" not in sources[False]


@needs_onednn
@pytest.mark.parametrize("bias", BIASES)
def test_convolutions_with_constant_weights(cache: Path, bias: str) -> None:
    b = BIASES[bias](32)
    module = torch.nn.Conv2d(16, 32, 3, bias=b is not None).eval()
    if b is not None:
        module.bias = torch.nn.Parameter(b)
    x = torch.randn(2, 16, 20, 20).to(memory_format=torch.channels_last)
    parameters = tuple(p.detach() for p in (module.weight, module.bias) if p is not None)

    def convolve(x: torch.Tensor, *parameters: torch.Tensor) -> torch.Tensor:
        return F.conv2d(x, *parameters)

    graph = make_fx(convolve, tracing_mode="fake")(x, *parameters)
    frozen = weft_loop_ir.freeze(graph, dict(enumerate(parameters, 1)))
    CppCodegen().rewrite(frozen)
    schedule = weft_loop_ir.schedule(weft_loop_ir.lower(frozen))
    program = CppCodegen(replace(ONEDNN, cache_directory=cache)).compile(schedule, {})
    (got,) = program(x, *parameters)
    torch.testing.assert_close(got, module(x).detach(), rtol=1e-4, atol=1e-4)


ROWS = {
    "whole": lambda t, *n: torch.randn(n).to(t),
    "columns of wider rows": lambda t, *n: torch.randn(*n[:-1], n[-1] + 3).to(t)[..., 1:-2],
    "every other": lambda t, *n: torch.randn(*n[:-1], 2 * n[-1]).to(t)[..., ::2],
    "transposed": lambda t, *n: torch.randn(*n[:-2], n[-1], n[-2]).to(t).transpose(-1, -2),
    "expanded": lambda t, *n: torch.randn(*n[:-1], 1).to(t).expand(n),
}


@pytest.mark.parametrize("width", [8, 7])
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize(
    ("position", "dtype"),
    [
        (0, torch.float32),
        (1, torch.float32),
        (2, torch.float32),
        (1, torch.float64),
        (1, torch.bfloat16),
        (2, torch.float16),
    ],
    ids=str,
)
def test_attention(cache: Path, position: int, rows: str, dtype: torch.dtype, width: int) -> None:
    """torch's kernel for the CPU reads rows so too, whatever the strides."""
    size = (1, 2, 5, width)
    operands = [torch.randn(size).to(dtype) for _ in range(3)]
    operands[position] = ROWS[rows](dtype, *size)
    b = Builder()
    views = [b.view(b.like(name, t)) for name, t in zip("qkv", operands, strict=True)]
    b.buffer("y", BufferKind.OUTPUT, size, dtype)
    b.extern(aten._scaled_dot_product_flash_attention_for_cpu.default, views, ["y", None])
    program = CppCodegen(CppOptions(cache)).compile(b.schedule(), {})
    contiguous = [t.contiguous() for t in operands]
    want = aten._scaled_dot_product_flash_attention_for_cpu.default(*contiguous)[0]
    error = {torch.float32: 1e-5, torch.float64: 1e-10}.get(dtype, 2e-2)
    torch.testing.assert_close(program(*operands)[0], want, rtol=error, atol=error)
