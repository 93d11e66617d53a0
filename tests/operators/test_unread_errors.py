"""Operators that refuse their operands' elements raise where nothing reads what they give, as in eager."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import weft
from torch.nn import functional as F

pytestmark = pytest.mark.native

Function = Callable[[torch.Tensor], Any]


def t(*elements: Any) -> torch.Tensor:
    return torch.tensor(elements)


RAISING: dict[str, Function] = {
    "gather": lambda x: x.gather(1, t([9])),
    "getitem": lambda x: x[t(7)],
    "index_select": lambda x: x.index_select(0, t(7)),
    "take": lambda x: x.take(t(70)),
    "embedding": lambda x: F.embedding(t(8), x),
    "embedding_bag": lambda x: F.embedding_bag(t([8]), x),
    "one_hot of a large class": lambda x: F.one_hot(t(8), 3),
    "one_hot of a negative class": lambda x: F.one_hot(t(-1), num_classes=3),
    "nll_loss": lambda x: F.nll_loss(x, t(0, 9, 1)),
    "cross_entropy": lambda x: F.cross_entropy(x, t(0, 9, 1)),
    "binary_cross_entropy": lambda x: F.binary_cross_entropy(x, x),
    "multi_margin_loss": lambda x: F.multi_margin_loss(x, t(0, 9, 1)),
    "bincount": lambda x: torch.bincount(t(-1)),
    "repeat_interleave": lambda x: x.repeat_interleave(t(1, -1, 2), 0),
    "cholesky": lambda x: torch.linalg.cholesky(-torch.eye(3)),
    "eigh": lambda x: torch.linalg.eigh(torch.full((3, 3), float("nan"))),
    "inv": lambda x: torch.linalg.inv(torch.zeros(3, 3)),
    "inv_ex": lambda x: torch.linalg.inv_ex(torch.zeros(3, 3), check_errors=True),
    "solve": lambda x: torch.linalg.solve(torch.zeros(3, 3), torch.ones(3)),
    "floordiv": lambda x: t(1) // t(0),
    "mod": lambda x: t(1) % t(0),
    "fmod": lambda x: torch.fmod(t(1), t(0)),
    "div": lambda x: torch.div(t(1), t(0), rounding_mode="floor"),
    "max_unpool": lambda x: F.max_unpool1d(x[None], torch.full((1, 3, 4), 99), 2),
    "masked_scatter": lambda x: x.masked_scatter(x >= 0, torch.ones(1)),
    "scatter": lambda x: x.scatter(0, t([7]), 1.0),
    "index_fill": lambda x: x.index_fill(0, t(7), 1.0),
    "index_copy": lambda x: x.index_copy(0, t(7), torch.ones(1, 4)),
    "index_add_": lambda x: x.clone().index_add_(0, t(7), torch.ones(1, 4)),
    "setitem": lambda x: x.clone().__setitem__(t(7), 1.0),
    "index_put_": lambda x: x.clone().index_put_((t(7),), torch.ones(())),
    "put_": lambda x: x.clone().put_(t(70), torch.ones(1)),
    "assert_async": lambda x: torch._assert_async((x > 99).all(), "small"),
    "assert_async without a message": lambda x: torch._assert_async((x > 99).all()),
    "assert_async as an operator": lambda x: torch.ops.aten._assert_async.msg((x > 99).all(), "x"),
    "quantile": lambda x: torch.quantile(x, x.sum()),
    "searchsorted": lambda x: torch.searchsorted(x[0], x[1], sorter=t(9, 9, 9, 9)),
    "full": lambda x: torch.full((2,), float(x.sum() * 300), dtype=torch.uint8),
    "a part of the result read": lambda x: x[t(0, 1, 7)][:1],
    "the result's shape read": lambda x: torch.zeros_like(x[t(7)]),
}


def alone(operator: Function) -> Function:
    def program(x: torch.Tensor) -> torch.Tensor:
        operator(x)
        return x + 1

    return program


def tried(operator: Function) -> Function:
    def program(x: torch.Tensor) -> torch.Tensor:
        try:
            operator(x)
        except (RuntimeError, IndexError):
            return x - 1
        return x + 1

    return program


def in_branch(operator: Function) -> Function:
    def program(x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            operator(x)
        return x + 1

    return program


def in_loop(operator: Function) -> Function:
    def program(x: torch.Tensor) -> torch.Tensor:
        for _ in range(30):
            operator(x)
            x = x * 1.1
        return x

    return program


def outcome(function: Function, needs_gradient: bool) -> Any:
    x = torch.arange(12.0).reshape(3, 4).requires_grad_(needs_gradient)
    try:
        return function(x).tolist()
    except (RuntimeError, IndexError) as error:
        return type(error)


# each operator alone, and in one other form: all forms meet operators of all kinds
FORMS = itertools.cycle((tried, in_branch, in_loop))
CASES = [(name, form) for name in RAISING for form in (alone, next(FORMS))]


@pytest.mark.parametrize(("name", "form"), CASES)
def test_as_in_eager(name: str, form: Callable[[Function], Function]) -> None:
    program = form(RAISING[name])
    compiled = weft.compile(program)
    for needs_gradient in (False, True):
        assert outcome(compiled, needs_gradient) == outcome(program, needs_gradient)
    if form is alone:
        assert isinstance(outcome(program, False), type)


def test_readers_stand_where_nothing_reads() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        x.exp()
        return x[torch.tensor([1])] * 2

    [graph] = weft.explain(program)(torch.ones(3)).graphs
    names = [node.name for node in graph.graph_module.graph.nodes]
    assert "exp" not in names
    assert not any("assert" in name for name in names)
