"""Operators of ``torch.library.custom_op`` that write to their arguments, with and without gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import weft
from torch import Tensor


@torch.library.custom_op("weft_tests::scale_", mutates_args=("x",))
def scale_(x: Tensor, factor: float) -> None:
    x.mul_(factor)


@torch.library.custom_op("weft_tests::accumulate", mutates_args=("total",))
def accumulate(total: Tensor, x: Tensor) -> Tensor:
    total.add_(x)
    return x.sum(0)


@accumulate.register_fake
def _(total: Tensor, x: Tensor) -> Tensor:
    return x.new_empty(x.shape[1:])


@torch.library.custom_op("weft_tests::exchange", mutates_args=("a", "b"))
def exchange(a: Tensor, b: Tensor, *, factor: float = 2.0) -> tuple[Tensor, Tensor]:
    a.mul_(factor)
    b.add_(1)
    return a + b, a - b


@exchange.register_fake
def _(a: Tensor, b: Tensor, *, factor: float = 2.0) -> tuple[Tensor, Tensor]:
    return torch.empty_like(a), torch.empty_like(b)


@torch.library.custom_op("weft_tests::products", mutates_args=("total",))
def products(total: Tensor, x: Tensor, others: list[Tensor]) -> list[Tensor]:
    total.add_(x)
    return [x * other for other in others]


@products.register_fake
def _(total: Tensor, x: Tensor, others: list[Tensor]) -> list[Tensor]:
    return [torch.empty_like(x) for _ in others]


@torch.library.custom_op("weft_tests::scale_all_", mutates_args=("values",))
def scale_all_(values: list[Tensor], factor: float) -> None:
    for value in values:
        value.mul_(factor)


def writes_to_results_and_inputs(x: Tensor, y: Tensor) -> Any:
    z = x + 1
    scale_(z, 3.0)
    total = accumulate(y, z)
    return z, total * 2


def writes_to_two_and_to_views(x: Tensor, y: Tensor) -> Any:
    left, right = exchange(x, y, factor=3.0)
    row, _ = exchange(x[0], y[1])
    return left * right, x + y, row


def returns_and_views_the_result(x: Tensor, y: Tensor) -> Any:
    total = accumulate(y, x)
    return total, accumulate(y, x * 2)[1:].mul_(3)


def writes_and_returns_lists(x: Tensor, y: Tensor) -> Any:
    first, second = products(y, x, [x, x + 1])
    (third,) = products(y, first, [second])
    products(y, third, [])
    return first, second * 2, third, y + 1


def writes_without_gradients(x: Tensor, y: Tensor) -> Any:
    w = x * 2
    with torch.no_grad():
        scale_(w, 0.5)
    return (w * y,)


def writes_that_autograd_does_not_see(x: Tensor, y: Tensor) -> Any:
    w = x * 2
    scale_(w[1:], 0.5)
    return w * y, w.sin()


def observe(program: Callable[..., Any], with_gradients: bool) -> Any:
    generator = torch.Generator().manual_seed(0)
    leaves = [torch.randn(3, 4, generator=generator) for _ in range(2)]
    given = [leaf.requires_grad_(with_gradients) * 1 for leaf in leaves]
    got = program(*given)
    if with_gradients:
        torch.stack([(r * r).sum() for r in got]).sum().backward()
    return [t.detach() for t in (*got, *given)], [leaf.grad for leaf in leaves]


@pytest.mark.parametrize(
    ("program", "with_gradients"),
    [
        (writes_to_results_and_inputs, False),
        (writes_to_two_and_to_views, False),
        (returns_and_views_the_result, False),
        (writes_and_returns_lists, False),
        (writes_without_gradients, False),
        (writes_without_gradients, True),
        (writes_that_autograd_does_not_see, True),
    ],
)
def test_operators_that_write(program: Callable[..., Any], with_gradients: bool) -> None:
    compiled = weft.compile(program, fullgraph=True)
    for _ in range(2):
        want = observe(program, with_gradients)
        torch.testing.assert_close(observe(compiled, with_gradients), want)


def test_gradients_that_the_operator_has_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is eager's, and comes where eager has it."""
    monkeypatch.setenv("WEFT_STRICT", "0")
    x = torch.randn(3, 4, requires_grad=True)
    with pytest.warns(weft.WeftWarning):
        result = weft.compile(lambda x: accumulate(torch.zeros(3, 4), x * 2))(x)
    with pytest.raises(RuntimeError, match="no autograd formula"):
        result.sum().backward()


def test_a_list_of_written_tensors_is_left_to_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_STRICT", "0")
    x = torch.randn(3)
    with pytest.warns(weft.WeftWarning, match="list of tensors"):
        result = weft.compile(lambda x: (scale_all_([x], 2.0), x + 1)[1])(x.clone())
    torch.testing.assert_close(result, x * 2 + 1)
