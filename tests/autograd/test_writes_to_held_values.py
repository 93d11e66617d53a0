"""Writes to what eager's autograd holds for backward: an error of backward where it needs the value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import weft
from torch import Tensor, nn

Program = Callable[[Tensor, Tensor], Any]


# Writes inside.


def argument_twice(a: Tensor, b: Tensor) -> Any:
    a.mul_(b)
    result = a.sin()
    a.mul_(2)
    return result, b.cos()


def argument_read_before(a: Tensor, b: Tensor) -> Any:
    result = a.sin() + b
    a.mul_(2)
    return result, a.detach() * b


def intermediate(a: Tensor, b: Tensor) -> Any:
    h = a * 2
    result = h.sin() * b
    h[0] = 1
    return result, h


def intermediate_that_is_an_output(a: Tensor, b: Tensor) -> Any:
    h = a.exp()
    h.logical_or_(a > 0.5)
    return h * b, b + 1


def only_where_linear(a: Tensor, b: Tensor) -> Any:
    h = a * 2
    result = h + b
    h.mul_(3)
    return result, h.sum()


def by_a_view(a: Tensor, b: Tensor) -> Any:
    h = a * b
    row = h[1]
    result = h.exp().sin() + row.cos().sum()
    row.zero_()
    return result, h


def result_of_a_write_to_a_view(a: Tensor, b: Tensor) -> Any:
    row = a[0]
    row.exp_()
    h = b * 2
    h.view(-1).sigmoid_()
    h[0] = 1
    return h, a.view(-1), b + 1


def operands_of_writes_to_views(a: Tensor, b: Tensor) -> Any:
    """The other operand's version is that of what is written to."""
    h = a * 2
    h[0].mul_(h[1])
    k = b.exp()
    k[1].mul_(a[0].sin())
    return h.cos(), k, k * 2


def behind_autograd(a: Tensor, b: Tensor) -> Any:
    h = a * 2
    result = h.sin()
    with torch.no_grad():
        h.add_(1)
    return result, h * b


def in_place_result(a: Tensor, b: Tensor) -> Any:
    h = (a * 2).exp_()
    kept = h * 1
    h.sin_()
    return h, kept * b


def batch_norm_twice(a: Tensor, b: Tensor) -> Any:
    mean, variance = torch.zeros(4, dtype=a.dtype), torch.ones(4, dtype=a.dtype)
    first = nn.functional.batch_norm(a, mean, variance, training=True)
    second = nn.functional.batch_norm(b, mean, variance, training=True)
    return first.sin(), second.sin()


# Results that the caller writes to, or arguments.


def saved_result(a: Tensor, b: Tensor) -> Any:
    return a.exp(), b * 2


def read_results(a: Tensor, b: Tensor) -> Any:
    h = a * 2
    return h, h.sin(), h * b


def views_of_one(a: Tensor, b: Tensor) -> Any:
    h = a.sigmoid()
    return h[1:], h * 2, h[0], b + 1


def mask(a: Tensor, b: Tensor) -> Any:
    chosen = a > 0.5
    return chosen, torch.where(chosen, a, b), a * b


def new_value(a: Tensor, b: Tensor) -> Any:
    a.mul_(b)
    return a.cos(), b * 3


def view_that_is_held_for_no_result(a: Tensor, b: Tensor) -> Any:
    h = a * b
    part = h[:]
    largest, powers = part.max().detach().clone(), part.pow(2).detach().sum()
    part.neg_()
    return part, largest, powers


def view_that_is_held_for_another_result(a: Tensor, b: Tensor) -> Any:
    h = a * b
    part = h.view(-1)
    largest = part.max().detach().clone()
    powers = part.pow(2)
    part.sigmoid_()
    return h, largest, powers


PROGRAMS: tuple[Program, ...] = (
    view_that_is_held_for_no_result,
    view_that_is_held_for_another_result,
    argument_twice, argument_read_before, intermediate, intermediate_that_is_an_output, only_where_linear,
    result_of_a_write_to_a_view, operands_of_writes_to_views, by_a_view, behind_autograd,
    in_place_result, batch_norm_twice, saved_result, read_results, views_of_one, mask, new_value,
)  # fmt: skip


def outcomes(program: Program, written: int | None, leaves_asked_for: tuple[int, ...]) -> list[Any]:
    """The gradients by each result, or that eager raises; ``written``: what the caller writes to before."""
    torch.manual_seed(0)
    leaves = [torch.rand(3, 4, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    given = [leaf * 1 for leaf in leaves]
    results = program(*given)
    values = [*given, *results]
    if written is not None and written < len(values):
        with torch.no_grad():
            values[written].logical_not_() if written % 2 else values[written].fill_(1)
    found: list[Any] = []
    wanted = [leaves[k] for k in leaves_asked_for]
    for result in [*results, *given]:
        if not result.requires_grad:
            continue
        try:
            found.append(
                torch.autograd.grad(result.sum(), wanted, allow_unused=True, retain_graph=True)
            )
        except RuntimeError as error:
            found.append(str(error)[:90])
    return found


@pytest.mark.parametrize("leaves", [(0, 1), (0,), (1,)], ids=str)
@pytest.mark.parametrize("written", [None, 0, 1, 2, 3, 4, 5])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: str(program.__name__))
def test_like_eager(program: Program, written: int | None, leaves: tuple[int, ...]) -> None:
    expected = outcomes(program, written, leaves)
    found = outcomes(weft.compile(program), written, leaves)
    assert [f if isinstance(f, str) else "" for f in found] == [
        e if isinstance(e, str) else "" for e in expected
    ]
    pairs = zip(found, expected, strict=True)
    for mine, its in pairs:
        if not isinstance(its, str):
            torch.testing.assert_close(mine, its)


def written_in_one_branch(a: Tensor, b: Tensor) -> Any:
    h = (a + b).tanh()
    if a.sum() > bound:
        b.mul_(2)
    else:
        h.mul_(3)
    return h, b


def written_in_a_loop(a: Tensor, b: Tensor) -> Any:
    h = a.exp()
    while a.sum() > bound:
        h.add_(1)
        a.sub_(1)
    return h, b * 2


bound = 0.0


@pytest.mark.parametrize("program", [written_in_one_branch, written_in_a_loop])
def test_writes_that_data_decides(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    """Backward raises in the calls alone in which there was a write."""
    compiled = weft.compile(program)
    kinds = set()
    for number in (0.0, 100.0, 1.0):
        monkeypatch.setitem(globals(), "bound", number)
        expected, found = (outcomes(call, None, (0, 1)) for call in (program, compiled))
        kinds |= set(map(type, expected))
        assert [f if isinstance(f, str) else "" for f in found] == [
            e if isinstance(e, str) else "" for e in expected
        ]
        for mine, its in zip(found, expected, strict=True):
            if not isinstance(its, str):
                torch.testing.assert_close(mine, its)
    assert kinds == {str, tuple}


def test_networks_that_are_called_twice() -> None:
    """Running statistics that the second call writes to are nothing that backward of the first reads."""

    def gradients(module: Any) -> list[Tensor]:
        torch.manual_seed(0)
        x = torch.randn(5, 3)
        first, second = module(x), module(x * 2)
        (first.sin().sum() + second.cos().sum()).backward()
        return [p.grad.clone() for p in module.parameters()]

    torch.manual_seed(0)
    plain = nn.Sequential(
        nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(inplace=True), nn.Linear(4, 2)
    )
    expected = gradients(plain)
    plain.zero_grad()
    torch.testing.assert_close(gradients(weft.compile(plain)), expected)


def test_what_is_watched_is_not_held() -> None:
    """A result's memory is free when its caller lets go of it, though writes to it would show."""
    import weakref

    compiled = weft.compile(lambda x: ((x * 2).sin(), x.exp()))
    x = torch.rand(4, requires_grad=True) * 1
    first, second = compiled(x)
    storage = weakref.ref(first.untyped_storage())
    del first
    assert storage() is None
    second.sum().backward()


@pytest.mark.parametrize("program", [argument_twice, intermediate, read_results, new_value])
def test_hooks_for_saved_tensors_lift_the_check(program: Program) -> None:
    """Eager reads what the hooks give, and does not ask whether it was written to."""

    def gradients(function: Program) -> Any:
        leaves = [torch.rand(3, 4, requires_grad=True) for _ in range(2)]
        with torch.autograd.graph.saved_tensors_hooks(torch.clone, torch.clone):
            results = function(*(leaf * 1 for leaf in leaves))
        with torch.no_grad():
            results[0].zero_()
        return torch.autograd.grad([r.sum() for r in results], leaves)

    torch.manual_seed(0)
    expected = gradients(program)
    torch.manual_seed(0)
    torch.testing.assert_close(gradients(weft.compile(program)), expected)


# Writes that autograd is not told of: eager computes with the new values.


def data_of_an_intermediate(a: Tensor, b: Tensor) -> Any:
    h = b.sin()
    result = a * h
    h.data.zero_()
    return result


def data_of_a_part(a: Tensor, b: Tensor) -> Any:
    h = b.tanh()
    result = h * a
    h.data[0] = 5.0
    return result


def data_of_a_result(a: Tensor, b: Tensor) -> Any:
    result = (a * b).exp()
    result.data.mul_(2)
    return result


def data_of_an_argument(a: Tensor, b: Tensor) -> Any:
    result = (a * 1) * b
    b.data.mul_(2)
    return result


def data_behind_a_loop(a: Tensor, b: Tensor) -> Any:
    h, factor = a * 1, b.cos()
    for _ in range(25):
        h = h.sin() * factor
    factor.data.mul_(0.9)
    return h


def data_of_what_a_loop_gives(a: Tensor, b: Tensor) -> Any:
    h = a * b
    for _ in range(25):
        h = (h + 1).sigmoid()
    h.data.mul_(2)
    return h


def data_in_the_next_iteration(a: Tensor, b: Tensor) -> Any:
    h = a * b
    for _ in range(25):
        h.data.mul_(0.9)
        h = (h + 1).sigmoid()
    return h


def data_in_a_branch_of_a_loop(a: Tensor, b: Tensor) -> Any:
    h, factor = a * 1, b.cos()
    for _ in range(25):
        h = h.sin() * factor
        if h.sum() > 0.1:
            factor.data.mul_(0.9)
    return h


def data_behind_a_branch(a: Tensor, b: Tensor) -> Any:
    h, factor = a * 1, b.cos()
    h = h.sin() * factor if h.sum() > 0 else h * factor
    factor.data.mul_(0.9)
    return h


def data_behind_a_branch_of_a_loop(a: Tensor, b: Tensor) -> Any:
    h, factor = a * 1, b.cos()
    for _ in range(25):
        if h.sum() > -9:
            h = h.sin() * factor
    factor.data.mul_(0.9)
    return h


UNTOLD: list[Program] = [
    data_of_an_intermediate,
    data_of_a_part,
    data_of_a_result,
    data_of_an_argument,
    data_behind_a_loop,
    data_of_what_a_loop_gives,
    data_in_the_next_iteration,
    data_behind_a_branch,
]


@pytest.mark.parametrize("program", UNTOLD)
@pytest.mark.filterwarnings("ignore::weft.WeftWarning")
def test_writes_by_data_to_what_is_held(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    """The graph runs in eager, or is refused."""
    with pytest.raises(weft.StageError, match=r"write by \.data to what autograd has saved"):
        weft.compile(program, options={"strict": True})(*leaves())
    monkeypatch.setenv("WEFT_STRICT", "0")
    seen = []
    for call in (program, weft.compile(program)):
        given = leaves()
        result = call(*given)
        seen.append([result, *torch.autograd.grad(result.sum(), given)])
    torch.testing.assert_close(seen[1], seen[0])


@pytest.mark.parametrize("program", [data_in_a_branch_of_a_loop, data_behind_a_branch_of_a_loop])
def test_writes_by_data_that_data_decides(program: Program) -> None:
    """The graph breaks at the branch, and backward reads what the next one leaves."""
    seen = []
    for call in (program, weft.compile(program)):
        given = leaves()
        result = call(*given)
        seen.append([result, *torch.autograd.grad(result.sum(), given)])
    torch.testing.assert_close(seen[1], seen[0])


def test_writes_by_data_to_what_is_not_held() -> None:
    """What backward does not read may be written to: running statistics, a value behind the write."""

    def program(a: Tensor, b: Tensor) -> Any:
        mean = a.detach().mean(0)
        state.data.mul_(0.9).add_(mean, alpha=0.1)
        h = a + b
        h.data.mul_(2)
        return h.sin() * state.sum()

    seen = []
    for call in (program, weft.compile(program, fullgraph=True)):
        state = torch.ones(3)
        given = leaves()
        result = call(*given)
        seen.append([result, state.clone(), *torch.autograd.grad(result.sum(), given)])
    torch.testing.assert_close(seen[1], seen[0])


def test_writes_by_data_that_a_region_does_not_hold() -> None:
    """A loop that writes to what no backward reads stays in the graph."""

    def program(a: Tensor, b: Tensor) -> Any:
        seen = torch.zeros(3)
        h, offset = a * 1, b + 1
        for _ in range(25):
            h = h.sin() + offset
            seen.data.add_(h.detach().mean(0))
        offset.data.mul_(2)
        return h, seen

    seen = []
    for call in (program, weft.compile(program, fullgraph=True)):
        given = leaves()
        result, sums = call(*given)
        seen.append([result, sums, *torch.autograd.grad(result.sum(), given)])
    torch.testing.assert_close(seen[1], seen[0])


def leaves() -> list[Tensor]:
    generator = torch.Generator().manual_seed(4)
    return [torch.randn(2, 3, generator=generator).requires_grad_() for _ in range(2)]


READ_IN_BACKWARD: dict[str, Callable[[Tensor], Any]] = {
    "root": lambda a: (a.abs() + 1).sqrt(),
    "chain": lambda a: a.sin().exp(),
    "softmax": lambda a: (a * 2).softmax(-1),
    "read on": lambda a: ((h := a.sin()), h * h),
    "not held": lambda a: a.exp() * 2,
}


@pytest.mark.parametrize("written", ["result", "argument"])
@pytest.mark.parametrize("name", READ_IN_BACKWARD)
def test_data_written_before_backward(name: str, written: str) -> None:
    """Eager's backward reads what a result that it holds has become; autograd counts no such write."""
    program = READ_IN_BACKWARD[name]

    def gradient(function: Callable[[Tensor], Any]) -> Tensor:
        a = torch.linspace(-1, 2, 8, dtype=torch.float64).view(2, 4).requires_grad_()
        found = function(a)
        results = found if isinstance(found, tuple) else (found,)
        (a if written == "argument" else results[0]).data.mul_(3)
        return torch.autograd.grad([r.cos().sum() for r in results], a)[0]

    torch.testing.assert_close(gradient(weft.compile(program)), gradient(program))


def new_value_of_an_argument(x: Tensor) -> tuple[Tensor, Tensor]:
    x.exp_()
    return x, x.t()


def new_value_that_is_read(x: Tensor) -> tuple[Tensor, Tensor]:
    x.mul_(x.sigmoid())
    return x, x.tanh()


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("is_transposed", [False, True])
@pytest.mark.parametrize("write", [new_value_of_an_argument, new_value_that_is_read])
def test_data_of_an_argument_that_was_written_to(
    write: Callable[[Tensor], tuple[Tensor, Tensor]], is_transposed: bool, dynamic: bool | None
) -> None:
    """Eager's backward reads the argument's memory, as what follows the call has left it."""

    def gradient(function: Callable[[Tensor], Any]) -> Tensor:
        a = torch.linspace(-1, 2, 8, dtype=torch.float64).view(2, 4).requires_grad_()
        x = a.sin().t() if is_transposed else a.sin()
        results = function(x)
        x.data.mul_(3)
        return torch.autograd.grad([r.cos().sum() for r in results], a)[0]

    compiled = weft.compile(write, dynamic=dynamic, fullgraph=True)
    torch.testing.assert_close(gradient(compiled), gradient(write))


def data_in_a_loop(x: Tensor) -> None:
    for _ in range(25):
        x.data[0] = 2.0


def data_in_a_branch(x: Tensor) -> None:
    if x.sum() > 0:
        x.data.mul_(2)
    else:
        x.data.mul_(3)


def data_in_one_branch(x: Tensor) -> None:
    if x.sum() > 0:
        x.data.mul_(2)
    else:
        with torch.no_grad():
            x.mul_(2)


def in_one_branch(x: Tensor) -> None:
    if x.sum() > 0:
        x.mul_(2)


def in_a_loop_that_may_not_run(x: Tensor) -> None:
    with torch.no_grad():
        while x.sum() > 1:
            x.mul_(0.5)


def data_and_rows_in_a_loop(x: Tensor) -> None:
    with torch.no_grad():
        for k in range(25):
            x[0].mul_(1.01)
            x.data[1] = k


def detached_in_a_loop(x: Tensor) -> None:
    alias = x.detach()
    for _ in range(25):
        alias.mul_(1.01)


@pytest.mark.parametrize(
    "write",
    [
        data_in_a_loop, data_in_a_branch, data_in_one_branch, in_one_branch, in_a_loop_that_may_not_run,
        data_and_rows_in_a_loop, detached_in_a_loop,
    ],
)  # fmt: skip
def test_writes_of_regions_to_what_an_earlier_graph_has_saved(
    write: Callable[[Tensor], None],
) -> None:
    """Autograd counts those that it is told of, so that backward raises or reads what was written."""

    def outcome(function: Callable[[Tensor], None], sign: int) -> Any:
        a = (torch.arange(6.0).view(2, 3) + 1) * sign
        a.requires_grad_()
        x = a * 1
        result = x.sin()
        function(x)
        try:
            gradient = torch.autograd.grad(result.sum(), a)[0]
        except RuntimeError as error:
            return str(error)[:90], x._version
        return gradient.tolist(), x.tolist(), x._version

    compiled = weft.compile(write)
    for sign in (-1, 1, -1):
        assert outcome(compiled, sign) == outcome(write, sign)
