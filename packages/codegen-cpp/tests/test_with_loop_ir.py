"""Functions lowered and scheduled by loop-ir, compiled here, beside eager; and the README's example."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import weft_loop_ir
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F
from weft_codegen_cpp import CppCodegen


def mlp(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.gelu(x @ w) @ v + x


def attention(x: torch.Tensor) -> torch.Tensor:
    scores = (x @ x.transpose(1, 2)) / x.shape[-1] ** 0.5
    mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
    return torch.softmax(scores.masked_fill(~mask, float("-inf")), -1) @ x


def lstm_cell(g: torch.Tensor, c: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    i, f, z, o = g.chunk(4, 1)
    c = f.sigmoid() * c + i.sigmoid() * z.tanh()
    return o.sigmoid() * c.tanh(), c


R = torch.randn
CASES: dict[str, tuple[Callable[..., object], tuple[torch.Tensor, ...]]] = {
    "softmax and product": (lambda x, y: (x.softmax(-1) * y).sum(0), (R(64, 100), R(64, 100))),
    "log softmax": (lambda x: x.log_softmax(0), (R(64, 33),)),
    "layer norm": (lambda x, w: F.layer_norm(x, [100], w), (R(8, 100), R(100))),
    "group norm": (lambda x, w, b: F.silu(F.group_norm(x, 4, w, b)), (R(2, 8, 9, 9), R(8), R(8))),
    "batch norm": (lambda x, m: F.relu(F.batch_norm(x, m, m.exp())), (R(2, 8, 9, 9), R(8))),
    "mlp": (mlp, (R(6, 16), R(16, 40), R(40, 16))),
    "attention": (attention, (R(2, 20, 16),)),
    "lstm cell": (lstm_cell, (R(5, 4 * 37), R(5, 37))),
    "embedding": (lambda i, w: F.embedding(i, w) * 2, (torch.randint(0, 10, (3, 7)), R(10, 33))),
    "convolution": (lambda x, w: F.relu(F.conv2d(x, w, padding=1)), (R(2, 8, 9, 9), R(4, 8, 3, 3))),
    "pooling": (lambda x: F.max_pool2d(x, 2) + 1, (R(2, 3, 8, 8),)),
    "concatenation": (lambda x, y: torch.cat([x, y.exp()], 1)[:, 2:] * 2, (R(4, 5), R(4, 9))),
    "transposes": (lambda x, y: (x.t() + y).contiguous().t(), (R(40, 70), R(70, 40))),
    "statistics": (
        lambda x: (x.var(0), x.std(1), x.amax(1), x.argmax(0), (x > 9).any(), x.mean()),
        (R(33, 50),),
    ),
    "integers": (
        lambda a, b: (a + b, a // 3, a % 5, (a * b).sum(1), a > b),
        (torch.randint(-9, 9, (5, 33)), torch.randint(-9, 9, (5, 33))),
    ),
    "bfloat16": (lambda x: F.softmax(x, -1) + x, (R(8, 100).bfloat16(),)),
    "half": (lambda x: F.gelu(x) * 2, (R(8, 100).half(),)),
    "float64": (lambda x: (x.exp().sum(1), x.tanh()), (R(8, 100).double(),)),
    "padding and views": (
        lambda x: F.pad(x, (1, 2, 0, 3)).reshape(-1)[3:].flip(0) + 1,
        (R(5, 7),),
    ),
    "repeated result": (lambda x: (x.exp(), x, x.view(-1)), (R(4, 6),)),
}


@pytest.mark.parametrize("name", CASES)
def test_against_eager(codegen: CppCodegen, name: str) -> None:
    function, inputs = CASES[name]
    with torch.no_grad():
        graph = make_fx(function, tracing_mode="fake")(*inputs)
        schedule = weft_loop_ir.schedule(weft_loop_ir.lower(graph))
        program = codegen.compile(schedule, {})
        wanted = function(*inputs)
    results = program(*inputs)
    expected = wanted if isinstance(wanted, tuple) else (wanted,)
    half = any(x.dtype in (torch.float16, torch.bfloat16) for x in inputs)
    for got, want in zip(results, expected, strict=True):
        tolerance = 2e-2 if half else 2e-5
        torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)
        assert got.stride() == want.stride()


def test_the_readmes_example(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    monkeypatch.setenv("WEFT_CACHE_DIR", str(cache))
    readme = (Path(__file__).parents[1] / "README.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    exec(compile(example, "README.md", "exec"), {})


def test_kernels_of_different_sizes_run_in_one_region(codegen: CppCodegen) -> None:
    """Their function is compiled once; every element is computed once, on one thread or several."""
    sizes = [(900, 70), (1,), (), (33,), (5000,), (2, 1024), (64, 64)]

    def function(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(torch.tanh(x) * 2 for x in tensors)

    inputs = [torch.randn(size) for size in sizes]
    graph = make_fx(function, tracing_mode="fake")(*inputs)
    schedule = weft_loop_ir.schedule(weft_loop_ir.lower(graph), codegen.schedule_options)
    program = codegen.compile(schedule, {})
    assert program.kernel_count == 1
    assert program.source.count("WEFT_KERNEL void") == 4  # two functions and their prototypes
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            for result, x in zip(program(*inputs), inputs, strict=True):
                torch.testing.assert_close(result, torch.tanh(x) * 2)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu_at_infinity(codegen: CppCodegen, approximate: str, dtype: str) -> None:
    """Where eager's result depends on layout and number of elements, too."""
    special = torch.tensor([float("inf"), -float("inf"), float("nan"), -0.0, 1e30, -1e30])
    row = special.repeat(7).to(getattr(torch, dtype))
    for x in (row, torch.stack([row, row], 1)[:, 0], row[:1], row[0]):
        graph = make_fx(lambda x: (F.gelu(x, approximate=approximate),), tracing_mode="fake")(x)
        program = codegen.compile(weft_loop_ir.schedule(weft_loop_ir.lower(graph)), {})
        expected = F.gelu(x, approximate=approximate)
        torch.testing.assert_close(program(x)[0], expected, equal_nan=True)
