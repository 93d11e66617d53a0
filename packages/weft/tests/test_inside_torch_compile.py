"""What weft compiled, called in code that ``torch.compile`` compiles: torch leaves weft's frames alone."""

from __future__ import annotations

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
    # The frames that torch looked at: the caller's, behind its break, and those that run a program in
    # training; the compiler's own would be hundreds.
    assert counters["frames"]["total"] < 60, counters["frames"]


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
