"""What calls of matmuls and convolutions are read as: loop nests in their place, beside the library."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import weft_loop_ir
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F
from weft_loop_ir import ExternCall, Schedule
from weft_loop_ir.contractions import add_contraction, contraction_of
from weft_loop_ir.loop_nests import LoopNests

T = torch.Tensor
Case = tuple[Callable[..., T], tuple[T, ...]]


def randn(*size: int) -> T:
    return torch.randn(size) / 4


CALLS: dict[str, Case] = {
    "mm": (torch.mm, (randn(5, 7), randn(7, 3))),
    "mm of a transposed matrix": (lambda x, w: x.t() @ w, (randn(7, 5), randn(7, 3))),
    "mm of one column": (torch.mm, (randn(5, 7), randn(7, 1))),
    "mm of parts": (lambda x, w: x[::2, 1:] @ w[:6], (randn(5, 7), randn(8, 3))),
    "bmm": (torch.bmm, (randn(2, 5, 7), randn(2, 7, 3))),
    "bmm of one matrix for all": (
        lambda x, w: torch.bmm(x, w.expand(2, 7, 3)),
        (randn(2, 5, 7), randn(7, 3)),
    ),
    "addmm": (
        lambda b, x, w: torch.addmm(b, x, w, beta=0.5, alpha=2),
        (randn(3), randn(5, 7), randn(7, 3)),
    ),
    "baddbmm": (
        lambda b, x, w: torch.baddbmm(b, x, w, beta=2, alpha=0.5),
        (randn(2, 1, 3), randn(2, 5, 7), randn(2, 7, 3)),
    ),
    "baddbmm that adds nothing": (
        lambda b, x, w: torch.baddbmm(b, x, w, beta=0),
        (torch.full((2, 5, 3), torch.nan), randn(2, 5, 7), randn(2, 7, 3)),
    ),
    "mv": (torch.mv, (randn(5, 7), randn(7))),
    "addmv": (torch.addmv, (randn(5), randn(5, 7), randn(7))),
    "addbmm": (torch.addbmm, (randn(5, 3), randn(2, 5, 7), randn(2, 7, 3))),
    "convolution": (
        lambda x, w, b: F.conv2d(x, w, b, stride=2, padding=1),
        (randn(2, 4, 7, 6), randn(5, 4, 3, 3), randn(5)),
    ),
    "convolution with gaps": (
        lambda x, w: F.conv2d(x, w, dilation=(2, 1), padding=(0, 2)),
        (randn(2, 4, 7, 6), randn(5, 4, 3, 3)),
    ),
    "convolution, channels last": (
        lambda x, w, b: F.conv2d(x, w, b, padding=1),
        (randn(2, 4, 7, 6).to(memory_format=torch.channels_last), randn(5, 4, 3, 3), randn(5)),
    ),
    "convolution along a row": (
        lambda x, w: F.conv1d(x, w, padding=1),
        (randn(2, 4, 9), randn(5, 4, 3)),
    ),
    "convolution of a volume": (F.conv3d, (randn(1, 2, 4, 5, 4), randn(3, 2, 2, 2, 2))),
    "convolution of each channel": (
        lambda x, w, b: F.conv2d(x, w, b, padding=1, groups=4),
        (randn(2, 4, 7, 6), randn(4, 1, 3, 3), randn(4)),
    ),
}

OTHERS: dict[str, Case] = {
    "float64": (torch.mm, (randn(5, 7).double(), randn(7, 3).double())),
    "integers": (torch.mm, (torch.ones(5, 7).int(), torch.ones(7, 3).int())),
    "groups of channels": (
        lambda x, w: F.conv2d(x, w, groups=2),
        (randn(2, 4, 7, 6), randn(6, 2, 3, 3)),
    ),
    "a transposed convolution": (F.conv_transpose2d, (randn(2, 4, 7, 6), randn(4, 5, 3, 3))),
}


def scheduled(function: Callable[..., Any], inputs: tuple[T, ...]) -> Schedule:
    with torch.no_grad():
        graph = make_fx(lambda *i: function(*i), tracing_mode="fake")(*inputs)
    return weft_loop_ir.schedule(weft_loop_ir.lower(graph))


def calls_of(schedule: Schedule) -> list[ExternCall]:
    return [step for step in schedule.steps if isinstance(step, ExternCall)]


def in_nests(schedule: Schedule) -> Schedule:
    """``schedule`` with loop nests in the place of calls."""
    steps: list[Any] = []
    buffers = dict(schedule.buffers)
    for step in schedule.steps:
        if not isinstance(step, ExternCall):
            steps.append(step)
            continue
        contraction = contraction_of(step, buffers)
        assert contraction is not None
        nests = LoopNests(step.name, buffers)
        add_contraction(nests, contraction, str(step.outputs[0]))
        expansion = nests.expansion()
        buffers |= expansion.buffers
        steps += expansion.kernels
    memory = weft_loop_ir.plan_memory(steps, buffers)
    return replace(schedule, steps=tuple(steps), buffers=buffers, memory=memory)


@pytest.mark.parametrize("name", CALLS)
def test_a_call_is_what_its_nests_compute(name: str) -> None:
    function, inputs = CALLS[name]
    schedule = scheduled(function, inputs)
    assert len(calls_of(schedule)) == 1
    changed = in_nests(schedule)
    weft_loop_ir.verify(changed)
    (result,) = weft_loop_ir.evaluate(changed, inputs, use_arena=True)
    torch.testing.assert_close(result, function(*inputs), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_no_contraction_of_floats(name: str) -> None:
    schedule = scheduled(*OTHERS[name])
    (call,) = calls_of(schedule)
    assert contraction_of(call, schedule.buffers) is None
