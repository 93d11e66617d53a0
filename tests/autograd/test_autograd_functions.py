"""``torch.autograd.Function`` in compiled programs: results and gradients are those of eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import weft
from weft_bytecode_capture import CaptureOptions, capture, compile_frames

from .autograd_programs import (
    BIAS,
    BREAKS,
    CALLS,
    CAPTURED_ONLY,
    ONE_GRAPH,
    WEIGHT,
    Cube,
    Sine,
    Square,
)

Call = Callable[[torch.Tensor], Any]


def _run_graph(module: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
    return module.forward


COMPILERS: dict[str, Callable[[Call], Call]] = {
    "captured": lambda f: compile_frames(f, _run_graph, CaptureOptions(fullgraph=True)),
    "compiled": lambda f: weft.compile(f, fullgraph=True),
}
COMPILERS_WITH_BREAKS: dict[str, Callable[[Call], Call]] = {
    "captured": lambda f: compile_frames(f, _run_graph),
    "compiled": weft.compile,
}


def outcome(function: Call, x: torch.Tensor) -> tuple[list[Any], list[Any]]:
    """Tensors (results, gradients of the input and the parameters), and all else that was to be seen."""
    WEIGHT.grad = BIAS.grad = None
    CALLS.clear()
    x = x.clone().requires_grad_()
    try:
        result = function(x)
        parts = result if isinstance(result, tuple) else (result,)
        tensors = [part for part in parts if isinstance(part, torch.Tensor)]
        numbered = [t * torch.arange(1.0, t.numel() + 1).view(t.shape) for t in tensors]
        sum(t.sum() for t in numbered if t.requires_grad).backward()
    except Exception as error:
        return [], [type(error), str(error)]
    gradients = [g for g in (x.grad, WEIGHT.grad, BIAS.grad) if g is not None]
    others = [part for part in parts if not isinstance(part, torch.Tensor)]
    flags = [(t.requires_grad, t.is_leaf, t.stride()) for t in tensors]
    return [t.detach() for t in tensors] + gradients, [others, flags, len(gradients), *CALLS]


def check(function: Call, compiled: Call) -> None:
    for rows in (3, 3, 2, 5):
        x = torch.randn(rows, 3)
        plain, found = outcome(function, x), outcome(compiled, x)
        torch.testing.assert_close(found[0], plain[0])
        assert found[1] == plain[1]
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), function(x))


@pytest.mark.parametrize("name", ONE_GRAPH)
@pytest.mark.parametrize("compiler", COMPILERS)
def test_one_graph(compiler: str, name: str) -> None:
    check(ONE_GRAPH[name], COMPILERS[compiler](ONE_GRAPH[name]))


@pytest.mark.parametrize("name", BREAKS)
@pytest.mark.parametrize("compiler", COMPILERS_WITH_BREAKS)
def test_break(compiler: str, name: str) -> None:
    function = BREAKS[name]
    check(function, COMPILERS_WITH_BREAKS[compiler](function))


@pytest.mark.parametrize("name", CAPTURED_ONLY)
def test_break_behind_which_no_graph_is_compiled(name: str) -> None:
    check(CAPTURED_ONLY[name], compile_frames(CAPTURED_ONLY[name], _run_graph))


@pytest.mark.parametrize("name", BREAKS | CAPTURED_ONLY)
def test_breaks_are_named(name: str) -> None:
    breaks = capture((BREAKS | CAPTURED_ONLY)[name])(torch.ones(3, 3, requires_grad=True)).breaks
    assert breaks[0].kind == "autograd function that needs gradients"
    assert breaks[0].context
    assert breaks[0].hints


@pytest.mark.parametrize("kind", [Square, Cube])
@pytest.mark.parametrize("compiler", COMPILERS_WITH_BREAKS)
def test_gradients_of_gradients(compiler: str, kind: Any) -> None:
    def function(x: torch.Tensor) -> Any:
        return kind.apply(x).sin()

    found = []
    for called in (function, COMPILERS_WITH_BREAKS[compiler](function)):
        x = torch.linspace(-1, 1, 5).requires_grad_()
        (first,) = torch.autograd.grad(called(x).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), x)
        found.append((first.detach(), second))
    torch.testing.assert_close(found[1], found[0])


@pytest.mark.parametrize("compiler", COMPILERS)
def test_gradients_that_have_none_themselves(compiler: str) -> None:
    compiled = COMPILERS[compiler](lambda x: Sine.apply(x).square().sum())
    x = torch.ones(3, requires_grad=True)
    (first,) = torch.autograd.grad(compiled(x), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.sum().backward()


def test_a_training_loop_with_a_function_in_a_module() -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 4)
            self.head = torch.nn.Linear(4, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.head(ONE_GRAPH["saved input"](self.layer(x)))
            return result

    losses = []
    for wrap in (lambda m: m, lambda m: weft.compile(m, fullgraph=True)):
        torch.manual_seed(0)
        model = Model()
        called, optimizer = wrap(model), torch.optim.SGD(model.parameters(), 0.05)
        row = []
        for step in range(6):
            x = torch.randn(8, 4, generator=torch.Generator().manual_seed(step))
            loss = (called(x) - x.sum(1, keepdim=True)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            row.append(loss.item())
        losses.append(row)
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-4, atol=1e-5)
