"""Gradients of common operators: the evaluator and the compiled program beside eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import weft_loop_ir
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F
from weft_codegen_cpp import CppCodegen

R = torch.randn
IMAGE = R(2, 3, 9, 11)
FORWARD: dict[str, tuple[Callable[..., torch.Tensor], tuple[Any, ...]]] = {
    "max pooling": (lambda x: F.max_pool2d(x, 2), (IMAGE,)),
    "max pooling, overlapping": (lambda x: F.max_pool2d(x, 3, 2, 1), (IMAGE,)),
    "max pooling, ceil": (lambda x: F.max_pool2d(x, 3, 2, 1, ceil_mode=True), (IMAGE,)),
    "max pooling, gaps": (lambda x: F.max_pool2d(x, 2, 3), (IMAGE,)),
    "average pooling": (lambda x: F.avg_pool2d(x, 3, 2, 1), (IMAGE,)),
    "average pooling, counted": (
        lambda x: F.avg_pool2d(x, (3, 2), 2, 1, ceil_mode=True, count_include_pad=False),
        (IMAGE,),
    ),
    "average pooling, gaps": (lambda x: F.avg_pool2d(x, 2, 3, divisor_override=5), (IMAGE,)),
    "adaptive pooling to one": (lambda x: F.adaptive_avg_pool2d(x, 1), (IMAGE,)),
    "adaptive pooling, overlapping": (lambda x: F.adaptive_avg_pool2d(x, (4, 5)), (IMAGE,)),
    "adaptive pooling, enlarging": (lambda x: F.adaptive_avg_pool2d(x, (12, 11)), (IMAGE,)),
    "overlapping patches": (lambda x: F.unfold(x, (3, 2), (1, 2), (1, 0), 2), (IMAGE,)),
    "patches": (lambda x: F.unfold(x, 3, stride=3), (IMAGE,)),
    "patches, added up": (
        lambda y: F.fold(y, (9, 11), (4, 3), (1, 2), (2, 1), (2, 3)),
        (R(2, 36, 15),),
    ),
    "patches of one image, added up": (lambda y: F.fold(y, (9, 11), 3, stride=2), (R(27, 20),)),
    "large patches, added up": (lambda y: F.fold(y, (12, 11), 8), (R(1, 64, 20),)),
    "windows": (lambda x: x.unfold(2, 4, 3), (IMAGE,)),
    "overlapping windows": (lambda x: x.unfold(-1, 5, 1), (IMAGE,)),
    "upsampling": (lambda x: F.interpolate(x, scale_factor=(2.0, 3.0)), (IMAGE,)),
    "linear interpolation": (
        lambda x: F.interpolate(x, scale_factor=4, mode="linear"),
        (R(2, 3, 9),),
    ),
    "bilinear interpolation": (
        lambda x: F.interpolate(x, scale_factor=(2.0, 3.0), mode="bilinear"),
        (IMAGE,),
    ),
    "bilinear interpolation of a point": (
        lambda x: F.interpolate(x, size=(3, 2), mode="bilinear"),
        (R(2, 3, 1, 1),),
    ),
    "bilinear interpolation by a fraction": (
        lambda x: F.interpolate(x, scale_factor=1.7, mode="bilinear"),
        (IMAGE,),
    ),
    "bilinear interpolation, aligned corners": (
        lambda x: F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=True),
        (IMAGE,),
    ),
    "softmax": (lambda x: F.softmax(x, -1), (R(5, 33),)),
    "log softmax": (lambda x: F.log_softmax(x, 0), (R(5, 33),)),
    "layer norm": (lambda x, w, b: F.layer_norm(x, [33], w, b), (R(5, 33), R(33), R(33))),
    "group norm": (lambda x, w, b: F.group_norm(x, 3, w, b), (R(2, 6, 5, 5), R(6), R(6))),
    "batch norm": (
        lambda x, w, b: F.batch_norm(x, None, None, w, b, True),
        (IMAGE, R(3), R(3)),
    ),
    "gelu": (F.gelu, (R(77),)),
    "gelu by tanh": (lambda x: F.gelu(x, approximate="tanh"), (R(77),)),
    "silu": (F.silu, (R(77),)),
    "hardswish": (F.hardswish, (R(77) * 4,)),
    "softplus": (F.softplus, (R(77) * 9,)),
    "elu": (F.elu, (R(77),)),
    "softshrink": (F.softshrink, (R(77),)),
    "embedding": (lambda w: F.embedding(torch.tensor([[1, 4, 1], [0, 1, 4]]), w), (R(6, 9),)),
    "cross entropy": (
        lambda x: F.cross_entropy(x, torch.tensor([2, 0, 7, 7, -100])),
        (R(5, 33),),
    ),
    "indexing": (lambda x: x[torch.tensor([3, 0, 3])], (R(5, 7),)),
    "gather": (lambda x: x.gather(1, torch.tensor([[3, 0, 3], [1, 1, 1]])), (R(2, 7),)),
    "cumulative sum": (lambda x: x.cumsum(1), (R(5, 7),)),
    "padding and rolling": (lambda x: F.pad(x, (1, 2)).roll(2, 1).flip(0), (R(5, 7),)),
    "norm": (lambda x: (x * x).sum(1).sqrt(), (R(5, 7),)),
    "variance": (lambda x: x.var(1), (R(5, 7),)),
    "maximum with index": (lambda x: x.max(1)[0], (R(5, 7),)),
    "logsumexp": (lambda x: x.logsumexp(1), (R(5, 7),)),
}


def gradients(function: Callable[..., torch.Tensor], inputs: tuple[torch.Tensor, ...]) -> Any:
    """Gradients of the function's result, weighted differently everywhere."""
    leaves = [x.detach().requires_grad_() for x in inputs]
    result = function(*leaves)
    weight = torch.arange(result.numel(), dtype=torch.float64).reshape(result.shape).cos()
    return torch.autograd.grad(result, leaves, weight.bfloat16().to(result.dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", FORWARD)
def test_gradient(codegen: CppCodegen, name: str, dtype: torch.dtype) -> None:
    function, values = FORWARD[name]
    inputs = tuple(x.to(dtype) for x in values)
    exact = gradients(function, tuple(x.double() for x in inputs))
    graph = make_fx(lambda *xs: gradients(function, xs), tracing_mode="fake")(*inputs)
    graph.graph.eliminate_dead_code()
    schedule = weft_loop_ir.schedule(weft_loop_ir.lower(graph))
    weft_loop_ir.verify(schedule)
    tolerance = 3e-2 if dtype == torch.bfloat16 else 1e-5
    evaluated = weft_loop_ir.evaluate(schedule, inputs)
    compiled = codegen.compile(schedule, {})(*inputs)
    for results in (evaluated, compiled):
        for got, want, source in zip(results, exact, inputs, strict=True):
            assert got.dtype == dtype and got.stride() == source.stride()
            scale = max(float(want.abs().max()), 1.0)
            torch.testing.assert_close(got.double(), want, rtol=0, atol=tolerance * scale)
