"""Programs with tensors on the CPU beside another device: operators compute those, kernels the others."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.fx
import weft
import weft_aot_autograd
import weft_functionalize
from weft_bytecode_capture import capture
from weft_codegen_triton.codegen import is_recordable
from weft_loop_ir import ExternCall, Kernel, Schedule, Unsupported, all_items, devices_of

from tests.elsewhere import META, Seen, schedule_elsewhere


def elsewhere_as(x: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """``value`` where ``x`` is."""
    return value.to(x.device)


def buckets(x: torch.Tensor) -> torch.Tensor:
    """Relative positions as T5 and MPNet count them, on the CPU."""
    distance = torch.arange(6)[:, None] - torch.arange(4)[None, :]
    large = torch.log(distance.abs().float() / 2 + 1) / math.log(4) * 2
    bucket = torch.where(distance.abs() < 2, distance.abs(), large.long() + 2)
    return x * elsewhere_as(x, bucket)


def literal(x: torch.Tensor) -> Any:
    weights = elsewhere_as(x, torch.tensor([1.0, 2.0, 3.0, 4.0]))
    return x * weights, weights


def random(x: torch.Tensor) -> torch.Tensor:
    noise = torch.rand(6, 4).mul(2).add(1)[:, 1:].t()
    return x[:, 1:] + elsewhere_as(x, noise).t()


def there_and_back(x: torch.Tensor) -> torch.Tensor:
    rows = (x * 2).relu().cpu().cumsum(0)
    return elsewhere_as(x, rows.flip(0).unsqueeze(0).expand(2, 6, 4) * 3).sum(0).sqrt()


def results_on_both(x: torch.Tensor) -> Any:
    y = x.sin().cpu()
    return y.view(3, 8) + 1, y, x.cos() + 1


def outside_loops(schedule: Schedule) -> list[ExternCall]:
    return [step for step in all_items(schedule.steps) if isinstance(step, ExternCall)]


@pytest.mark.parametrize("function", [buckets, literal])
def test_what_is_made_of_numbers_is_copied_once(function: Callable[..., Any]) -> None:
    schedule = schedule_elsewhere(function, "meta")
    assert outside_loops(schedule) == []
    assert is_recordable(schedule)


@pytest.mark.parametrize("function", [random, there_and_back, results_on_both])
def test_kernels_touch_one_device(function: Callable[..., Any]) -> None:
    schedule = schedule_elsewhere(function, "meta")
    assert devices_of(schedule) == {META}
    kernels = [step for step in all_items(schedule.steps) if isinstance(step, Kernel)]
    touched = {name for kernel in kernels for name in (*kernel.reads, *kernel.writes)}
    assert touched
    assert {schedule.buffers[name].layout.device for name in touched} == {META}
    # What the CPU draws alone comes before a recording, in each call.
    assert is_recordable(schedule) is (function is random)
    in_arena = schedule.memory.offsets
    assert {schedule.buffers[name].layout.device for name in in_arena} <= {META}


def test_a_region_that_carries_tensors_elsewhere_is_refused() -> None:
    def carried(x: torch.Tensor) -> Any:
        steps = torch.zeros(3)
        while x.sum() > 1:
            x, steps = x * 0.5, steps + 1
        return x, steps

    with pytest.raises(Unsupported, match="another device"):
        schedule_elsewhere(carried)


def test_gradients_on_a_device_that_has_no_autocast() -> None:
    joints: list[Any] = []

    def backend(module: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        functional = weft_functionalize.functionalize(module, inputs)
        joints.append(weft_aot_autograd.trace_joint(functional))
        raise Seen

    x = torch.zeros(6, 4, device=META, requires_grad=True)
    with pytest.raises(Seen):
        capture(there_and_back, backend=backend)(x)
    (joint,) = joints
    assert joint is not None and joint.output_count == 1


@pytest.mark.gpu
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@pytest.mark.parametrize("function", [buckets, literal, there_and_back, results_on_both])
def test_beside_eager(function: Callable[..., Any], mode: str) -> None:
    compiled = weft.compile(function, mode=mode, fullgraph=True)
    for seed in range(4):
        torch.manual_seed(seed)
        x = torch.rand(6, 4, device="cuda")
        torch.testing.assert_close(compiled(x), function(x))


@pytest.mark.gpu
def test_gradients_beside_eager() -> None:
    def loss(x: torch.Tensor) -> torch.Tensor:
        return (buckets(x) + there_and_back(x)).sum()

    compiled = weft.compile(loss, fullgraph=True)
    for _ in range(3):
        x = torch.rand(6, 4, device="cuda", requires_grad=True)
        (wanted,) = torch.autograd.grad(loss(x), x)
        (got,) = torch.autograd.grad(compiled(x), x)
        torch.testing.assert_close(got, wanted)
