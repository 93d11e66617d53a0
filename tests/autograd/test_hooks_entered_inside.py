"""Hooks for saved tensors that a compiled function enters: they are given what eager saves."""

import contextlib
from collections.abc import Callable, Iterator

import pytest
import torch
import weft

Tensor = torch.Tensor
Hook = Callable[[Tensor], Tensor]


def same(tensor: Tensor) -> Tensor:
    return tensor


def helper(x: Tensor) -> Tensor:
    return x.sin() * x.exp()


def in_a_block(x: Tensor, pack: Hook) -> Tensor:
    y = x.cos()
    with torch.autograd.graph.saved_tensors_hooks(pack, same):
        y = y.sin() * y.exp()
    return y.tanh()


def around_a_helper(x: Tensor, pack: Hook) -> Tensor:
    with torch.autograd.graph.saved_tensors_hooks(pack, same):
        y = helper(x)
    return helper(y)


def behind_a_break(x: Tensor, pack: Hook) -> Tensor:
    y = helper(x)
    torch._C._log_api_usage_once("weft.test")
    if (y.sum() > -1e9).item():
        with torch.autograd.graph.saved_tensors_hooks(pack, same):
            y = helper(y)
    return y.tanh()


def entered_by_hand(x: Tensor, pack: Hook) -> Tensor:
    hooks = torch.autograd.graph.saved_tensors_hooks(pack, same)
    hooks.__enter__()
    y = helper(x)
    hooks.__exit__(None, None, None)
    return y.tanh()


def on_a_stack(x: Tensor, pack: Hook) -> Tensor:
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.autograd.graph.saved_tensors_hooks(pack, same))
        y = helper(x)
    return y.tanh()


@contextlib.contextmanager
def packed(pack: Hook) -> Iterator[None]:
    with torch.autograd.graph.saved_tensors_hooks(pack, same):
        yield


def of_a_generator(x: Tensor, pack: Hook) -> Tensor:
    with packed(pack):
        y = helper(x)
    return y.tanh()


def in_a_loop(x: Tensor, pack: Hook) -> Tensor:
    for _ in range(3):
        with torch.autograd.graph.saved_tensors_hooks(pack, same):
            x = helper(x)
    return x


def nested(x: Tensor, pack: Hook) -> Tensor:
    with (
        torch.autograd.graph.save_on_cpu(),
        torch.autograd.graph.saved_tensors_hooks(pack, same),
    ):
        y = helper(x)
    return y.tanh()


PROGRAMS = [
    in_a_block, around_a_helper, behind_a_break, entered_by_hand, on_a_stack, of_a_generator,
    in_a_loop, nested,
]  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_hook_changes_what_eager_saves(program: Callable[[Tensor, Hook], Tensor]) -> None:
    def observe(function: Callable[[Tensor, Hook], Tensor]) -> tuple[list[list[float]], Tensor]:
        given: list[list[float]] = []

        def pack(tensor: Tensor) -> Tensor:
            given.append(tensor.flatten().tolist())
            return tensor.half().double()

        gradients = []
        for size in (3, 3, 5):
            x = torch.linspace(-1, 1.3, size, dtype=torch.float64).requires_grad_()
            gradients += torch.autograd.grad(function(x, pack).sum(), x)
        return given, torch.cat(gradients)

    expected = observe(program)
    assert expected[0]
    seen = observe(weft.compile(program))
    assert seen[0] == expected[0]
    assert torch.equal(seen[1], expected[1])


def test_without_a_graph_break_they_are_refused() -> None:
    x = torch.ones(3, requires_grad=True)
    with pytest.raises(weft.StageError, match="saved tensors"):
        weft.compile(in_a_block, fullgraph=True)(x, torch.clone)


def test_hooks_that_are_disabled_are_refused_as_in_eager() -> None:
    def program(x: Tensor) -> Tensor:
        with torch.autograd.graph.disable_saved_tensors_hooks("none here"):
            return in_a_block(x, torch.clone)

    for function in (program, weft.compile(program)):
        with pytest.raises(RuntimeError, match="none here"):
            function(torch.ones(3, requires_grad=True))


def test_torch_s_own_keep_values_and_what_is_inside_is_compiled() -> None:
    def program(x: Tensor) -> Tensor:
        with torch.autograd.graph.save_on_cpu():
            y = helper(x)
        return y.tanh()

    graphs: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[object]) -> Callable[..., object]:
        graphs.append(graph)
        return graph.forward

    x = torch.linspace(-1, 1, 4).requires_grad_()
    (expected,) = torch.autograd.grad(program(x).sum(), x)
    (seen,) = torch.autograd.grad(weft.compile(program)(x).sum(), x)
    torch.testing.assert_close(seen, expected)
    weft.compile(program, backend=backend)(x)
    assert any(node.target == "sin" for graph in graphs for node in graph.graph.nodes)
