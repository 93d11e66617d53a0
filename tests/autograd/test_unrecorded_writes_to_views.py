"""Views of what requires gradients, and what they are of, written to more than once under ``no_grad``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import weft


def through_the_view(x: torch.Tensor) -> Any:
    view = x[..., ::2]
    for _ in range(2):
        with torch.no_grad():
            view.mul_(1.5)
    return view * 2, x * 3


def through_both(x: torch.Tensor) -> Any:
    view = x[..., ::2]
    with torch.no_grad():
        view.mul_(1.5)
        x.add_(1)
        view.mul_(1.5)
    return view * 2, x * 3


def through_another_view(x: torch.Tensor) -> Any:
    view, other = x[::2], x[1:]
    with torch.no_grad():
        other.mul_(1.5)
        view.add_(1)
        torch.mul(view.detach(), 2, out=other[:2])
    return view * other.sum(), x * 3


def where_data_says(x: torch.Tensor) -> Any:
    view = x[..., ::2]
    for _ in range(2):
        with torch.no_grad():
            view.mul_(1.5)
        if view.sum() > 0:
            view = view * 1
    return (view * 2,)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("leaf", [False, True])
@pytest.mark.parametrize(
    "program", [through_the_view, through_both, through_another_view, where_data_says]
)
def test_gradients_go_where_eagers_go(
    program: Callable[[torch.Tensor], Any], leaf: bool, dynamic: bool
) -> None:
    results = []
    for run in (program, weft.compile(program, dynamic=dynamic)):
        given = torch.linspace(-1, 2, 24, dtype=torch.float64).reshape(4, 6).clone()
        given.requires_grad_()
        x = given if leaf else given * 1
        outputs = run(x)
        weights = [torch.linspace(0.5, 1.5, y.numel()).to(y).view(y.shape) for y in outputs]
        (gradient,) = torch.autograd.grad(outputs, given, weights)
        results.append([*(y.detach() for y in outputs), x.detach(), gradient])
    torch.testing.assert_close(results[1], results[0], rtol=1e-12, atol=1e-12)


def rows_made_without_gradients(x: torch.Tensor, limit: float) -> Any:
    with torch.no_grad():
        for row in x:
            if x.sum() > limit:
                continue
            row.add_(2.0)
    return (row * 2,)


def rows_of_a_tuple(x: torch.Tensor, limit: float) -> Any:
    with torch.no_grad():
        rows = x.unbind(0)
        if x.sum() < limit:
            rows[0].mul_(2)
    return rows[1].sin(), x * 3


def a_slice_and_its_base(x: torch.Tensor, limit: float) -> Any:
    with torch.no_grad():
        part = x[1:]
        if x.sum() < limit:
            part.mul_(2)
    return part.sum(), x * 3


@pytest.mark.parametrize("limit", [-1000.0, 1000.0])
@pytest.mark.parametrize(
    "program", [rows_made_without_gradients, rows_of_a_tuple, a_slice_and_its_base]
)
def test_autograd_raises_where_data_says_that_a_view_is_written(
    program: Callable[..., Any], limit: float
) -> None:
    results: list[Any] = []
    for run in (program, weft.compile(program)):
        leaf = torch.linspace(-1, 2, 24, dtype=torch.float64).reshape(4, 6).clone()
        x = leaf.requires_grad_() * 1
        try:
            outputs = run(x, limit)
            (gradient,) = torch.autograd.grad([y.sum() for y in (*outputs, x)], leaf)
        except RuntimeError as error:
            results.append(str(error))
        else:
            results.append([*(y.detach() for y in outputs), x.detach(), gradient])
    assert isinstance(results[0], str) == (limit > 0)
    if limit > 0:
        assert results[1] == results[0]
    else:
        torch.testing.assert_close(results[1], results[0], rtol=1e-12, atol=1e-12)
