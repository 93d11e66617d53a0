"""Values of more bytes than what they are made of, which several read: kept, or made again by each."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import weft_loop_ir
from torch.fx.experimental.proxy_tensor import make_fx
from weft_loop_ir import BufferKind, LoweringOptions, Schedule, evaluate

T = torch.Tensor
WIDENED = LoweringOptions(widened_instructions=24)


def gradients(g: T, y: T, bias: T, mean: T, scale: T) -> tuple[T, ...]:
    """Of a batch norm behind a ReLU and a bias: what is normalized is read by a sum, and by elements."""
    x = ((y + bias).relu().float() - mean) * scale
    wide = g.float()
    total, product = wide.sum(0), (wide * x).sum(0)
    return (wide - x * product - total).to(g.dtype), product


def costly(g: T, y: T, bias: T, mean: T, scale: T) -> tuple[T, ...]:
    x = ((y + bias).relu().float() - mean).exp() * scale
    return (g.float() - x).to(g.dtype), x.sum(0)


def of_two(g: T, y: T, bias: T, mean: T, scale: T) -> tuple[T, ...]:
    x = ((y + g).relu().float() + bias - mean) * scale
    return (g.float() - x).to(g.dtype), x.sum(0)


def made(
    function: Callable[..., tuple[T, ...]], dtype: torch.dtype, options: LoweringOptions
) -> Schedule:
    torch.manual_seed(0)
    g, y = (torch.randn(64, 40).to(dtype) for _ in "gy")
    inputs = (g, y, torch.randn(40).to(dtype), torch.randn(40), torch.rand(40))
    with torch.no_grad():
        graph = make_fx(function, tracing_mode="fake")(*inputs)
    schedule = weft_loop_ir.schedule(weft_loop_ir.lower(graph, options=options))
    for result, expected in zip(evaluate(schedule, inputs), function(*inputs), strict=True):
        torch.testing.assert_close(result, expected, rtol=2e-2, atol=2e-2)
    return schedule


def kept(schedule: Schedule) -> list[torch.dtype]:
    """The dtypes of what is stored for each element and read again."""
    buffers = schedule.buffers.values()
    return [
        b.layout.dtype
        for b in buffers
        if b.kind is BufferKind.INTERMEDIATE and tuple(b.layout.size) == (64, 40)
    ]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_what_takes_fewer_bytes_is_read_instead(dtype: torch.dtype) -> None:
    assert kept(made(gradients, dtype, LoweringOptions())) == [torch.float32]
    assert not kept(made(gradients, dtype, WIDENED))


@pytest.mark.parametrize(
    ("function", "dtype"),
    [(gradients, torch.float32), (costly, torch.bfloat16), (of_two, torch.bfloat16)],
)
def test_others_are_kept(function: Callable[..., tuple[T, ...]], dtype: torch.dtype) -> None:
    assert kept(made(function, dtype, WIDENED)) == kept(made(function, dtype, LoweringOptions()))
