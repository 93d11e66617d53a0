"""What a recording of a program reserves, beside what its values take."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest
import torch
import weft_loop_ir
from caching_allocator import MIB, CachingAllocator, recorded_pool
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F
from weft_codegen_triton import TritonCodegen
from weft_loop_ir import Schedule


def scheduled(
    function: Callable[..., torch.Tensor], generator: TritonCodegen, sizes: Sequence[Sequence[int]]
) -> Schedule:
    """The schedule of ``function`` for tensors of ``sizes`` in float16, which are nowhere."""
    with FakeTensorMode():
        inputs = [torch.empty(size, dtype=torch.float16) for size in sizes]
    graph = make_fx(function, tracing_mode="fake")(*inputs)
    return weft_loop_ir.schedule(weft_loop_ir.lower(graph), generator.schedule_options)


def large_segments(pool: CachingAllocator) -> int:
    """How many segments hold blocks of more than 1 MiB."""
    return sum(not segment.is_small for segment in pool.segments)


def blocks(
    x: torch.Tensor, taps: torch.Tensor, wide: torch.Tensor, narrow: torch.Tensor
) -> torch.Tensor:
    """Three blocks around a call that allocates what it gives, with two kernels before the next call."""
    for _ in range(3):
        y = F.conv1d(x, taps, padding=1, groups=x.shape[1]).softmax(1).softmax(2)
        x = x + F.linear(F.gelu(F.linear(y, wide)), narrow)
    return x.mean(1)


def test_a_recording_takes_no_more_than_the_values_of_a_step(
    codegen: TritonCodegen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a call gave is free once the next kernel has read it, so the products' results fit in."""
    schedule = scheduled(blocks, codegen, ((64, 3136, 96), (3136, 1, 3), (384, 96), (96, 384)))
    pool = recorded_pool(schedule, codegen, monkeypatch)
    stream, hidden = 64 * 3136 * 96 * 2, 64 * 3136 * 384 * 2
    assert large_segments(pool) == 1
    assert pool.reserved <= 2 * stream + hidden + 6 * MIB


@pytest.mark.parametrize("seed", range(8))
def test_all_large_values_share_one_segment(
    seed: int, codegen: TritonCodegen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values of many sizes, of products (``out=``), kernels and calls that allocate (``conv1d``)."""
    widths, choose = (256, 640, 1024, 2560), random.Random(seed)
    weights = [(a, b) for a in widths for b in widths]

    def program(x: torch.Tensor, taps: torch.Tensor, *matrices: torch.Tensor) -> torch.Tensor:
        values = [x]
        for _ in range(16):
            value = choose.choice(values[-4:])
            kind = choose.choice(("product", "product", "call", "kernel", "sum"))
            if kind == "product":
                places = [k for k, (rows, _) in enumerate(weights) if rows == value.shape[1]]
                values.append(value @ matrices[choose.choice(places)])
            elif kind == "call":
                values.append(F.conv1d(value, taps, padding=1, groups=value.shape[0]))
            elif kind == "kernel":
                values.append(torch.softmax(value, 1))
            else:
                alike = [other for other in values if other.shape == value.shape]
                values.append(torch.sin(value) + choose.choice(alike))
        return torch.stack([value.sum() for value in values[-3:]])

    schedule = scheduled(program, codegen, ((4096, 256), (4096, 1, 3), *weights))
    pool = recorded_pool(schedule, codegen, monkeypatch)
    assert large_segments(pool) == 1
