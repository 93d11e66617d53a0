"""Kernels are named after what they compute."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
from scheduling import scheduled
from torch.nn import functional as F
from weft_loop_ir import Kernel, all_items, kernel_name

R = torch.randn
NAMES: dict[str, Callable[..., object]] = {
    "softmax": lambda x: x.softmax(-1),
    "add_layer_norm": lambda x: F.layer_norm(x + 1, (32,)),
    "mul_gelu": lambda x: F.gelu(x * 2),
    "sum": lambda x: x.sum(1),
    "copy": lambda x: x.t().contiguous(),
    "fill": lambda x: x.new_zeros(3),
}


@pytest.mark.parametrize("name", NAMES)
def test_what_a_kernel_is_called(name: str) -> None:
    schedule = scheduled(NAMES[name], [R(32, 32)])
    kernels = [step for step in all_items(schedule.steps) if isinstance(step, Kernel)]
    assert [kernel.name for kernel in kernels] == [f"{name}_0"]


def test_names_are_the_same_each_time_and_differ_in_a_program() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rows = (x @ y).softmax(-1)
        return rows, (rows.sum(0) + 1).exp(), F.layer_norm(y, (8,)), (y @ x).softmax(-1)

    first, second = (scheduled(function, [R(8, 8), R(8, 8)]) for _ in range(2))
    names = [step.name for step in all_items(first.steps)]
    assert names == [step.name for step in all_items(second.steps)]
    assert len(set(names)) == len(names)


def test_any_operators_give_a_short_identifier() -> None:
    source = random.Random(0)
    operators = [str(name) for name in torch._C._dispatch_get_all_op_names()]
    for _ in range(500):
        several = source.choices(operators, k=source.randint(0, 12))
        name = kernel_name(several)
        assert f"a{name}".isidentifier()
        assert len(name) <= 40
        assert name == kernel_name([*several, *several])


def test_what_takes_the_time_stays_in_a_name() -> None:
    words = "add mul sub exp _softmax sin cos native_layer_norm"
    assert kernel_name(f"aten::{word}" for word in words.split()) == "add_mul_softmax_layer_norm"
