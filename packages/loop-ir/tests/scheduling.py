"""What tests of schedules share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
import weft_loop_ir
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_leaves
from weft_loop_ir import Kernel, ParallelKernels, Schedule, ScheduleOptions

Function = Callable[..., Any]


def scheduled(
    function: Function,
    inputs: Sequence[torch.Tensor],
    options: ScheduleOptions | None = None,
    lowering: weft_loop_ir.LoweringOptions | None = None,
) -> Schedule:
    """The verified schedule of ``function``; its results equal eager's in memory of its plan."""
    with torch.no_grad():
        graph = make_fx(lambda *v: tuple(tree_leaves(function(*v))), tracing_mode="fake")(*inputs)
        expected = tree_leaves(function(*inputs))
    loop_graph = weft_loop_ir.lower(graph, options=lowering)
    weft_loop_ir.verify(loop_graph)
    schedule = weft_loop_ir.schedule(loop_graph, options)
    weft_loop_ir.verify(schedule)
    other_order = reversed_in_parallel(schedule)
    for program, arena in (
        (loop_graph, False),
        (schedule, False),
        (schedule, True),
        (other_order, True),
    ):
        results = weft_loop_ir.evaluate(program, list(inputs), use_arena=arena)
        for result, value in zip(results, expected, strict=True):
            torch.testing.assert_close(result, value, equal_nan=True)
    return schedule


def reversed_in_parallel(schedule: Schedule) -> Schedule:
    """``schedule`` with kernels that run in parallel in the opposite order."""
    steps = tuple(
        replace(step, kernels=step.kernels[::-1]) if isinstance(step, ParallelKernels) else step
        for step in schedule.steps
    )
    return replace(schedule, steps=steps)


def kernels(schedule: Schedule) -> list[Kernel]:
    """The kernels that are steps by themselves."""
    return [step for step in schedule.steps if isinstance(step, Kernel)]
