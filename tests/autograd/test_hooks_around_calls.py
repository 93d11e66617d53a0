"""Hooks for saved tensors around the call of a compiled function: they are given what eager saves.

A compiled program saves other tensors than eager does, and computes some again.  Where a hook rounds, counts
or scales what it is given, that shows: such calls run as they are written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import weft
from torch.utils.checkpoint import checkpoint

Tensor = torch.Tensor
hooks = torch.autograd.graph.saved_tensors_hooks


def rounded(tensor: Tensor) -> Tensor:
    return tensor.detach().to(torch.bfloat16)


def wide(tensor: Tensor) -> Tensor:
    return tensor.float()


def straight(x: Tensor, w: Tensor) -> Tensor:
    y = x @ w
    return (y.sin() * y.exp()).sum()


def with_a_break(x: Tensor, w: Tensor) -> Tensor:
    y = (x @ w).sin()
    torch._C._log_api_usage_once("weft.test")
    return (y * y.exp()).sum()


def with_a_loop(x: Tensor, w: Tensor) -> Tensor:
    while x.square().sum() < 100:
        x = x * (x @ w).exp()
    return x.sum()


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(4, 4), torch.nn.LayerNorm(4)

    def forward(self, x: Tensor, w: Tensor) -> Tensor:
        return self.second(self.first(x).relu() @ w).square().sum()


FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    "straight": straight,
    "with a break": with_a_break,
    "with a loop": with_a_loop,
    "a module": Model(),
}


def leaves(rows: int = 3) -> list[Tensor]:
    torch.manual_seed(rows)
    return [torch.rand(rows, 4).requires_grad_(), torch.rand(4, 4).requires_grad_()]


def gradients(function: Any, pack: Any, unpack: Any, rows: int = 3) -> list[Any]:
    given = leaves(rows)
    with hooks(pack, unpack):
        result = function(*given)
    return [result.detach(), *torch.autograd.grad(result, given)]


@pytest.mark.parametrize("called_before", [False, True])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_hooks_that_round(name: str, called_before: bool) -> None:
    function = FUNCTIONS[name]
    compiled = weft.compile(function)
    for rows in (3, 5, 7):
        if called_before:
            given = leaves(rows)
            torch.testing.assert_close(compiled(*given), function(*given))
        expected = gradients(function, rounded, wide, rows)
        found = gradients(compiled, rounded, wide, rows)
        assert all(torch.equal(mine, its) for mine, its in zip(found, expected, strict=True))


def test_hooks_that_count() -> None:
    found: dict[str, list[tuple[int, ...]]] = {}
    compiled = weft.compile(straight)
    compiled(*leaves())
    for name, function in (("eager", straight), ("compiled", compiled)):
        seen = found[name] = []

        def pack(tensor: Tensor, seen: list[tuple[int, ...]] = seen) -> Tensor:
            seen.append(tuple(tensor.shape))
            return tensor

        gradients(function, pack, lambda tensor: tensor)
    assert found["compiled"] == found["eager"] != []


class Counted:
    """A backend that counts what it compiles."""

    def __init__(self) -> None:
        self.graphs = self.runs = 0

    def __call__(self, module: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        self.graphs += 1

        def run(*given: Any) -> Any:
            self.runs += 1
            return module(*given)

        return run


def test_compiled_code_runs_again_without_hooks() -> None:
    backend = Counted()
    compiled = weft.compile(straight, backend=backend)
    gradients(compiled, rounded, wide)
    assert backend.graphs == 0
    compiled(*leaves())
    gradients(compiled, rounded, wide)
    assert (backend.graphs, backend.runs) == (1, 1)
    compiled(*leaves())
    assert (backend.graphs, backend.runs) == (1, 2)


def test_hooks_that_give_values_back_are_none() -> None:
    """Checkpoints and ``save_on_cpu`` hold whatever is saved: compiled code runs under them."""
    backend = Counted()
    compiled = weft.compile(straight, backend=backend)
    expected = torch.autograd.grad(straight(*(given := leaves())), given)

    def on_the_cpu(*given: Tensor) -> Any:
        with torch.autograd.graph.save_on_cpu():
            return compiled(*given)

    for run in (lambda *given: checkpoint(compiled, *given, use_reentrant=False), on_the_cpu):
        runs, given = backend.runs, leaves()
        torch.testing.assert_close(torch.autograd.grad(run(*given), given), expected)
        assert backend.runs > runs
    assert backend.graphs == 1


def test_the_innermost_hooks_count() -> None:
    backend = Counted()
    compiled = weft.compile(straight, backend=backend)
    with torch.autograd.graph.save_on_cpu(), hooks(rounded, wide):
        compiled(*leaves())
    assert backend.graphs == 0
    with hooks(rounded, wide), torch.autograd.graph.save_on_cpu():
        compiled(*leaves())
    assert backend.graphs == 1


def test_hooks_that_a_generator_enters() -> None:
    """CPython runs it: what is called while it is suspended sees its hooks."""

    def under_hooks() -> Iterator[None]:
        with hooks(rounded, wide):
            yield

    def step(x: Tensor, w: Tensor) -> Tensor:
        return straight(x, w)

    def run(entered: Iterator[None], x: Tensor, w: Tensor) -> Tensor:
        next(entered)
        result = step(x, w)
        next(entered, None)
        return result + straight(x, w)

    compiled = weft.compile(run)
    for _ in range(2):
        found = []
        for function in (run, compiled):
            given = leaves()
            found.append(torch.autograd.grad(function(under_hooks(), *given), given))
        torch.testing.assert_close(*found)
