"""Results of operators that lie otherwise than their meta functions promise are read where they lie.

Fourier transforms on the CPU are such operators in torch 2.11; others may be in any release, so here is one
that is so in all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import weft
import weft_loop_ir
from torch.fx.experimental.proxy_tensor import make_fx
from weft_codegen_cpp import CppCodegen, CppOptions
from weft_codegen_triton import TritonCodegen, TritonOptions

from tests.triton_interpreter import require_interpreter

require_interpreter()

T = torch.Tensor


@pytest.fixture(scope="module")
def turned() -> Iterator[Callable[[T], tuple[T, T]]]:
    """Two results that lie column by column, promised row by row."""
    with torch.library._scoped_library("weft_tests", "FRAGMENT") as library:
        library.define("turned(Tensor x) -> (Tensor, Tensor)")
        library.impl(
            "turned",
            lambda x: tuple((x * k).mT.contiguous().mT for k in (2, 3)),
            "CompositeExplicitAutograd",
        )
        library._register_fake("turned", lambda x: (x.new_empty(x.shape), x.new_empty(x.shape)))
        yield torch.ops.weft_tests.turned.default


Compile = Callable[[weft_loop_ir.Schedule], Callable[..., Any]]


@pytest.fixture(params=["evaluator", "cpp", "triton"])
def compile_schedule(request: pytest.FixtureRequest, tmp_path: Path) -> Compile:
    """What makes a callable of a schedule: each of the code generators, and the evaluator."""
    match request.param:
        case "evaluator":
            return lambda schedule: lambda *v: weft_loop_ir.evaluate(schedule, v, use_arena=True)
        case "cpp":
            return lambda s: CppCodegen(CppOptions(cache_directory=tmp_path)).compile(s, {})
        case _:
            return lambda s: TritonCodegen(TritonOptions(interpret=True)).compile(s, {})


@pytest.mark.parametrize("shape", [(3, 5), (2, 3, 5), (1, 4), (0, 3)], ids=str)
def test_results_are_read_where_they_lie(
    turned: Any, compile_schedule: Compile, shape: tuple[int, ...]
) -> None:
    def function(x: T) -> tuple[T, ...]:
        first, second = turned(x + 1)
        return first, second.exp() - first, second.mT[..., 1:, :] * 2, first.sum(-1)

    x = torch.randn(shape)
    graph = make_fx(function, tracing_mode="fake")(x)
    schedule = weft_loop_ir.schedule(weft_loop_ir.lower(graph))
    for result, expected in zip(compile_schedule(schedule)(x), function(x), strict=True):
        torch.testing.assert_close(result, expected)


def test_in_loops_and_in_backward(turned: Any) -> None:
    def function(x: T, steps: T) -> tuple[T, T]:
        k = torch.zeros_like(steps)
        total = x.detach()
        while k < steps:
            total = turned(total.tanh())[0] + x.detach() * k
            k = k + 1
        return total, (x * turned(total)[1]).sum()

    x = torch.randn(4, 6, requires_grad=True)
    expected, loss = function(x, torch.tensor(3))
    loss.backward()
    gradient, x.grad = x.grad, None
    result, loss = weft.compile(function)(x, torch.tensor(3))
    loss.backward()
    torch.testing.assert_close((result, x.grad), (expected, gradient))


@pytest.mark.filterwarnings("ignore:weft.*strides that overlap")
@pytest.mark.parametrize("transform", ["fft", "ifft", "rfft", "ihfft", "fft2", "rfftn"])
@pytest.mark.parametrize("dims", [(0, 1), (1, 0), (2, 0), (1, 2)], ids=str)
def test_fourier_transforms(
    transform: str, dims: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In torch 2.11 some over two dims are promised strides that no tensor has: such graphs run in eager."""
    monkeypatch.delenv("WEFT_STRICT")
    several = transform in ("fft2", "rfftn")
    where: dict[str, Any] = {"dim": dims} if several else {"dim": dims[0]}

    def function(x: T) -> tuple[T, ...]:
        y = getattr(torch.fft, transform)(x.sin(), **where)
        return y, y.abs() + 1, y.real.mT * y.imag.mT

    for x in (torch.randn(3, 5, 4), torch.randn(4, 3, 6)):  # of sizes that vary then
        for result, expected in zip(weft.compile(function)(x), function(x), strict=True):
            torch.testing.assert_close(result, expected)
