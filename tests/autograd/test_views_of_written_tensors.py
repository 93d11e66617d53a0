"""Returned views of one tensor that the program makes and fills: gradients are eager's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import weft
from torch import Tensor
from weft.registry import codegens

from tests.fuzz.evaluated import EvaluatedCpp
from tests.staged_backend import by_operators


def filled_by_rows(x: Tensor) -> Sequence[Tensor]:
    out = torch.empty(4, 3, dtype=x.dtype)
    for i in range(4):
        out[i] = x[i] * 2
    return out[0], out[1]


def filled_at_once(x: Tensor) -> Sequence[Tensor]:
    out = torch.zeros_like(x)
    out.copy_(x * 2)
    return out[0], out[2:], out.t()[1]


def with_the_whole(x: Tensor) -> Sequence[Tensor]:
    out = torch.ones(4, 3, dtype=x.dtype)
    out[1:] *= x[1:]
    return out[1], out, out.view(-1)[2:7]


def one_column(x: Tensor) -> Sequence[Tensor]:
    out = torch.full((4, 3), 2.0, dtype=x.dtype)
    out[:, 1] = x[:, 0].sin()
    return (out[:, 1],)


def several_at_once(x: Tensor) -> Sequence[Tensor]:
    out = torch.zeros(4, 3, dtype=x.dtype)
    out[:2] = x[:2].exp()
    return out.split(2)


def nested_views(x: Tensor) -> Sequence[Tensor]:
    out = torch.zeros(2, 4, 3, dtype=x.dtype)
    out[1] = x.cos()
    row = out[1]
    row[2] = x[0]
    return row[2], row[1], out[0]


def beside_a_detached_one(x: Tensor) -> Sequence[Tensor]:
    out = torch.zeros(4, 3, dtype=x.dtype)
    out[:] = x.sin()
    return out[0], out.detach()[1], out[2]


def of_a_detached_one(x: Tensor) -> Sequence[Tensor]:
    y = x.sin()
    part = y.detach()
    part.copy_(x * 3)
    return part[0], part[1]


def both_histories(x: Tensor) -> Sequence[Tensor]:
    y = x * 2
    part = y.detach()
    part.copy_(x * 3)
    return part[0], y[1]


def list_of_rows(x: Tensor) -> Sequence[Tensor]:
    rows = []
    for i in range(20):
        rows.append(torch.tanh(x[i % 4] * i))
    return rows


def list_of_states(x: Tensor) -> Sequence[Tensor]:
    rows, state = [], x[0] * 1
    for i in range(20):
        state = torch.tanh(state + x[i % 4])
        rows.append(state * 2)
    return rows[3], rows[7], state


PROGRAMS = [
    *(filled_by_rows, filled_at_once, with_the_whole, one_column, several_at_once, nested_views),
    *(beside_a_detached_one, of_a_detached_one, both_histories, list_of_rows, list_of_states),
]


def gradients(function: Callable[[Tensor], Sequence[Tensor]]) -> list[Tensor]:
    """The gradient that each result leads to alone, where it has one, and that of all together."""
    x = torch.arange(12, dtype=torch.float64).reshape(4, 3).sin().requires_grad_()
    results = function(x)
    totals = [(n + 1.0) * value.sum() for n, value in enumerate(results) if value.requires_grad]
    found = [torch.autograd.grad(t, x, retain_graph=True)[0] for t in totals]
    return [*found, torch.autograd.grad(sum(totals), x)[0], *(v.detach() for v in results)]


@pytest.mark.filterwarnings("ignore::weft.WeftWarning")  # of both_histories
@pytest.mark.parametrize("function", PROGRAMS, ids=lambda function: function.__name__)
def test_gradients_of_views(function: Callable[[Tensor], Sequence[Tensor]]) -> None:
    strict = {"strict": function is not both_histories}
    compiled = weft.compile(function, options=strict)
    torch.testing.assert_close(gradients(compiled), gradients(function))


VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "row": lambda x: x[1],
    "element": lambda x: x[0, 0],
    "narrow": lambda x: x[:2],
    "transposed": lambda x: x.T,
    "of a result": lambda x: (x * 2)[0],
}


@pytest.mark.parametrize("name", VIEWS)
def test_views_of_an_expanded_argument(name: str) -> None:
    """Each element has a gradient of its own in eager, though all of a column lie in one place."""
    program = VIEWS[name]
    compiled = weft.compile(lambda x: program(x))
    for function in (lambda base: base.expand(3, 4), lambda base: base.expand(3, 4).detach()):
        found = []
        for run in (program, compiled):
            x = function(torch.linspace(0.5, 1.5, 4, dtype=torch.float64).requires_grad_())
            x = x if x.requires_grad else x.requires_grad_()
            result = run(x)
            weights = torch.linspace(0.5, 1.5, result.numel(), dtype=torch.float64)
            found.append(torch.autograd.grad((result.flatten() * weights).sum(), x)[0])
        torch.testing.assert_close(found[1], found[0])


@pytest.mark.parametrize("view", [lambda t: t, lambda t: t[:], lambda t: t.view(-1)])
def test_views_that_are_written_to_twice(view: Callable[[Tensor], Tensor]) -> None:
    """Torch crashes where a hook is the first to ask for the node of a view since a write."""

    def write(x: Tensor) -> Tensor:
        x.mul_(-1.25)
        x.mul_(2)
        return x.sin()

    found = []
    for function in (write, weft.compile(write, fullgraph=True)):
        leaf = torch.linspace(-1, 1, 6).requires_grad_()
        seen: list[Tensor] = []
        x = view(leaf * 1)
        y = function(x)
        x.register_hook(seen.append)
        (y.sum() + x.square().sum()).backward()
        found.append((y.detach(), x.detach(), leaf.grad, seen, x._version))
    torch.testing.assert_close(found[1], found[0])


@pytest.mark.parametrize(
    "also", [lambda base, row: row, lambda base, row: base, lambda base, row: row.t()]
)
def test_views_that_a_list_operator_writes_to(also: Callable[[Tensor, Tensor], Tensor]) -> None:
    def write(x: Tensor) -> tuple[Tensor, Tensor]:
        base = torch.ones(2, 2, 3, dtype=x.dtype)
        row = base[1]
        torch._foreach_mul_([row], [x * 2])
        return also(base, row), row

    found = []
    for function in (write, weft.compile(write, fullgraph=True)):
        x = torch.linspace(-1, 1, 6, dtype=torch.float64).view(2, 3).requires_grad_()
        results = function(x)
        versions = [r._version for r in results]
        gradients = [torch.autograd.grad(r.sum(), x, retain_graph=True)[0] for r in results]
        found.append(([r.detach() for r in results], gradients, versions))
    torch.testing.assert_close(found[1], found[0])


def _viewed_before(x: Tensor) -> Any:
    base = x * 2
    view = base.unsqueeze(1)
    view -= 1
    return base, view


def _viewed_before_and_behind(x: Tensor) -> Any:
    base = x.exp()
    view = base[1:]
    base.add_(1)
    return base, view, base[:1]


def _viewed_twice(x: Tensor) -> Any:
    base = x.exp()
    first = base.view(-1)
    first[0] = 3.0
    second = first[1:]
    base.mul_(2)
    return base, first, second, second[:1]


def _not_written(x: Tensor) -> Any:
    base = x.exp()
    return base, base[1:]


def _written_by_data(x: Tensor) -> Any:
    base = x.exp()
    view = base[1:]
    base.data.mul_(2)
    return base, view


@pytest.mark.parametrize(
    "program",
    [_viewed_before, _viewed_before_and_behind, _viewed_twice, _not_written, _written_by_data],
)
@pytest.mark.parametrize("inside", [False, True])
def test_bases_that_are_made_to_require_gradients(
    program: Callable[[Tensor], Any], inside: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A view from before the last write looks for a history, and is no leaf then."""
    monkeypatch.setitem(codegens, "cpu", EvaluatedCpp)

    def around(x: Tensor) -> Any:
        found = program(x)
        if inside:
            found[0].requires_grad_()
        return found

    compiled = weft.compile(around)
    for _ in range(2):
        told = []
        for function in (around, compiled):
            base, *views = function(torch.arange(3.0))
            base.requires_grad_()
            told.append([(v.requires_grad, v.is_leaf, v._version, v.tolist()) for v in views])
        assert told[0] == told[1]


def _and_a_part(x: Tensor) -> Sequence[Tensor]:
    return x, x[0]


DATA: dict[str, Callable[[Tensor], Sequence[Tensor]]] = {
    "of what is returned": lambda y: (y, y.data),
    "of a part": lambda y: (y[0], y[0].data),
    "of one of several": lambda y: (y.unbind(0)[0], y.unbind(0)[0].data),
    "a part of it": lambda y: (y, y.data[0]),
    "before what it is of": lambda y: (*_and_a_part(y.data), y),
    "parts of one": lambda y: (*_and_a_part(y.data[:1]), y[0]),
    "detached": lambda y: (y, y.detach(), y.detach()[0]),
}


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("name", DATA)
def test_writes_to_data_that_is_returned_are_counted_apart(name: str, requires_grad: bool) -> None:
    def program(x: Tensor) -> Sequence[Tensor]:
        return DATA[name](x * 2)

    found = []
    for function in (program, weft.compile(program, backend=by_operators)):
        results = function(torch.ones(2, 3, requires_grad=requires_grad))
        facts: list[Any] = [(r._is_view(), r.requires_grad) for r in results]
        for result in results[1:]:
            with torch.no_grad():
                result.add_(1)
            facts.append([(r._version, r.detach().clone()) for r in results])
        found.append(facts)
    torch.testing.assert_close(*found)
