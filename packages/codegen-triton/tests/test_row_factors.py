"""Norms inside the matmuls of one row that read them: their factor scales the sums; beside float64."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import weft_loop_ir
from compiled_beside_eager import compiled, schedule_of
from torch.nn import functional as F
from weft_codegen_triton import TritonCodegen
from weft_codegen_triton.gpu import REFERENCE
from weft_codegen_triton.matmuls.fuse_matmuls import fuse_matmuls
from weft_codegen_triton.matmuls.untimed_choice import choose_untimed

T = torch.Tensor
Results = tuple[T, ...]
Function = Callable[[T, T, T, T, T], Results]


def norm(x: T, w: T) -> T:
    wide = x.float() if x.dtype != torch.float64 else x
    scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)
    return (wide * scale).to(x.dtype) * w


def alone(x: T, n: T, v: T, w: T, u: T) -> Results:
    return (F.linear(norm(x, n), w),)


def unit(x: T, n: T, v: T, w: T, u: T) -> Results:
    """Divided, and negated."""
    return (F.linear(-F.normalize(x, dim=-1), w),)


def by_mean(x: T, n: T, v: T, w: T, u: T) -> Results:
    """Two sums of each row."""
    scale = x.abs().sum(-1, keepdim=True) / (x * x).sum(-1, keepdim=True)
    return (F.linear(x * n * scale, w),)


def gated(x: T, n: T, v: T, w: T, u: T) -> Results:
    """Between a matmul and a sum, which is read again, and two matmuls."""
    x = 3 * n + F.linear(x, u)
    y = norm(x, n)
    return x, F.silu(F.linear(y, v)) * F.linear(y, w)


def three(x: T, n: T, v: T, w: T, u: T) -> Results:
    x = F.linear(x, u).abs() * n
    y = norm(x, n)
    return x, F.linear(y, v), F.linear(y, w).relu(), F.linear(y, u)


def quantised(x: T, n: T, v: T, w: T, u: T) -> Results:
    w = (w * 40).to(torch.int8).to(x.dtype) / 40
    return (F.linear(norm(x, n), w),)


def of_two(x: T, n: T, v: T, w: T, u: T) -> Results:
    """The sum is of what was stored and of what that was made of."""
    y = x + n
    scale = 1 / (x * y).abs().sum(-1, keepdim=True)
    return y, F.linear(y * scale, w)


INSIDE: dict[str, Function] = {
    f.__name__: f for f in (alone, unit, by_mean, gated, three, of_two, quantised)
}


def given(inner: int, columns: int, dtype: torch.dtype = torch.bfloat16) -> tuple[T, ...]:
    x, n = 3 * torch.randn(1, inner), 1 + 0.1 * torch.randn(inner)
    matrices = (torch.randn(c, inner) / inner**0.5 for c in (columns, columns, inner))
    return tuple(t.to(dtype) for t in (x, n, *matrices))


def assert_near_float64(got: Results, function: Function, inputs: Results) -> None:
    wide = function(*(t.double() for t in inputs))
    for result, eager, exact in zip(got, function(*inputs), wide, strict=True):
        largest = exact.abs().max()
        error, allowed = ((t.double() - exact).abs().max() / largest for t in (result, eager))
        assert error <= 1.5 * allowed + torch.finfo(result.dtype).eps


@pytest.mark.parametrize("name", INSIDE)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_beside_float64(codegen: TritonCodegen, name: str, dtype: torch.dtype) -> None:
    function, inputs = INSIDE[name], given(72, 40, dtype)
    program = compiled(codegen, function, *inputs)
    assert program.extern_count == 0 and "KBLOCK" in program.source
    assert "rsqrt" not in program.source or "factor = " in program.source
    assert program.kernel_count == {"gated": 2, "three": 2, "of_two": 2}.get(name, 1)
    assert_near_float64(program(*inputs), function, inputs)


def test_of_rows_that_take_several_steps(codegen: TritonCodegen) -> None:
    """The last of which is not full."""
    inputs = given(2056, 6)[:4] + given(8, 8)[:1]
    program = compiled(codegen, alone, *inputs)
    assert "factor = " in program.source
    assert_near_float64(program(*inputs), alone, inputs)


@pytest.mark.parametrize("name", INSIDE)
def test_nests(codegen: TritonCodegen, name: str) -> None:
    """What the kernels stand for is verified, and evaluated."""
    function, inputs = INSIDE[name], given(40, 24)
    schedule = schedule_of(function, inputs, codegen)
    schedule = fuse_matmuls(schedule, choose_untimed, codegen.schedule_options, REFERENCE)
    weft_loop_ir.verify(schedule)
    got = weft_loop_ir.evaluate(schedule, inputs)
    torch.testing.assert_close(got, [*function(*inputs)], rtol=2e-2, atol=2e-2)


def with_mean(x: T, n: T, v: T, w: T, u: T) -> Results:
    return (F.linear(F.layer_norm(x, x.shape[-1:], n), w),)


def read_elsewhere(x: T, n: T, v: T, w: T, u: T) -> Results:
    y = norm(x, n)
    return y, F.linear(y, w)


def columns_apart(x: T, n: T, v: T, w: T, u: T) -> Results:
    return (norm(x, n) @ u.t().contiguous(),)


def bounded(x: T, n: T, v: T, w: T, u: T) -> Results:
    """No product of a factor and elements."""
    return (F.linear(norm(x, n).clamp(-1, 1), w),)


def several_rows(x: T, n: T, v: T, w: T, u: T) -> Results:
    return (F.linear(norm(x.expand(3, -1) * 1, n), w),)


def by_heads(x: T, n: T, v: T, w: T, u: T) -> Results:
    """Several factors for what is added up."""
    return (F.linear(F.normalize(x.view(4, -1), dim=-1).view(1, -1), w),)


APART = (with_mean, by_heads, read_elsewhere, columns_apart, bounded, several_rows)


@pytest.mark.parametrize("function", APART, ids=lambda f: f.__name__)
def test_norms_that_stay_apart(codegen: TritonCodegen, function: Function) -> None:
    inputs = given(72, 40)
    program = compiled(codegen, function, *inputs)
    assert "factor = " not in program.source
    torch.testing.assert_close(program(*inputs), [*function(*inputs)], rtol=2e-2, atol=2e-2)
