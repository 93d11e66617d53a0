"""Numbers that come as tensors: eager reads them, the graph computes with them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.fx
import weft_functionalize
from torch import Tensor

ONE = ("add", "sub", "add_", "sub_")
TWO = ("addcmul", "addcdiv", "addcmul_", "addcdiv_")


def run(program: Any, *inputs: Any) -> tuple[list[Any], list[Any]]:
    """Eager's results and inputs after the call, and those of the functional graph."""
    module = torch.fx.symbolic_trace(program)
    functional = weft_functionalize.functionalize(module, inputs)
    call = weft_functionalize.wrap(
        functional, weft_functionalize.bind(functional, functional.graph_module)
    )
    want, got = ([v.clone() for v in inputs] for _ in range(2))
    return [program(*want), *want], [*call(*got), *got]


def tensors(dtype: torch.dtype, *shapes: tuple[int, ...]) -> list[Tensor]:
    return [torch.rand(shape, dtype=dtype) + 0.5 for shape in shapes]


SHAPES = ((3, 4), (0, 4), ())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", [*ONE, *TWO])
def test_one_number(name: str, dtype: torch.dtype) -> None:
    keyword, count = ("value", 3) if name in TWO else ("alpha", 2)

    def program(*values: Tensor) -> Tensor:
        *operands, number = values
        result: Tensor = getattr(operands[0], name)(*operands[1:], **{keyword: number})
        return result

    tolerance = 1e-6 if dtype is not torch.bfloat16 else 1e-2
    for shape in SHAPES:
        for number in (torch.tensor(0.3), torch.tensor(-2.0, dtype=torch.float64)):
            want, got = run(_with_arity(program, count), *tensors(dtype, *[shape] * count), number)
            assert [w.dtype for w in want] == [g.dtype for g in got]
            torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)


def _with_arity(program: Any, count: int) -> Any:
    """``program`` with named arguments, as symbolic tracing wants them."""
    if count == 2:
        return lambda x, y, number: program(x, y, number)
    return lambda x, y, z, number: program(x, y, z, number)


def test_lists_with_a_number_for_each_element() -> None:
    def program(x: Tensor, y: Tensor, z: Tensor, w: Tensor, numbers: Tensor) -> Tensor:
        torch._foreach_addcdiv_([x, y], [z, w], [w, z], numbers)
        torch._foreach_addcmul_([x, y], [w, z], [w, z], numbers)
        first, second = torch._foreach_addcmul([x, y], [z, w], [w, z], numbers)
        return first * second

    want, got = run(
        program, *tensors(torch.float64, *[(3, 4)] * 4), torch.tensor([0.5, -2.0]).double()
    )
    torch.testing.assert_close(got, want)


def test_lists_with_one_number() -> None:
    def program(x: Tensor, y: Tensor, number: Tensor) -> Tensor:
        torch._foreach_add_([x, y], [y * 2, x * 3], alpha=number)
        return x - y

    want, got = run(program, *tensors(torch.float64, (3,), (3,)), torch.tensor(0.5).double())
    torch.testing.assert_close(got, want)
