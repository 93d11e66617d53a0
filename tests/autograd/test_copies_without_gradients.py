"""What is copied without gradients lies in memory of its own, as eager's does, with the history it had."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import weft
from torch import Tensor
from weft.registry import codegens

from tests.fuzz.evaluated import EvaluatedCpp


def into_new_memory(x: Tensor, p: Tensor) -> tuple[Tensor, ...]:
    with torch.no_grad():
        result = torch.empty_like(x)
        result.copy_(p)
    return (result,)


def twice(x: Tensor, p: Tensor) -> tuple[Tensor, ...]:
    with torch.no_grad():
        first, second = torch.empty_like(x), torch.empty_like(x)
        first[:] = p
        second[:] = p
    return first, second


def beside_its_source(x: Tensor, p: Tensor) -> tuple[Tensor, ...]:
    source, result = p * 2, x * 1.5
    with torch.no_grad():
        result.copy_(source)
    return source, result


def by_data(x: Tensor, p: Tensor) -> tuple[Tensor, ...]:
    result = x * p
    result.data.copy_(p)
    return result, p


def through_a_view(x: Tensor, p: Tensor) -> tuple[Tensor, ...]:
    result = x * p
    with torch.no_grad():
        result.t().copy_(p.t())
    return (result,)


def before_its_source_is_written(x: Tensor, p: Tensor) -> tuple[Tensor, ...]:
    result = x * p
    with torch.no_grad():
        result.copy_(p)
        p.mul_(2)
    return (result,)


PROGRAMS = [
    into_new_memory,
    twice,
    beside_its_source,
    by_data,
    through_a_view,
    before_its_source_is_written,
]


def memories(tensors: list[Tensor]) -> list[int]:
    """For each tensor the first that lies in the same memory."""
    addresses = [tensor.untyped_storage().data_ptr() for tensor in tensors]
    return [addresses.index(address) for address in addresses]


def after(function: Callable[..., tuple[Tensor, ...]], with_gradients: tuple[bool, bool]) -> Any:
    torch.manual_seed(0)
    leaves = [torch.randn(2, 3, dtype=torch.float64, requires_grad=w) for w in with_gradients]
    results = function(*leaves)
    tensors = [*results, *leaves]
    values = [tensor.detach().clone() for tensor in tensors]
    computed = [(r * r).sum() for r in results if r.grad_fn is not None]
    try:
        if computed:
            torch.stack(computed).sum().backward()
    except RuntimeError as error:
        return memories(tensors), values, type(error)
    flags = [tensor.requires_grad for tensor in tensors]
    return memories(tensors), values, flags, [leaf.grad for leaf in leaves]


@pytest.mark.parametrize("with_gradients", [(False, True), (True, False), (True, True)])
@pytest.mark.parametrize("program", PROGRAMS)
def test_memory_and_history_are_eagers(
    program: Callable[..., tuple[Tensor, ...]], with_gradients: tuple[bool, bool]
) -> None:
    expected = after(program, with_gradients)
    found = after(weft.compile(program), with_gradients)
    assert found[0] == expected[0]
    torch.testing.assert_close(found[1], expected[1])
    assert found[2] == expected[2]
    for ours, eagers in zip(found[3:], expected[3:], strict=True):
        torch.testing.assert_close(ours, eagers)


def row(x: Tensor) -> Any:
    return torch.empty_like(x[1]).copy_((x * 2)[1])


def rows_beside_the_whole(x: Tensor) -> Any:
    y = x.exp()
    first, last = torch.empty(3, dtype=x.dtype), torch.zeros(3, dtype=x.dtype)
    first[:] = y[0]
    last.copy_(y[-1])
    return first, last, y


def column(x: Tensor) -> Any:
    result = torch.empty(x.shape[0], dtype=x.dtype)
    result.copy_(x.exp()[:, 1])
    return result


def repeated_row(x: Tensor) -> Any:
    return torch.zeros_like(x).copy_(x.exp()[0].expand(x.shape))


def into_an_argument(x: Tensor) -> Any:
    table = torch.cat([x, x.sin()])
    with torch.no_grad():
        x.copy_(table[1 : 1 + x.shape[0]])
    return table


def through_a_detached_part(x: Tensor) -> Any:
    view = x.view_as(x)
    view.detach()[:1].copy_(x[:1] * 2)
    return view * 1


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("with_gradients", [False, True])
@pytest.mark.parametrize(
    "program",
    [row, rows_beside_the_whole, column, repeated_row, into_an_argument, through_a_detached_part],
    ids=lambda program: program.__name__,
)
def test_results_lie_in_memory_of_their_own_size(
    program: Callable[[Tensor], Any],
    with_gradients: bool,
    dynamic: bool | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(codegens, "cpu", EvaluatedCpp)
    compiled = weft.compile(program, dynamic=dynamic)
    for size in (2, 4) if dynamic else (2,):
        found: list[Any] = []
        for function in (program, compiled):
            x = torch.arange(3.0 * size, dtype=torch.float64).view(size, 3)
            results = function(x.requires_grad_(with_gradients))
            results = results if isinstance(results, tuple) else (results,)
            places = [
                (r.storage_offset(), r.stride(), r.untyped_storage().nbytes()) for r in results
            ]
            flags = [r.requires_grad for r in results]
            found.append((places, flags, memories([*results, x]), [*results, x]))
        assert found[1][:3] == found[0][:3]
        torch.testing.assert_close(found[1][3], found[0][3])
