"""Views made under ``no_grad`` of tensors that require gradients: autograd does not follow them, as eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import weft


def used_further(x: torch.Tensor) -> Any:
    with torch.no_grad():
        view = x.unflatten(0, (-1, 1))
    return view.select(0, -1)


def returned(x: torch.Tensor) -> Any:
    with torch.no_grad():
        view = x[1:]
        other = view[1:]
    return other, view, x[0]


def computed_with(x: torch.Tensor) -> Any:
    with torch.no_grad():
        view = x.view(-1, 1)
    return view * 2, view.sum()


def of_a_result(x: torch.Tensor) -> Any:
    y = x * 3
    with torch.no_grad():
        view = y.view(-1, 1)
    return view * 2, view, y


def written(x: torch.Tensor) -> Any:
    with torch.no_grad():
        view = x[1:]
    view.mul_(2)
    return view


def of_a_detached_one(x: torch.Tensor) -> Any:
    y = x.detach()
    with torch.no_grad():
        view = y.view(3, 1)
    return view * 2, y[1:]


def values_alone(x: torch.Tensor) -> Any:
    with torch.no_grad():
        weights = x.view(1, 3) * x
    return weights + x


def a_view_of_a_reduction(x: torch.Tensor) -> Any:
    y = x.norm(dim=0, keepdim=True)
    with torch.no_grad():
        return y.unflatten(0, (-1, 1))


def viewed_behind_a_break(x: torch.Tensor) -> Any:
    y = x * 3
    with torch.no_grad():
        print(end="")  # noqa: T201 (a graph break)
    return y[1:], y.view(-1, 1)


def written_behind_a_break(x: torch.Tensor) -> Any:
    y = x * 3
    with torch.no_grad():
        print(end="")  # noqa: T201 (a graph break)
    y[1:].mul_(x[0])
    return y


def in_a_branch(x: torch.Tensor) -> Any:
    y = x.sin()
    if x.sum() > 100:
        y = x.cos()
        with torch.no_grad():
            view = y[..., None]
    else:
        with torch.no_grad():
            view = y[..., None]
    return view**1, y


def behind_a_branch_that_returns(x: torch.Tensor) -> Any:
    y = x.sin()
    if x.sum() > 100:
        return y, x
    z = y.fmod(3)
    with torch.no_grad():
        view = z[..., None]
    return view**1, view


def in_a_loop(x: torch.Tensor) -> Any:
    y = x.sin()
    for _ in range(25):
        y = y * 0.9
        with torch.no_grad():
            view = y.view(-1, 1)
        y = y + view.sum()
    return y, view


PROGRAMS = (
    in_a_branch, behind_a_branch_that_returns, in_a_loop,
    viewed_behind_a_break, written_behind_a_break,
    a_view_of_a_reduction, used_further, returned, computed_with, of_a_result, written,
    of_a_detached_one, values_alone,
)  # fmt: skip


def gradients(program: Callable[..., Any]) -> Any:
    """Of the results and the argument, by the leaf; what is raised where there are none."""
    leaf = torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64, requires_grad=True)
    x = leaf * 1
    try:
        found = program(x)
        roots = [*(found if isinstance(found, tuple) else (found,)), x]
        sums = [
            (root * torch.arange(1.0, root.numel() + 1).view(root.shape)).sum() for root in roots
        ]
        return torch.autograd.grad(sum(sums), leaf, allow_unused=True)[0].tolist()
    except RuntimeError as error:
        return str(error)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_gradients_are_eagers(program: Callable[..., Any]) -> None:
    assert gradients(weft.compile(program)) == gradients(program)


def test_a_detached_view_with_a_history_of_its_own_runs_as_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        view = x.detach()
        view.sub_(x.mean())
        return view

    monkeypatch.delenv("WEFT_STRICT")
    with pytest.warns(weft.WeftWarning, match="history of its own"):
        found = gradients(weft.compile(program))
    assert found == gradients(program)
