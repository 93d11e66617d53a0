"""Inputs that compiled functions write to: values, results, versions, and old values read beside new ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import weft
from torch import Tensor


def swapped(x: Tensor, y: Tensor) -> Tensor:
    kept = x.clone()
    x.copy_(y)
    y.copy_(kept)
    return x - y


def read_by_a_later_stage(x: Tensor, y: Tensor) -> Tensor:
    scaled = x * (x * y).sum(1, keepdim=True)
    x.mul_(2)
    return scaled


def old_value_returned(x: Tensor, y: Tensor) -> Tensor:
    old = x.clone()
    x.add_(y)
    return old


def turned(x: Tensor, y: Tensor) -> Tensor:
    x.copy_(x.flip(0) + y)
    return x * 2


def one_after_another(x: Tensor, y: Tensor) -> Tensor:
    x.add_(y)
    y.mul_(x).sub_(1)
    return x @ y.t()


def centred(x: Tensor, y: Tensor) -> Tensor:
    x.sub_(x.mean()).div_(y.exp())
    return x.softmax(1)


def summed_rows(x: Tensor, y: Tensor) -> Tensor:
    y[0] = x.sum(0)
    x[1:].add_(y[:-1])
    return x.cumsum(0)


def one_part(x: Tensor, y: Tensor) -> None:
    x[0] -= 1


def the_same_part_twice(x: Tensor, y: Tensor) -> Tensor:
    row = x[0]
    row -= y[0]
    x[0] = row
    x[0] *= 3
    x[0, 1] += 2
    return x.sum(0)


def parts_from_parts(x: Tensor, y: Tensor) -> Tensor:
    x[1:] *= 2
    x[:, 1] -= x[:, 0] * y[:, 1]
    x[:, 0] += x[:, 1]
    x[1:] -= x[:-1] * y[1:]
    return x + y


def by_a_library(x: Tensor, y: Tensor) -> Tensor:
    x.copy_(x @ y.t() @ y)
    return x.sort(1).values


def broadcast(x: Tensor, y: Tensor) -> Tensor:
    x.copy_(y[:, :1])
    y.add_(x)
    return x


def written_twice(x: Tensor, y: Tensor) -> Tensor:
    x.add_(1)
    z = x * y
    x.mul_(z)
    return z


PROGRAMS = [
    swapped,
    read_by_a_later_stage,
    old_value_returned,
    turned,
    one_after_another,
    centred,
    summed_rows,
    one_part,
    the_same_part_twice,
    parts_from_parts,
    by_a_library,
    broadcast,
    written_twice,
]


def strided(shape: tuple[int, int]) -> Tensor:
    return torch.randn(shape[1], 2 * shape[0], dtype=torch.float64).t()[::2]


INPUTS: dict[str, Callable[[], list[Tensor]]] = {
    "contiguous": lambda: [torch.randn(6, 5, dtype=torch.float64) for _ in range(2)],
    "strided": lambda: [strided((6, 5)), torch.randn(6, 5, dtype=torch.float64)],
    "half": lambda: [torch.randn(6, 5).bfloat16(), torch.randn(6, 5).bfloat16()],
}


def copied(tensor: Tensor) -> Tensor:
    new = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
    return new.copy_(tensor)


@pytest.mark.parametrize("kind", INPUTS)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_written_inputs(program: Any, kind: str) -> None:
    torch.manual_seed(0)
    compiled = weft.compile(program, fullgraph=True)
    tolerance = 1e-12 if kind != "half" else 3e-2
    for _ in range(2):
        want = INPUTS[kind]()
        got = [copied(tensor) for tensor in want]
        before = [tensor._version for tensor in (*want, *got)]
        with torch.no_grad():
            want_result, got_result = program(*want), compiled(*got)
        for expected, actual in zip((want_result, *want), (got_result, *got), strict=True):
            torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)
        assert (want_result is want[0]) == (got_result is got[0])
        changed = [t._version > v for t, v in zip((*want, *got), before, strict=True)]
        assert changed[:2] == changed[2:]


def test_autograd_sees_what_was_written() -> None:
    x, y = torch.ones(3, requires_grad=True), torch.ones(3)
    product = x * y

    def program(y: Tensor) -> Tensor:
        return y.add_(1)

    with torch.no_grad():
        weft.compile(program, fullgraph=True)(y)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.sum().backward()


class Normalised(torch.nn.Module):
    """Statistics in buffers, and a count that the caller hands over and gets back."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3)

    def forward(self, x: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
        count.add_(1)
        return (self.norm(self.linear(x)) * count).sum(), count


class Kept(torch.nn.Module):
    """A buffer whose new value the gradient is made of."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(4))
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
        self.mean.mul_(0.5).add_(x.mean(0))
        count.sub_(x[0, 0].detach())
        return (self.weight * self.mean).sum(), count


def versions(model: torch.nn.Module, count: Tensor) -> list[int]:
    return [t._version for t in (*model.buffers(), count)]


@pytest.mark.parametrize("make", [Normalised, Kept])
def test_what_training_writes_to(make: Callable[[], torch.nn.Module]) -> None:
    """Buffers and inputs keep their memory, move their versions as in eager, and have eager's values."""
    torch.manual_seed(0)
    model, twin = make(), make()
    twin.load_state_dict(model.state_dict())
    compiled = weft.compile(model, fullgraph=True)
    counts = [torch.zeros(1) for _ in range(2)]
    places = [b.data_ptr() for b in model.buffers()]
    for _ in range(3):
        x = torch.randn(5, 4)
        before = versions(model, counts[0]) + versions(twin, counts[1])
        loss, count = compiled(x, counts[0])
        want, _ = twin(x, counts[1])
        assert count is counts[0]
        loss.backward()
        want.backward()
        after = versions(model, counts[0]) + versions(twin, counts[1])
        moved = [b > a for a, b in zip(before, after, strict=True)]
        half = len(moved) // 2
        # eager's batch norm does not move the versions of its buffers
        assert all(a >= b for a, b in zip(moved[:half], moved[half:], strict=True))
        torch.testing.assert_close(loss, want)
        torch.testing.assert_close(counts[0], counts[1])
        torch.testing.assert_close(dict(model.named_buffers()), dict(twin.named_buffers()))
        grads = [[p.grad for p in m.parameters()] for m in (model, twin)]
        torch.testing.assert_close(*grads)
    assert places == [b.data_ptr() for b in model.buffers()]


def adds(p: Tensor) -> None:
    p.add_(1)


def a_row(p: Tensor) -> None:
    torch.relu_(p[0])


def twice(p: Tensor) -> None:
    p.mul_(2)
    p[:, 1:].sub_(p[:, :1])


@pytest.mark.parametrize("change", [adds, a_row, twice])
@pytest.mark.parametrize("through", ["data", "detach", "both"])
def test_writes_are_hidden_from_autograd_where_eager_hides_them(
    change: Callable[[Tensor], None], through: str
) -> None:
    def program(p: Tensor) -> None:
        if through != "detach":
            change(p.data)
        if through != "data":
            change(p.detach())

    told = []
    for run in (program, weft.compile(program)):
        p = torch.linspace(-1, 2, 4).view(2, 2).requires_grad_()
        y = p.sin() * p
        run(p)
        try:
            y.sum().backward()
            gradient: object = p.grad.tolist()
        except RuntimeError as error:
            gradient = str(error).split(";")[0].split(" is at version ")[0]
        told.append((p._version > 0, gradient, p.tolist()))
    (seen, gradient, values), (own_seen, own_gradient, own_values) = told
    assert own_seen == seen
    if isinstance(gradient, str):
        assert own_gradient == gradient
    else:
        torch.testing.assert_close(torch.tensor(own_gradient), torch.tensor(gradient))
    torch.testing.assert_close(torch.tensor(own_values), torch.tensor(values))


def some_writes(x: Tensor, y: Tensor) -> Tensor:
    x.add_(1)
    x.mul_(2)
    x[0] = 3.0
    x.data.mul_(2)
    y.view(-1).add_(x.sum())
    y.detach().exp_()
    return x * y


def torn_apart(x: Tensor, y: Tensor) -> Tensor:
    before = x._version, y._version
    some_writes(x, y)
    return x * (x._version - before[0]) + y * (y._version - before[1])


@pytest.mark.parametrize("program", [some_writes, torn_apart])
@pytest.mark.parametrize("gradients", [False, True])
def test_each_write_is_counted(
    program: Callable[[Tensor, Tensor], Tensor], gradients: bool
) -> None:
    told = []
    for run in (program, weft.compile(program)):
        x, y = torch.linspace(-1, 2, 4), torch.linspace(0.5, 1, 4)
        if gradients:
            x, y = x.requires_grad_() * 1, y.requires_grad_() * 1
        found = []
        for _ in range(2):
            result = run(x, y)
            found += [x._version, y._version, x.tolist(), y.tolist(), result.tolist()]
        told.append(found)
    assert told[1] == told[0]


def across_a_break(x: Tensor, y: Tensor) -> Any:
    z = x.sin()
    z.add_(1)
    between = z._version
    z.mul_(y)
    return z, between, z._version


def by_views(x: Tensor, y: Tensor) -> Any:
    z, w = x.clone(), torch.zeros(4)
    z[0].mul_(2)
    w[1:] = z[1:] * y[0]
    w.data.add_(1)
    return z, z[1:], w[1:]


def by_out(x: Tensor, y: Tensor) -> Any:
    z = torch.empty(4)
    torch.sin(x.detach(), out=z)
    torch.cos(z, out=z)
    return z, (x * y).relu_()


def in_loops(x: Tensor, y: Tensor) -> Any:
    z, rows = x.clone(), torch.zeros(30, 4)
    for i in range(30):
        z.mul_(0.9).add_(1)
        rows[i] = z.detach() * i
        y[i % 4] += 1
    z.add_(1)
    while x.abs().sum() > 0.1:
        x = x * 0.5
    return z, rows, y._version, x


@pytest.mark.parametrize("program", [across_a_break, by_views, by_out, in_loops])
@pytest.mark.parametrize("gradients", [False, True])
def test_writes_to_results_are_counted(
    program: Callable[[Tensor, Tensor], Any], gradients: bool
) -> None:
    told = []
    for run in (program, weft.compile(program)):
        x = torch.linspace(-1, 2, 4).requires_grad_(gradients)
        results = run(x, torch.linspace(0.5, 1, 4))
        versions = [r._version if isinstance(r, Tensor) else r for r in results]
        if gradients:
            (found,) = torch.autograd.grad(
                [r.sum() for r in results if torch.is_tensor(r) and r.requires_grad], x
            )
            versions.append(found.tolist())
        told.append(versions)
    assert told[1] == told[0]


def given_apart(x: Tensor) -> tuple[Tensor, ...]:
    detached, data = x.detach(), x.data
    return detached, data, detached[1:], data[1:], x[1:], x.sin()


@pytest.mark.parametrize("requires_grad", [False, True])
def test_what_lies_in_an_input_counts_writes_as_eagers_does(requires_grad: bool) -> None:
    """A write to ``x.data`` later is none to ``x``, and ``x.detach()`` is no view of it."""
    told = []
    for run in (given_apart, weft.compile(given_apart)):
        x = torch.linspace(-1, 2, 4).requires_grad_(requires_grad)
        *results, _ = run(x)
        found: list[object] = [t._is_view() for t in results]
        for tensor in results:
            with torch.no_grad():
                tensor.add_(1)
            found += [x._version, x.tolist()]
        told.append(found)
    assert told[1] == told[0]


def test_autograd_is_told_of_writes_in_regions() -> None:
    def program(p: Tensor) -> None:
        if p.sum() > 0:
            p.detach().mul_(2)

    p = torch.ones(2, requires_grad=True)
    weft.compile(program)(p)
    assert p._version


def given_out_then_differentiable(x: Tensor, w: Tensor) -> Tensor:
    """What is written to ``out=`` may require no gradient when it is."""
    torch.sin(x, out=x)
    x.sub_(w.mean())
    return x * 2


def a_part_becomes_differentiable(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    y = x.exp()
    torch.mul(y, x, out=x)
    x[1:] += w[1:] * y[1:]
    return x.cos(), y


def overlapping_becomes_differentiable(x: Tensor, w: Tensor) -> Tensor:
    torch.neg(x[1:], out=x[1:])
    x[:2].mul_(w[:2])
    return x.sum()


@pytest.mark.parametrize(
    "program",
    [
        given_out_then_differentiable,
        a_part_becomes_differentiable,
        overlapping_becomes_differentiable,
    ],
)
def test_an_argument_gets_gradients_by_a_write(program: Callable[..., Any]) -> None:
    """Before the write it requires none, whatever that refuses of tensors that do."""
    told = []
    for run in (program, weft.compile(program, fullgraph=True)):
        x, w = torch.arange(3.0), torch.ones(3, requires_grad=True)
        results = run(x, w)
        results = results if isinstance(results, tuple) else (results,)
        sum(r.sum() for r in (*results, x)).backward()
        told.append((*results, x, w.grad, [r.requires_grad for r in (*results, x)]))
    torch.testing.assert_close(told[1], told[0])


def written_rows(x: Tensor, cache: Tensor, n: int) -> Tensor:
    cache[n] = x
    cache[:n].mul_(2)
    return cache[: n + 1].sum(0)


def written_whole(x: Tensor, cache: Tensor, n: int) -> Tensor:
    x.add_(n)
    return cache.copy_(x.expand_as(cache)).view(-1)[n:]


@pytest.mark.parametrize("inside", [True, False], ids=["inside", "outside"])
@pytest.mark.parametrize("program", [written_rows, written_whole])
def test_tensors_of_inference_mode_are_written_to(
    program: Callable[..., Tensor], inside: bool
) -> None:
    """As a cache that `generate` has made; they count no versions."""
    told = []
    for run in (program, weft.compile(program, fullgraph=True)):
        with torch.inference_mode():
            x, cache = torch.arange(3.0), torch.ones(4, 3)
        if not inside:
            x, cache = x.clone(), cache.clone()
        with torch.inference_mode():
            results = [run(x, cache, n) for n in range(1, 4)]
        told.append([*results, x, cache])
        told[-1].append(torch.tensor([t.is_inference() for t in told[-1]]))
    torch.testing.assert_close(told[1], told[0])


OUT: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...], tuple[Tensor, ...]]] = {
    "running maximum of a number": (
        lambda x, *out: torch.cummax(x, 0, out=out),
        (torch.tensor(3.0),),
        (torch.zeros(()), torch.zeros((), dtype=torch.long)),
    ),
    "running minimum": (
        lambda x, *out: torch.cummin(x, 0, out=out),
        (torch.tensor([3.0, 1.0, 2.0]),),
        (torch.zeros(6)[::2], torch.zeros(3, dtype=torch.long)),
    ),
    "batch norm": (
        lambda x, m, v, *out: torch.native_batch_norm(
            x, None, None, m, v, True, 0.1, 1e-5, out=out
        ),
        (torch.arange(6.0).view(3, 2) ** 2, torch.zeros(2), torch.ones(2)),
        (torch.zeros(3, 2), torch.zeros(2), torch.zeros(2)),
    ),
}


@pytest.mark.parametrize("name", OUT)
def test_several_tensors_to_write_to(name: str) -> None:
    function, given, targets = OUT[name]
    told = []
    for run in (function, weft.compile(function, options={"strict": False})):
        arguments = [x.clone() for x in (*given, *targets)]
        results = run(*arguments)
        told.append(
            [
                *arguments,
                *results,
                *(r is a for r, a in zip(results, arguments[len(given) :], strict=True)),
            ]
        )
    torch.testing.assert_close(told[1], told[0])
