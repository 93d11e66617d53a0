"""Graphs whose inputs have symbolic sizes: one functional graph, eager's effects for every size."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.fx
import weft_functionalize
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext


def symbolic(function: Callable[..., object], *inputs: torch.Tensor) -> Callable[..., object]:
    """The function through one functional graph, with a symbol for every size of its inputs."""
    mode = FakeTensorMode(shape_env=ShapeEnv(duck_shape=False))
    fakes = [
        mode.from_tensor(
            x,
            symbolic_context=StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC] * x.dim()),
        )
        for x in inputs
    ]
    captured = torch.fx.symbolic_trace(function)
    functional = weft_functionalize.functionalize(captured, fakes)
    graph = functional.graph_module

    def run(*values: object) -> object:
        with torch.no_grad():
            return graph(*values)

    return weft_functionalize.wrap(functional, weft_functionalize.bind(functional, run))


def sharing(argument: torch.Tensor, results: tuple[object, ...]) -> list[int]:
    """For the argument and each result, the first among them whose memory it shares."""
    tensors = [argument, *(value for value in results if isinstance(value, torch.Tensor))]
    addresses = [tensor.untyped_storage().data_ptr() for tensor in tensors]
    return [addresses.index(address) for address in addresses]


def sizes_as_arguments(x):
    return x.view(x.size(0) * x.size(1)), torch.zeros((x.size(1), 2)) + 1


def expressions(x):
    n, m = x.size(0), x.size(1)
    return x[: n // 2 + 1] * (m % 3), x.sum(0) * n**2 / m, x * m**-0.5


def numbers(x):
    return x + 1, x.size(0) * 2 + x.size(1), x.size(0) / 2


def views_of_inputs(x):
    return x.t(), x[1:], x.view(-1), x.unsqueeze(0).expand(3, x.size(0), x.size(1))


def views_of_results(x):
    y = x * 2
    return y[:, : x.size(1) // 2], y.t(), y


def written(x):
    y = x + 1
    y[:, : x.size(1) // 2].mul_(3)
    y[0].fill_(x.size(1))
    y.view(-1)[::2].zero_()
    return y


def written_input(x):
    x.add_(x.size(0))
    x[:, 1:].copy_(x[:, :-1] * 2)
    return x, x.sum()


def split(x):
    first, second = x.clone().split([x.size(0) - 1, 1])
    second.add_(1)
    return first, second


FUNCTIONS = [
    sizes_as_arguments, expressions, numbers, views_of_inputs, views_of_results, written,
    written_input, split,
]  # fmt: skip


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_one_graph_has_eagers_effects_for_every_size(function):
    compiled = symbolic(function, torch.randn(4, 6))
    for size in ((4, 6), (3, 8), (7, 2), (2, 31)):
        x = torch.randn(size)
        y = x.clone()
        wanted, found = function(x), compiled(y)
        wanted = wanted if isinstance(wanted, tuple) else (wanted,)
        assert len(found) == len(wanted)
        torch.testing.assert_close(y, x)
        for left, right in zip(found, wanted, strict=True):
            if not isinstance(right, torch.Tensor):
                assert left == right
                continue
            torch.testing.assert_close(left, right)
            assert left.stride() == right.stride()
        assert sharing(y, found) == sharing(x, wanted)


def test_numbers_stand_before_everything_else():
    mode = FakeTensorMode(shape_env=ShapeEnv(duck_shape=False))
    context = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC] * 2)
    fake = mode.from_tensor(torch.randn(4, 6), symbolic_context=context)
    functional = weft_functionalize.functionalize(torch.fx.symbolic_trace(expressions), [fake])
    graph = functional.graph_module.graph
    kinds = [isinstance(node.meta.get("val"), torch.Tensor) for node in graph.nodes]
    first = kinds.index(True, 1)
    assert all(kinds[first:-1])
    (placeholder,) = graph.find_nodes(op="placeholder")
    assert placeholder.meta["val"].shape[0].node.expr.is_Symbol
