"""``torch.autograd.grad`` in a graph: its operators are recorded with the histories that eager gives them."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.fx
from torch import Tensor
from torch.autograd import grad
from weft_functionalize import functionalize


def first(x: Tensor, w: Tensor) -> Any:
    return grad((x * w).tanh().sum(), x, create_graph=True)


def second(x: Tensor, w: Tensor) -> Any:
    (g,) = grad((x @ w).exp().sum(), x, create_graph=True)
    return grad(g.sin().sum(), x, create_graph=True)


def third(x: Tensor, w: Tensor) -> Any:
    g = x.exp() * w
    for _ in range(3):
        (g,) = grad(g.square().sum(), x, create_graph=True)
    return (g,)


def as_module(program: Callable[..., Any], count: int) -> torch.fx.GraphModule:
    """A graph that calls the program, which gives ``count`` tensors."""
    graph = torch.fx.Graph()
    results = graph.call_function(program, tuple(map(graph.placeholder, ("x", "w"))), {})
    graph.output(tuple(graph.call_function(operator.getitem, (results, k)) for k in range(count)))
    return torch.fx.GraphModule(torch.nn.Module(), graph)


def arguments(make: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    x, w = (torch.randn(3, 3, dtype=torch.float64) for _ in range(2))
    return make(x).requires_grad_(), make(w).requires_grad_()


@pytest.mark.parametrize("make", [torch.clone, lambda t: t.view(-1).view(3, 3)], ids=["", "views"])
@pytest.mark.parametrize("program", [first, second, third], ids=lambda p: p.__name__)
def test_results_and_their_gradients(
    program: Callable[..., Any], make: Callable[[Tensor], Tensor]
) -> None:
    found = []
    for run in (functionalize(as_module(program, 1), arguments(make)).graph_module, program):
        inputs = arguments(make)
        (result,) = run(*inputs)
        found.append([result, *grad(result.sum(), inputs, allow_unused=True)])
    torch.testing.assert_close(found[0], found[1])


def test_a_history_that_is_gone() -> None:
    def program(x: Tensor, w: Tensor) -> Any:
        y = (x * w).exp().sum()
        return y, *grad(y, x)

    functional = functionalize(as_module(program, 2), arguments(torch.clone))
    errors = [held.error for output in functional.outputs for held in output.held]
    assert len(errors) == 1
    assert errors[0].startswith("Trying to backward through the graph a second time")
