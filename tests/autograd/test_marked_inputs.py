"""Arguments that a compiled function lets require gradients: forces at positions that are passed in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import weft
from torch import Tensor, nn
from torch.autograd import grad
from torch.utils._pytree import tree_leaves

from tests.same_values import assert_same
from tests.staged_backend import by_operators

torch.manual_seed(0)
NET = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1)).double()

Program = Callable[[dict[str, Tensor]], Any]


def forces(data: dict[str, Tensor]) -> Any:
    x = data["x"]
    x.requires_grad_(True)
    energy = NET(x).sum()
    return energy, -grad(energy, x, create_graph=True)[0]


def forces_by_an_attribute(data: dict[str, Tensor]) -> Any:
    data["x"].requires_grad = True
    energy = NET(data["x"]).sum(0)
    found = grad([energy], [data["x"]], grad_outputs=[torch.ones_like(energy)], retain_graph=True)
    return {"energy": energy, "forces": found[0]}["forces"], energy


def used_before(data: dict[str, Tensor]) -> Any:
    x = data["x"]
    plain = NET(x * 2).detach() + x.sum()
    x.requires_grad_()
    y = (x.exp() * plain).sum()
    return plain, y, grad(y, x, retain_graph=True)[0]


def view_made_before(data: dict[str, Tensor]) -> Any:
    x = data["x"]
    row = x[0]
    x.requires_grad_()
    return row, row * x.sin()


def written_before(data: dict[str, Tensor]) -> Any:
    x = data["x"].mul_(2)
    x.requires_grad_()
    return x.sin()


def only_marked(data: dict[str, Tensor]) -> Any:
    return data["x"].requires_grad_()


def without_gradients_around(data: dict[str, Tensor]) -> Any:
    with torch.no_grad():
        plain = data["x"] * 2
        x = data["x"].requires_grad_()
        with torch.enable_grad():
            slope = grad(NET(x).square().sum(), x)[0]
        return plain, x + slope


def backward_inside(data: dict[str, Tensor]) -> Any:
    x = data["x"].requires_grad_()
    NET(x).exp().sum().backward()
    return x.grad


def of_two(data: dict[str, Tensor]) -> Any:
    shift = torch.zeros(3, 3, dtype=torch.float64).requires_grad_()
    x = data["x"].requires_grad_()
    energy = NET(x + x @ (shift + shift.T)).sum()
    return grad(energy, [x, shift], create_graph=True)


def of_integers(data: dict[str, Tensor]) -> Any:
    return data["k"].requires_grad_()


def fails_afterwards(data: dict[str, Tensor]) -> Any:
    x = data["x"].requires_grad_()
    try:
        return x[data["k"] + 100] * 2
    except IndexError:
        return x * 3, data["x"].requires_grad


PROGRAMS: tuple[Program, ...] = (
    forces, forces_by_an_attribute, used_before, only_marked, without_gradients_around, backward_inside,
    of_two,
)  # fmt: skip
OTHERS: tuple[Program, ...] = (view_made_before, written_before, of_integers, fails_afterwards)


def outcome(program: Program) -> list[Any]:
    """Of three calls, the last with an argument that is marked already: all that can be seen."""
    found: list[Any] = []
    start = torch.linspace(-1, 1.5, 12, dtype=torch.float64).view(4, 3)
    data = {"k": torch.tensor(1)}
    for call in range(3):
        if call < 2:
            data["x"] = start + call
        try:
            results = program(data)
        except (RuntimeError, IndexError) as error:
            found.append(str(error)[:80])
            continue
        finally:
            found.append(data["x"].requires_grad)
        for result in results if isinstance(results, tuple) else (results,):
            found.append(result)
            if isinstance(result, Tensor) and result.requires_grad and not result.is_leaf:
                found += [
                    result.is_leaf,
                    *grad(result.square().sum(), data["x"], retain_graph=True),
                ]
        found += [data["x"].detach().clone(), data["x"].grad]
        NET.zero_grad()
    return found


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_like_eager(program: Program) -> None:
    compiled = weft.compile(program, fullgraph=True, backend=by_operators)
    assert_same(outcome(compiled), outcome(program))


@pytest.mark.parametrize("program", OTHERS, ids=lambda p: p.__name__)
def test_what_may_break(program: Program) -> None:
    assert_same(outcome(weft.compile(program, backend=by_operators)), outcome(program))


@pytest.mark.native
def test_native_programs() -> None:
    assert_same(outcome(weft.compile(forces, fullgraph=True)), outcome(forces))


def view_written(x: Tensor) -> tuple[Tensor, ...]:
    view = x[1:]
    view.mul_(2)
    x.requires_grad_()
    return view, x[1:], x


def view_of_a_column_and_base_written(x: Tensor) -> tuple[Tensor, ...]:
    column = x.select(1, -1)
    x.add_(1)
    later = x.select(1, -1)
    x.requires_grad_()
    return column, later, x


def view_without_a_write(x: Tensor) -> tuple[Tensor, ...]:
    x.zero_()
    row = x[0]
    x.requires_grad_()
    return row, x[1], x


@pytest.mark.parametrize(
    "program", [view_written, view_of_a_column_and_base_written, view_without_a_write]
)
def test_views_made_before(program: Callable[[Tensor], tuple[Tensor, ...]]) -> None:
    """Autograd looks for the history of one that was made before a write."""
    found = []
    for function in (program, weft.compile(program, backend=by_operators)):
        results = function(torch.linspace(-1, 1, 12).view(4, 3))
        facts = [(r.is_leaf, r.requires_grad, r._is_view(), r._version) for r in results]
        recorded = [r for r in results[:2] if not r.is_leaf]
        gradients = [grad(r.sum(), results[2]) for r in recorded]
        found.append((facts, gradients, results))
    torch.testing.assert_close(*found)


def of_an_argument(x: Tensor, row: Tensor) -> Any:
    x.requires_grad_()
    return row.prod(), (row * 2).detach()


def of_an_argument_by_its_attribute(x: Tensor, row: Tensor) -> Any:
    before = row * 3
    x.requires_grad = True
    return before, row.prod()


def of_what_is_computed(x: Tensor, row: Tensor) -> Any:
    y = x.exp()
    column = y[:, 1]
    y.requires_grad_()
    return column.prod(), y.sum()


def of_what_is_used_up(x: Tensor, row: Tensor) -> Any:
    y = x.exp()
    column = y[:, 1]
    y.requires_grad_()
    return column.prod()


@pytest.mark.parametrize(
    "program",
    [of_an_argument, of_an_argument_by_its_attribute, of_what_is_computed, of_what_is_used_up],
)
@pytest.mark.parametrize("is_view", [True, False])
def test_what_is_computed_of_views_made_before(program: Callable[..., Any], is_view: bool) -> None:
    """They say that they require gradients, as their base does since."""
    compiled = weft.compile(program, backend=by_operators)
    found = []
    for function in (program, compiled):
        for view in (is_view, not is_view):
            x = torch.linspace(-1, 1, 12).view(4, 3).clone()
            results = tree_leaves(function(x, x[0] if view else torch.ones(3)))
            found.append([(r.is_leaf, r.requires_grad, r.detach()) for r in results])
    torch.testing.assert_close(found[2:], found[:2])
