"""User inputs in one storage become views of one flat input."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.fx
import weft_functionalize
from torch import Tensor
from weft_functionalize import Unsupported


def program(x: Tensor, y: Tensor, z: Tensor) -> Any:
    x.add_(z)
    y.mul_(2)
    return (x, y + 1, y[0], z)


def views(memory: Tensor) -> list[Tensor]:
    """Windows of a matrix that overlap and have gaps, and a tensor of its own."""
    return [memory[1:, :3], memory[:-1, 2:], torch.ones(3)]


def dense_views(memory: Tensor) -> list[Tensor]:
    """Windows of a matrix that overlap and have none: one is transposed."""
    return [memory[1:].t(), memory[:-1], torch.ones(3)]


class Counted:
    """A compiled graph that counts its calls."""

    def __init__(self, functional: weft_functionalize.FunctionalGraph) -> None:
        self.calls: list[int] = []
        self._run = weft_functionalize.bind(functional, functional.graph_module)

    def __call__(self, *inputs: Any) -> Any:
        self.calls.append(len(inputs))
        return self._run(*inputs)


def functionalized(requires_grad: bool = False, make: Any = views) -> tuple[Any, Counted]:
    memory = torch.ones(4, 5, requires_grad=requires_grad) * 1
    functional = weft_functionalize.functionalize(torch.fx.symbolic_trace(program), make(memory))
    counted = Counted(functional)
    return weft_functionalize.wrap(functional, counted), counted


def matrix() -> Tensor:
    return torch.arange(20.0).view(4, 5)


def test_one_flat_input_stands_for_several() -> None:
    functional = weft_functionalize.functionalize(torch.fx.symbolic_trace(program), views(matrix()))
    (base,) = functional.shared_bases
    flat, z = functional.inputs
    assert (flat.position, flat.mutated, z.position, z.mutated) == (0, True, 2, False)
    assert [(m.position, m.size, m.stride, m.offset) for m in base.members] == [
        (0, (3, 3), (5, 1), 5),
        (1, (3, 3), (5, 1), 2),
    ]
    (placeholder, _) = functional.graph_module.graph.find_nodes(op="placeholder")
    assert tuple(placeholder.meta["val"].shape) == (18,)
    assert "SharedBase" in functional.print_readable()


# Not with gaps and gradients: torch's formula of as_strided_scatter is not right.
@pytest.mark.parametrize(
    ("recorded", "make"), [(False, views), (False, dense_views), (True, dense_views)]
)
def test_effects_are_those_of_eager(recorded: bool, make: Any) -> None:
    run, counted = functionalized(recorded, make)
    found = []
    for function in (run, program):
        leaf = matrix().requires_grad_(recorded)
        memory = leaf * 1
        x, y, z = make(memory)
        with torch.set_grad_enabled(recorded):
            results = function(x, y, z)
        assert results[0] is x and results[3] is z
        assert results[2].data_ptr() == y.data_ptr()
        if recorded:
            (memory.square().sum() + results[1].sum() + results[2].sum()).backward()
        found.append([t.detach() for t in (*results, memory, x, y)] + [leaf.grad])
    # recorded, a result has a way to what the memory is now: that call is eager's
    assert counted.calls == ([] if recorded else [2])
    for got, want in zip(*found, strict=True):
        torch.testing.assert_close(got, want)


def test_other_placements_run_the_captured_graph() -> None:
    run, counted = functionalized()
    others = [matrix().clone()[1:, :3], matrix()[:-1, 2:], torch.ones(3)]
    for make in (
        lambda: [t.clone() for t in others],
        lambda: views(matrix())[::-1][1:] + [torch.ones(3)],
        lambda: [matrix()[1:, 1:4], matrix()[:-1, 2:], torch.ones(3)],
    ):
        ours, eagers = make(), make()
        for got, want in zip((*run(*ours), *ours), (*program(*eagers), *eagers), strict=True):
            torch.testing.assert_close(got, want)
    assert counted.calls == []


def test_views_that_autograd_does_not_know_as_one_run_the_captured_graph() -> None:
    run, counted = functionalized(True)
    leaf = matrix().requires_grad_()
    memory = leaf * 1
    apart = torch.as_strided(memory.detach(), (3, 3), (5, 1), 2).requires_grad_()
    with pytest.raises(RuntimeError, match="leaf Variable that requires grad"):
        run(memory[1:, :3], apart, torch.ones(3))
    assert counted.calls == []


def test_inputs_with_no_common_flat_form_are_refused() -> None:
    def first_and_last(x: Tensor, y: Tensor) -> Any:
        x.add_(1)
        return (y * 2,)

    graph = torch.fx.symbolic_trace(first_and_last)
    x = torch.ones(4)
    with pytest.raises(Unsupported, match="several dtypes"):
        weft_functionalize.functionalize(graph, [x, x.view(torch.int32)])
    recorded = torch.ones(4, requires_grad=True) * 1
    with pytest.raises(Unsupported, match="not all have gradients"):
        weft_functionalize.functionalize(graph, [recorded, recorded.detach()])
