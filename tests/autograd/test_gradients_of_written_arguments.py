"""Gradients of what a compiled function has given and its other results are computed from.

So of arguments that it has written to, as they are behind the call, and of results that others come from.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import weft
from torch import Tensor

Program = Callable[[Tensor, Tensor], Any]
Use = Callable[[list[Tensor], list[Tensor], list[Tensor]], Any]


def whole(a: Tensor, b: Tensor) -> Any:
    a.mul_(b)
    return a.sin()


def row_by_a_view(a: Tensor, b: Tensor) -> Any:
    row = a[0]
    row.mul_(b[0])
    return row.sin(), a.cos() * b


def read_before_and_after(a: Tensor, b: Tensor) -> Any:
    before = (a * 3).sin()
    a.add_(b)
    return before * a.exp(), before + 1


def copied(a: Tensor, b: Tensor) -> Any:
    h = b * b
    a.copy_(h)
    return h.exp(), a.sin(), a


def one_through_the_other(a: Tensor, b: Tensor) -> Any:
    a.mul_(2)
    b.add_(a.sin())
    return b.cos() * 2


def written_twice(a: Tensor, b: Tensor) -> Any:
    a.mul_(2)
    between = a - b
    a.add_(1)
    return between.sin(), a.sin() * b


def relu_in_place(a: Tensor, b: Tensor) -> Any:
    return F.relu(a, inplace=True) @ b.t()


def behind_autograd(a: Tensor, b: Tensor) -> Any:
    a.mul_(b)
    with torch.no_grad():
        a.add_(1)
    return (a * 2).tanh()


def detached_result(a: Tensor, b: Tensor) -> Any:
    a.mul_(b)
    return a.detach().sin(), a.t() * 2, a[1:].cos()


def random_result(a: Tensor, b: Tensor) -> Any:
    a.mul_(2)
    return F.dropout(a, 0.5) * b


def results_of_one_another(a: Tensor, b: Tensor) -> Any:
    h = a * b
    k = h.exp()
    return h, k.sin(), k, (h + k).cos()


def result_and_written(a: Tensor, b: Tensor) -> Any:
    h = a * 2
    b.mul_(h)
    h2 = b.cos()
    a.add_(1)
    return h, h2, h2 * a


PROGRAMS: tuple[Program, ...] = (
    results_of_one_another, result_and_written, whole, row_by_a_view, read_before_and_after, copied,
    one_through_the_other, written_twice, relu_in_place, behind_autograd, detached_result, random_result,
)  # fmt: skip


def total(results: list[Tensor]) -> Tensor:
    found = torch.zeros((), dtype=torch.float64)
    for result in results:
        weights = torch.linspace(0.5, 1.5, result.numel(), dtype=torch.float64)
        found = found + (result * weights.view(result.shape)).sum()
    return found


def of_an_argument(leaves: list[Tensor], given: list[Tensor], results: list[Tensor]) -> Any:
    return torch.autograd.grad(total(results), given, allow_unused=True)


def of_each_result(leaves: list[Tensor], given: list[Tensor], results: list[Tensor]) -> Any:
    return [
        torch.autograd.grad(total([r]), [*given, *leaves], allow_unused=True, retain_graph=True)
        for r in results
    ]


def with_leaves_and_the_argument(
    leaves: list[Tensor], given: list[Tensor], results: list[Tensor]
) -> Any:
    value = total([*results, *given])
    return torch.autograd.grad(value, [*given, *leaves], allow_unused=True)


def of_results(leaves: list[Tensor], given: list[Tensor], results: list[Tensor]) -> Any:
    hooked: list[Any] = []
    for result in results:
        result.retain_grad()
        result.register_hook(lambda g: hooked.append(g.clone()))
    total(results).backward(retain_graph=True)
    asked = torch.autograd.grad(total(results), [*results, *leaves], allow_unused=True)
    return [*(r.grad for r in results), *(x.grad for x in leaves), *asked, len(hooked)]


def hooked(leaves: list[Tensor], given: list[Tensor], results: list[Tensor]) -> Any:
    seen: list[Any] = []
    given[0].register_hook(lambda g: seen.append(g.clone()))
    given[1].register_hook(lambda g: g * 2)
    total([*results, given[0]]).backward()
    return [seen, *(x.grad for x in leaves)]


def hooked_and_gone(leaves: list[Tensor], given: list[Tensor], results: list[Tensor]) -> Any:
    given[0].register_hook(lambda g: g * 2)
    del given[:]
    total(results).backward()
    return [x.grad for x in leaves]


def retained(leaves: list[Tensor], given: list[Tensor], results: list[Tensor]) -> Any:
    for x in given:
        x.retain_grad()
    value = total(results)
    value.backward(retain_graph=True)
    value.backward()
    return [x.grad for x in [*given, *leaves]]


def by_inputs(leaves: list[Tensor], given: list[Tensor], results: list[Tensor]) -> Any:
    total(results).backward(inputs=[given[0], leaves[1]])
    return given[0].grad, leaves[1].grad


def plainly(leaves: list[Tensor], given: list[Tensor], results: list[Tensor]) -> Any:
    total([r.sin() for r in results] + given).backward()
    return [x.grad for x in leaves]


def twice(leaves: list[Tensor], given: list[Tensor], results: list[Tensor]) -> Any:
    first = torch.autograd.grad(total(results), given, create_graph=True, allow_unused=True)
    there = [g.sin() for g in first if g is not None and g.requires_grad]
    second = torch.autograd.grad(total(there), leaves, allow_unused=True) if there else []
    return [*first, *second]


def infinite(leaves: list[Tensor], given: list[Tensor], results: list[Tensor]) -> Any:
    gradients = [torch.full_like(r, float("inf")) for r in results]
    found = torch.autograd.grad(results, [*given, *leaves], gradients, allow_unused=True)
    return [None if g is None else g.isfinite() for g in found]


USES: tuple[Use, ...] = (
    of_an_argument, of_each_result, with_leaves_and_the_argument, hooked, hooked_and_gone, retained,
    of_results, by_inputs, plainly, twice, infinite,
)  # fmt: skip


def outcome(program: Program, use: Use) -> Any:
    """What a use of the results finds; eager's errors, by their beginnings."""
    torch.manual_seed(0)
    leaves = [torch.rand(3, 4, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    given = [leaves[0] * 2, leaves[1] * 3]
    results = program(*given)
    results = [r for r in (results if isinstance(results, tuple) else [results]) if r.requires_grad]
    try:
        return use(leaves, given, results)
    except RuntimeError as error:
        return str(error)[:40]


@pytest.mark.parametrize("use", USES, ids=lambda use: str(use.__name__))
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: str(program.__name__))
def test_like_eager(program: Program, use: Use) -> None:
    torch.testing.assert_close(
        outcome(weft.compile(program), use), outcome(program, use), rtol=1e-7, atol=1e-9
    )


def test_under_autocast() -> None:
    def program(a: Tensor, b: Tensor) -> Any:
        a.mul_(b)
        return (a @ b.t()).sin()

    def found(function: Program) -> Any:
        torch.manual_seed(0)
        a, b = (torch.rand(4, 4, requires_grad=True) * 1 for _ in range(2))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            result = function(a, b)
        return torch.autograd.grad(result.float().sum(), [a, b])

    torch.testing.assert_close(found(weft.compile(program)), found(program), rtol=0.05, atol=0.05)


def test_of_a_buffer() -> None:
    class Summing(torch.nn.Module):
        state: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("state", torch.ones(3))

        def forward(self, x: Tensor) -> Tensor:
            self.state.add_(x)
            return self.state.sin()

    def found(module: Any) -> Any:
        x = torch.linspace(0, 1, 3, requires_grad=True)
        result = module(x)
        return torch.autograd.grad(result.sum(), [module.state, x])

    torch.testing.assert_close(found(weft.compile(Summing())), found(Summing()))


def test_repeated_writes_are_one_graph() -> None:
    """What has been written to by one call has no hooks that the next would have to mind."""

    def program(state: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        state.add_(x * x)
        return state * 2, state + 1

    def found(function: Callable[..., Any]) -> Any:
        x = torch.linspace(0.5, 1, 3, requires_grad=True)
        state = torch.ones(3) * x
        value = torch.zeros(())
        for _ in range(4):
            first, second = function(state, x)
            value = value + first.sin().sum() + second.cos().sum()
        return torch.autograd.grad(value, [state, x])

    compiled = weft.compile(program, fullgraph=True)
    torch.testing.assert_close(found(compiled), found(program))


class Counted(torch.nn.Module):
    """Batch norm, and a buffer that no gradient depends on, both written to by each call."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(3)
        self.register_buffer("calls", torch.tensor(0))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.calls += 1
        h = self.norm(x)
        return h, h.sin()


@pytest.mark.parametrize("dynamic", [None, True])
def test_asking_for_a_result_s_gradient_counts_no_call(dynamic: bool | None) -> None:
    """The graph runs again for it, on copies of what it writes to."""
    x = torch.randn(4, 3, requires_grad=True)
    modules = Counted(), Counted()
    compiled = weft.compile(modules[0], dynamic=dynamic)
    for number in range(1, 4):
        for function in (compiled, modules[1]):
            h, y = function(x)
            gradients = torch.autograd.grad(
                y.sum(), [h, x, modules[0].norm.weight], allow_unused=True
            )
            torch.testing.assert_close(gradients[0], h.cos())
        assert [module.calls.item() for module in modules] == [number, number]
        for mine, eagers in zip(modules[0].buffers(), modules[1].buffers(), strict=True):
            torch.testing.assert_close(mine, eagers)


def flat(x: Tensor) -> Tensor:
    x.view(-1).mul_(2)
    return x.sin()


def rows(x: Tensor) -> Tensor:
    x.select(0, 0).mul_(x[1:].sum())
    x.t()[1:].add_(1)
    return x.sin()


def flat_behind_a_break(x: Tensor) -> Tensor:
    view = x.view(-1)
    torch._dynamo.graph_break()
    view.mul_(2)
    return x.sin()


def part_behind_a_break(x: Tensor) -> Tensor:
    part = x[1:]
    torch._dynamo.graph_break()
    x.mul_(2)
    return part.sin() * 2


@pytest.mark.parametrize("program", [flat, rows, flat_behind_a_break, part_behind_a_break])
@pytest.mark.parametrize("dynamic", [False, True])
def test_written_by_a_view(program: Callable[[Tensor], Tensor], dynamic: bool) -> None:
    """The new value of the argument is on the way from the result, whatever the sizes."""
    compiled = weft.compile(program, dynamic=dynamic)
    for size in (3, 4) if dynamic else (3,):
        found = []
        for function in (program, compiled):
            leaf = torch.linspace(0, 1, 2 * size, dtype=torch.float64).view(size, 2)
            x = leaf.requires_grad_() * 1.5
            found.append(torch.autograd.grad(function(x).sum(), [x, leaf], allow_unused=True))
        torch.testing.assert_close(*found)


def test_sizes_that_vary_let_a_view_of_a_computed_argument_be_written() -> None:
    compiled = weft.compile(flat, fullgraph=True, dynamic=True)
    x = torch.ones(2, 3, requires_grad=True) * 1.5
    torch.testing.assert_close(compiled(x), torch.full((2, 3), 3.0).sin())
