"""Matrix products that oneDNN runs: chosen by size, layout and option; equal to torch's own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import sympy
import torch
import weft_loop_ir
from building import Builder, exprs
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F
from weft_codegen_cpp import CppCodegen, CppOptions
from weft_codegen_cpp._torch import packs_bfloat16
from weft_codegen_cpp.host.linear import with_linear_calls
from weft_loop_ir import BufferKind, BufferView, Schedule, SymbolInput

aten = torch.ops.aten
ONEDNN = CppOptions(matmul_library="onednn")

pytestmark = pytest.mark.skipif(
    not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN"
)


def product(x: torch.Tensor, right: torch.Tensor, bias: torch.Tensor | None) -> Schedule:
    """``x @ right (+ bias)`` as the only step."""
    b = Builder()
    operands = [b.view(b.like("x", x)), b.view(b.like("right", right))]
    if bias is not None:
        operands.insert(0, b.view(b.like("bias", bias)))
        b.inputs.insert(0, b.inputs.pop())
    b.buffer("y", BufferKind.OUTPUT, [x.shape[0], right.shape[1]], x.dtype)
    if bias is None:
        b.extern(aten.mm.default, operands, ["y"], out_variant=aten.mm.out)
    else:
        b.extern(aten.addmm.default, operands, ["y"], out_variant=aten.addmm.out)
    return b.schedule()


def is_linear(schedule: Schedule, options: CppOptions = ONEDNN) -> bool:
    return with_linear_calls(schedule, options) is not schedule


MATRICES = {
    "weight as a linear layer holds it": lambda: (torch.randn(130, 120), torch.randn(140, 120).t()),
    "weight the other way round": lambda: (torch.randn(130, 120), torch.randn(120, 140)),
    "columns of a wider matrix": lambda: (torch.randn(130, 300)[:, 7:127], torch.randn(120, 140)),
    "one column, that lies anyhow": lambda: (torch.randn(1, 1500).t(), torch.randn(1, 1400)),
    "one row": lambda: (torch.randn(1, 1500), torch.randn(1500, 1400)),
    "not finite": lambda: (
        torch.randn(130, 120).index_fill_(0, torch.tensor(3), torch.inf),
        torch.randn(120, 140).index_fill_(1, torch.tensor(5), torch.nan),
    ),
}


@pytest.mark.parametrize("name", MATRICES)
@pytest.mark.parametrize("biased", [False, True])
def test_matmuls(cache: Path, name: str, biased: bool) -> None:
    x, right = MATRICES[name]()
    bias = torch.randn(right.shape[1]) if biased else None
    b = product(x, right, bias)
    assert is_linear(b)
    program = CppCodegen(CppOptions(cache, poison_arena=True, matmul_library="onednn")).compile(
        b, {}
    )
    inputs = (x, right) if bias is None else (bias, x, right)
    want = torch.mm(x, right) if bias is None else torch.addmm(bias, x, right)
    for _ in range(2):
        (got,) = program(*inputs)
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4, equal_nan=True)
        assert got.stride() == want.stride()


def test_weights_are_read_at_each_call(cache: Path) -> None:
    x, weight = torch.randn(130, 120), torch.randn(120, 140)
    program = CppCodegen(CppOptions(cache, matmul_library="onednn")).compile(
        product(x, weight, None), {}
    )
    for _ in range(2):
        torch.testing.assert_close(program(x, weight)[0], x @ weight, rtol=1e-4, atol=1e-4)
        weight.data.mul_(-2)


@pytest.mark.parametrize("rows", [0, 1, 33, 200])
def test_rows_of_symbolic_number(cache: Path, rows: int) -> None:
    """One program for all sizes, zero included; and the product lies nowhere in the arena."""
    m = sympy.Symbol("m", integer=True, nonnegative=True)
    b = Builder()
    b.buffer("x", BufferKind.INPUT, [m, 120], torch.float32)
    b.buffer("w", BufferKind.INPUT, [120, 180], torch.float32)
    b.buffer("y", BufferKind.OUTPUT, [m, 180], torch.float32)
    b.symbols.append(SymbolInput(m, "x", 0, 0))
    b.extern(aten.mm.default, [b.view("x"), b.view("w")], ["y"], out_variant=aten.mm.out)
    assert is_linear(b.schedule())
    program = CppCodegen(CppOptions(cache, matmul_library="onednn")).compile(b.schedule(), {})
    x, w = torch.randn(rows, 120), torch.randn(120, 180)
    torch.testing.assert_close(program(x, w)[0], x @ w, rtol=1e-4, atol=1e-4)


def test_memory_of_a_result_that_onednn_allocates() -> None:
    b = Builder()
    for name in ("x", "w", "v"):
        b.buffer(name, BufferKind.INPUT, [128, 128], torch.float32)
    b.intermediate("t", [128, 128], torch.float32)
    b.buffer("y", BufferKind.OUTPUT, [128, 128], torch.float32)
    b.extern(aten.mm.default, [b.view("x"), b.view("w")], ["t"], out_variant=aten.mm.out)
    b.extern(aten.mm.default, [b.view("t"), b.view("v")], ["y"], out_variant=aten.mm.out)
    schedule = with_linear_calls(b.schedule(), ONEDNN)
    assert schedule.memory.arena_bytes == 0
    assert not schedule.memory.offsets


def test_what_stays_with_torch() -> None:
    large = torch.randn(128, 128)
    assert not is_linear(product(large, large, None), CppOptions(matmul_library="torch"))
    assert not is_linear(product(torch.randn(8, 8), torch.randn(8, 8), None))
    assert not is_linear(product(large.double(), large.double(), None))
    assert not is_linear(product(large.bfloat16(), large.bfloat16(), None))
    assert not is_linear(product(large, large, torch.randn(128, 128)))
    assert not is_linear(product(torch.randn(128, 256)[:, ::2], large, None))
    assert not is_linear(product(torch.randn(1, 128).expand(128, 128), large, None))
    assert not is_linear(product(large.t(), large, None))
    b = Builder()
    b.like("x", large)
    b.buffer("y", BufferKind.OUTPUT, [128, 128], torch.float32)
    bias = BufferView("x", exprs([128]), exprs([1]), exprs([0])[0], torch.float32)
    operands = [bias, b.view("x"), b.view("x")]
    b.extern(aten.addmm.default, operands, ["y"], {"alpha": 2}, aten.addmm.out)
    assert not is_linear(b.schedule())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_constants_of_the_graph_are_packed(cache: Path, dtype: torch.dtype) -> None:
    """A convolution on channels-last memory and a linear layer, with weights that never change."""

    def function(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, v: torch.Tensor) -> object:
        return (F.conv2d(x, w, b, 2, 1, 1, 2).relu().flatten(1).float() @ v.t(),)

    x = torch.randn(70, 4, 9, 9, dtype=dtype).contiguous(memory_format=torch.channels_last)
    weights = [torch.randn(6, 2, 3, 3).to(dtype), torch.randn(6).to(dtype), torch.randn(130, 150)]
    graph = make_fx(function, tracing_mode="fake")(x, *weights)
    frozen = weft_loop_ir.freeze(graph, dict(enumerate(weights, 1)))
    schedule = weft_loop_ir.schedule(weft_loop_ir.lower(frozen))
    program = CppCodegen(replace(ONEDNN, cache_directory=cache)).compile(schedule, {})
    packs = dtype == torch.float32 or packs_bfloat16()
    assert program.source.count("onednn_convolution(") == int(packs)
    assert program.source.count("linear(handle_of(") + program.source.count("linear(c.") == 1
    (result,) = program(x, *weights)
    exact = torch.relu(F.conv2d(x.double(), weights[0].double(), weights[1].double(), 2, 1, 1, 2))
    exact = exact.flatten(1) @ weights[2].double().t()
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(result.double(), exact, rtol=tolerance, atol=60 * tolerance)
