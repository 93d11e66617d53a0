"""Where collectives stand among the steps of a schedule: started early, waited for late."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.fx
import weft_aot_autograd
import weft_functionalize
import weft_loop_ir
from torch import Tensor

if not torch.distributed.is_available():
    pytest.skip("this torch has no collectives", allow_module_level=True)

operators = torch.ops._c10d_functional


def summed(x: Tensor) -> Tensor:
    return operators.wait_tensor(operators.all_reduce(x, "sum", "0"))


def beside_a_product(x: Tensor, y: Tensor) -> Any:
    first = summed(x.exp())
    return first * (x @ y).sin().sum()


def beside_a_softmax(x: Tensor, y: Tensor) -> Any:
    weights = (y * y + 1).log().softmax(-1)
    return summed(x.tanh()) + (weights @ y) * weights


def of_several_products(x: Tensor, y: Tensor) -> Any:
    return tuple(summed((x * number) @ y) * 0.5 for number in range(1, 5))


def one_after_another(x: Tensor, y: Tensor) -> Any:
    return summed(summed(x * 2) + 1) * y.exp().sum(0)


def steps(program: Callable[..., Any], size: int) -> list[str]:
    """The names of operators, and "kernel" for each step that is none."""
    inputs = [torch.randn(size, size) for _ in range(2)]
    functional = weft_functionalize.functionalize(torch.fx.symbolic_trace(program), inputs)
    graph_module = weft_aot_autograd.trace_inference(functional).graph_module
    schedule = weft_loop_ir.schedule(weft_loop_ir.lower(graph_module))
    return [
        step.operator._schema.name.partition("::")[2]
        if isinstance(step, weft_loop_ir.ExternCall)
        else "kernel"
        for step in schedule.steps
    ]


@pytest.mark.parametrize("size", [3, 256])
@pytest.mark.parametrize(
    ("program", "between"), [(beside_a_product, "mm"), (beside_a_softmax, "mm")]
)
def test_products_run_while_a_collective_does(
    program: Callable[..., Any], between: str, size: int
) -> None:
    order = steps(program, size)
    start, wait = order.index("all_reduce"), order.index("wait_tensor")
    assert between in order[start:wait], order


@pytest.mark.parametrize("size", [3, 256])
def test_each_collective_starts_as_soon_as_its_argument_is_there(size: int) -> None:
    order = [name for name in steps(of_several_products, size) if name != "kernel"]
    assert order == ["mm", "all_reduce"] * 4 + ["wait_tensor"] * 4, order


@pytest.mark.parametrize("size", [3, 256])
def test_independent_kernels_run_beside_the_first_of_two_collectives(size: int) -> None:
    order = steps(one_after_another, size)
    collective = ["all_reduce", "kernel", "wait_tensor"]
    assert order == ["kernel", *collective, "kernel", "all_reduce", "wait_tensor", "kernel"], order
