"""What weft compiled, called in code that ``torch.compile`` compiles: torch leaves weft's frames alone."""

from __future__ import annotations

import contextlib
import warnings

import pytest
import torch
import weft


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x).relu() * 2


def function(x: torch.Tensor) -> torch.Tensor:
    return (x.sin() * 2 + 1).softmax(-1)


@pytest.mark.parametrize("make", [lambda: function, Model], ids=["function", "module"])
@pytest.mark.parametrize("trains", [False, True])
def test_results_are_right_and_no_frame_of_the_compiler_is_compiled(make, trains) -> None:
    plain = make()
    inner = weft.compile(plain)
    torch._dynamo.reset()
    counters = torch._dynamo.utils.counters
    counters.clear()
    outer = torch.compile(lambda x: inner(x * 2) + 1, backend="eager")
    for _ in range(2):
        x = torch.randn(3, 4, requires_grad=trains)
        other = x.detach().clone().requires_grad_(trains)
        found, expected = outer(x), plain(other * 2) + 1
        torch.testing.assert_close(found, expected)
        if trains:
            found.square().sum().backward()
            expected.square().sum().backward()
            torch.testing.assert_close(x.grad, other.grad)
    # The frames that torch looked at: the caller's, and those by which it calls a module; the compiler's own
    # would be hundreds.
    assert counters["frames"]["total"] < 20, counters["frames"]


def test_torch_compile_goes_on_after_a_compiled_call() -> None:
    """Its capture is there again for what comes later."""
    inner = weft.compile(function)
    graphs = []

    def backend(graph_module, example_inputs):
        graphs.append(graph_module)
        return graph_module.forward

    torch._dynamo.reset()
    outer = torch.compile(lambda x: inner(x).cos(), backend=backend)
    x = torch.randn(3, 4)
    torch.testing.assert_close(outer(x), function(x).cos())
    assert any("cos" in str(graph.code) for graph in graphs)


@pytest.mark.parametrize("make", [lambda: function, Model], ids=["function", "module"])
@pytest.mark.parametrize("trains", [False, True])
def test_torch_warns_of_nothing(make, trains) -> None:
    """Its capture meets no frame of weft's in which it would find what it can't follow."""
    inner = weft.compile(make())
    torch._dynamo.reset()
    outer = torch.compile(lambda x: inner(x) + 1, backend="eager")
    x = torch.randn(3, 4, requires_grad=trains)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "Dynamo does not know")
        for _ in range(2):
            found = outer(x)
            if trains:
                found.sum().backward()


def test_each_compiler_has_its_own_calls_where_they_nest() -> None:
    """What torch compiles is called in what weft compiles, which is called in what torch compiles."""
    graphs = []

    def backend(graph_module, example_inputs):
        graphs.append(str(graph_module.code))
        return graph_module.forward

    torch._dynamo.reset()
    innermost = torch.compile(lambda x: x.tan() + 1, backend=backend)

    @weft.compile
    def middle(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        torch._dynamo.graph_break()
        return weft.disable(innermost)(y).exp()

    outer = torch.compile(lambda x: middle(x * 2).cos(), backend=backend)
    x = torch.randn(3, 4)
    expected = ((x * 2).sin().tan() + 1).exp().cos()
    for _ in range(2):
        torch.testing.assert_close(outer(x), expected)
    assert any("cos" in code for code in graphs) and any("tan" in code for code in graphs)
    assert not any("sin" in code or "exp" in code for code in graphs)


def test_torch_compile_is_there_again_after_an_error() -> None:
    @weft.compile
    def failing(x: torch.Tensor) -> torch.Tensor:
        raise ValueError("of the program")

    graphs = []

    def backend(graph_module, example_inputs):
        graphs.append(str(graph_module.code))
        return graph_module.forward

    @torch.compile(backend=backend)
    def outer(x: torch.Tensor) -> torch.Tensor:
        with contextlib.suppress(ValueError):
            failing(x)
        return later(x)

    def later(x: torch.Tensor) -> torch.Tensor:
        return x.cos()

    torch._dynamo.reset()
    torch.testing.assert_close(outer(torch.ones(3)), torch.ones(3).cos())
    assert any("cos" in code for code in graphs)
