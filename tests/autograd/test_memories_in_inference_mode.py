"""What is made in ``torch.inference_mode`` shares memory with arguments exactly where eager's does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import weft
from torch import Tensor
from weft.registry import codegens

from tests.fuzz.evaluated import EvaluatedCpp

PROGRAMS: dict[str, Callable[[Tensor], Any]] = {
    "copy of the same dtype": lambda x: x.to(x.dtype, copy=True),
    "copy, seen through a view": lambda x: x.to(x.dtype, copy=True).expand(x.shape),
    "the same dtype": lambda x: x.to(x.dtype),
    "another dtype and back": lambda x: x.float().double(),
    "contiguous": lambda x: x.contiguous(),
    "contiguous copy": lambda x: x.t().contiguous(),
    "reshape to a view": lambda x: x.reshape(-1),
    "reshape to a copy": lambda x: x.t().reshape(-1),
    "einsum that permutes": lambda x: torch.einsum("ij->ji", x),
    "meshgrid": lambda x: torch.meshgrid(x.reshape(-1), indexing="ij")[0],
    "imaginary part": lambda x: torch.complex(x, x).imag,
    "dropout that keeps all": lambda x: torch.nn.functional.dropout(x, 0.5, False),
    "write behind contiguous": lambda x: x.new_zeros(3, 2).t().contiguous().t().copy_(x.t()),
    "write to an argument": lambda x: x.view_as(x).t().copy_(x.t() * 2),
    "part": lambda x: x.tensor_split(2)[1],
}


@pytest.mark.parametrize("name", ["combinations", "meshgrid", "turned and unflattened"])
def test_sizes_may_vary(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(codegens, "cpu", EvaluatedCpp)
    program: Callable[[Tensor], Tensor] = {
        "combinations": lambda x: torch.combinations(x.reshape(-1), 1),
        "meshgrid": lambda x: torch.meshgrid(x[0], x[1], indexing="ij")[0],
        "turned and unflattened": lambda x: x.mT.flatten().unflatten(0, (2, -1)),
    }[name]
    compiled = weft.compile(program, dynamic=True)
    for size in (3, 4):
        x = torch.arange(2.0 * size, dtype=torch.float64).view(2, size)
        with torch.inference_mode():
            torch.testing.assert_close(compiled(x), program(x), rtol=0, atol=0)


def after(function: Callable[[Tensor], Any], layout: str) -> Any:
    x = torch.arange(6.0, dtype=torch.float64).view(2, 3)
    x = x.t().contiguous().t() if layout == "transposed" else x
    with torch.inference_mode():
        result = function(x)
    found = result.clone(), x.clone(), result.stride(), result.storage_offset()
    shared = result.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    return *found, shared, result is x, result.is_inference()


@pytest.mark.parametrize("layout", ["plain", "transposed"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_memory_is_eagers(name: str, layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(codegens, "cpu", EvaluatedCpp)
    program = PROGRAMS[name]

    def inside(x: Tensor) -> Any:
        with torch.inference_mode():
            return program(x)

    expected = after(program, layout)
    for function in (weft.compile(program), weft.compile(inside)):
        found = after(function, layout)
        torch.testing.assert_close(found[:2], expected[:2], rtol=0, atol=0)
        assert found[2:] == expected[2:]


WRITES: tuple[Callable[[Tensor], Any], ...] = (
    lambda x: x.view(-1)[0].fill_(0.5),
    lambda x: x.mul_(2),
    lambda x: x.detach().mul_(2),
    lambda x: x[0].add_(1),
    lambda x: x.data.zero_(),
)


@pytest.mark.parametrize("write", range(len(WRITES)))
@pytest.mark.parametrize("of_a_leaf", [False, True])
@pytest.mark.parametrize("of_a_result", [False, True])
@pytest.mark.parametrize("enabled", [False, True])
def test_writes_to_what_requires_gradients(
    write: int, of_a_leaf: bool, of_a_result: bool, enabled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In inference mode autograd does not look on, whatever the tensor is."""
    monkeypatch.setitem(codegens, "cpu", EvaluatedCpp)

    def program(x: Tensor) -> Tensor:
        h = x * 2 if of_a_result else x
        with torch.inference_mode(), torch.set_grad_enabled(enabled):
            WRITES[write](h)
        return h * 3

    def observed(function: Callable[[Tensor], Tensor]) -> Any:
        leaf = torch.linspace(1, 2, 3, dtype=torch.float64, requires_grad=True)
        x = leaf if of_a_leaf else leaf * 1
        result = function(x)
        (gradient,) = torch.autograd.grad(result.sum(), leaf)
        return result.tolist(), x.tolist(), x._version, gradient.tolist()

    compiled = weft.compile(program)
    for _ in range(2):
        assert observed(compiled) == observed(program)
