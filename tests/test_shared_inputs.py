"""Inputs that share memory, of which a compiled function writes to some: as eager, gradients included."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import weft
from torch import Tensor
from weft_bytecode_capture import compile_frames


def writes_first(x: Tensor, y: Tensor) -> Tensor:
    x.mul_(2).sub_(1)
    return y.exp().sum() + x.sum()


def writes_second(x: Tensor, y: Tensor) -> Tensor:
    before = x * 3
    y.add_(1)
    return before.sum() - (x * y.sum()).sum()


def writes_both(x: Tensor, y: Tensor) -> Tensor:
    x.add_(1)
    y.mul_(0.5)
    x.sub_(y.mean())
    return (x * x).sum() + y.cos().sum()


def writes_a_part(x: Tensor, y: Tensor) -> Tensor:
    x[0].copy_(x[1] * 2)
    y.view(-1)[1:3] = 7.0
    return x.sin().sum() * y.max()


PROGRAMS = [writes_first, writes_second, writes_both, writes_a_part]

# Two views of a contiguous 4 by 4 matrix.
VIEWS: dict[str, Callable[[Tensor], tuple[Tensor, Tensor]]] = {
    "itself and its transpose": lambda m: (m, m.t()),
    "windows of rows": lambda m: (m[1:], m[:-1]),
    "itself and it flat": lambda m: (m, m.view(-1)),
    "windows of columns": lambda m: (m[:, 1:], m[:, :-1]),
    "rows apart in one storage": lambda m: (m[:2], m[2:]),
    "one tensor twice": lambda m: (m, m),
    "two views of all": lambda m: (m.view(4, 4), m.view(4, 4)),
}
# An in-place operation through y.view(-1) needs a y that has such a view.
FLAT = {name for name in VIEWS if name not in ("itself and its transpose", "windows of columns")}
CASES = [
    (program, name)
    for program in PROGRAMS
    for name in VIEWS
    if program is not writes_a_part or name in FLAT
]


def matrix() -> Tensor:
    return torch.arange(16, dtype=torch.float64).reshape(4, 4).sin()


@pytest.mark.parametrize(("program", "name"), CASES)
def test_without_gradients(program: Any, name: str) -> None:
    compiled = weft.compile(program, fullgraph=True)
    for _ in range(2):
        ours, eagers = matrix(), matrix()
        with torch.no_grad():
            views = VIEWS[name](ours)
            versions = [view._version for view in views]
            got, want = compiled(*views), program(*VIEWS[name](eagers))
        torch.testing.assert_close(got, want)
        torch.testing.assert_close(ours, eagers)
        assert all(view._version > before for view, before in zip(views, versions, strict=True))


@pytest.mark.parametrize(("program", "name"), CASES)
def test_with_gradients(program: Any, name: str) -> None:
    """The memory is a result that autograd records, so that eager lets it be written to."""
    compiled = weft.compile(program, fullgraph=True)
    for _ in range(2):
        found = []
        for function in (compiled, program):
            leaf = matrix().requires_grad_()
            memory = leaf * 1.5
            x, y = VIEWS[name](memory)
            result = function(x, y)
            weights = torch.arange(16, dtype=torch.float64).reshape(4, 4)
            total = result + (memory * weights).sum() + (y * 2).sum() - x.square().sum()
            total.backward()
            found.append((result.detach(), memory.detach(), leaf.grad))
        for got, want in zip(*found, strict=True):
            torch.testing.assert_close(got, want)


@pytest.mark.parametrize("parted", ["unbind", "chunk", "split"])
@pytest.mark.parametrize("of_a_leaf", [False, True])
def test_parts_of_one_tensor_with_gradients(parted: str, of_a_leaf: bool) -> None:
    """Autograd knows them as results of one operator: what is written to one is written to all."""
    compiled = weft.compile(lambda q, k, v: (q * k).tanh() @ v, fullgraph=True)
    found = []
    for function in (compiled, lambda q, k, v: (q * k).tanh() @ v):
        leaf = torch.arange(48, dtype=torch.float64).reshape(3, 4, 4).sin().requires_grad_()
        whole = leaf if of_a_leaf else leaf * 2
        parts = whole.unbind() if parted == "unbind" else getattr(whole, parted)(*PARTS[parted])
        result = function(*parts)
        result.square().sum().backward()
        found.append((result, leaf.grad))
    torch.testing.assert_close(*found)


PARTS = {"chunk": (3,), "split": (1,)}


def test_each_way_of_sharing_is_compiled_once() -> None:
    """Guards tell inputs apart from such as share memory, and these by where they lie in it."""
    reports: list[Any] = []
    compiled = compile_frames(
        writes_both, lambda graph, inputs: graph.forward, observer=reports.append
    )
    big = torch.randn(40, dtype=torch.float64)
    calls = [
        lambda: [matrix(), matrix()],
        lambda: [big[:16].view(4, 4), big[16:32].view(4, 4)],
        lambda: [big[4:20].view(4, 4), big[20:36].view(4, 4)],
        lambda: [matrix()] * 2,
    ]
    for _ in range(2):
        for make in calls:
            with torch.no_grad():
                compiled(*make())
    graphs = [report for report in reports if report.graph is not None]
    assert len(graphs) == len(calls)
    failures = [report.recompile_reason for report in graphs[1:]]
    assert "in one storage" in failures[0].found
    assert (
        failures[1].expected
        == "L['x'] at 0, L['y'] at 16 in one storage, of which one is written to"
    )


def test_parameters_that_share_memory_with_an_input_run_as_written() -> None:
    """An input that shares memory with an attribute: no graph says that, so the call runs eagerly."""
    layer = torch.nn.Linear(3, 3, dtype=torch.float64)

    def program(x: Tensor) -> Tensor:
        x.mul_(2)
        return layer(torch.ones(3, dtype=torch.float64))

    compiled = weft.compile(program, options={"strict": False})
    with torch.no_grad():
        expected = layer.weight.sum(1) * 2 + layer.bias
        with pytest.warns(weft.WeftWarning, match="shares storage with another"):
            torch.testing.assert_close(compiled(layer.weight.data), expected)


def test_of_two_dtypes_runs_as_written() -> None:
    def program(x: Tensor, bits: Tensor) -> Tensor:
        x.neg_()
        return bits + 1

    compiled = weft.compile(program, options={"strict": False})
    x, y = torch.ones(4), torch.ones(4)
    with pytest.warns(weft.WeftWarning, match="several dtypes in one storage"):
        got = compiled(x, x.view(torch.int32))
    assert torch.equal(got, program(y, y.view(torch.int32)))
    assert torch.equal(x, y)


def test_leaves_are_refused_as_in_eager() -> None:
    def program(x: Tensor, y: Tensor) -> Tensor:
        x.add_(1)
        return y.sum()

    for function in (weft.compile(program), program):
        leaf = torch.ones(4, requires_grad=True)
        with pytest.raises(RuntimeError, match="leaf Variable that requires grad"):
            function(leaf[1:], leaf[:-1])
        with torch.no_grad():
            assert function(leaf[1:], leaf[:-1]) == 5
        assert leaf.tolist() == [1, 2, 2, 2]


@pytest.mark.parametrize("offset", [0, 1])
def test_gradients_of_a_write_to_what_begins_late_and_has_gaps(offset: int) -> None:
    def program(whole: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
        whole[1:] = part.clone()
        return whole.sin()

    found = []
    for run in (program, weft.compile(program)):
        leaf = torch.linspace(0, 1, 120, dtype=torch.float64).view(10, 12).requires_grad_()
        view = leaf[::2, offset::2]
        whole = view.slice_scatter(view.narrow(0, 0, 1), 0, 0, 1)
        result = run(whole, whole[:-1])
        found.append((result, *torch.autograd.grad((result.sum() + whole.sum()), leaf)))
    torch.testing.assert_close(found[1], found[0])


def narrowed_behind_a_write(x: Tensor, view: Tensor) -> Any:
    x.data.mul_(2)
    return view.narrow(0, 0, 1), view * 1


def written_under_no_grad(x: Tensor, view: Tensor) -> Any:
    with torch.no_grad():
        view.mul_(2)
    return x.sin(), view[:1].cos()


@pytest.mark.parametrize("program", [narrowed_behind_a_write, written_under_no_grad])
@pytest.mark.parametrize("of_a_leaf", [False, True])
@pytest.mark.parametrize("without", [(), (0,), (1,), (0, 1)], ids=str)
def test_views_made_without_gradients_have_none(
    program: Callable[..., Any], of_a_leaf: bool, without: tuple[int, ...]
) -> None:
    """What they are of has, and is passed beside them or another view of it is."""
    found = []
    for run in (program, weft.compile(program, options={"strict": False})):
        for whole in (True, False):
            leaf = torch.arange(6, dtype=torch.float64).requires_grad_()
            memory = leaf if of_a_leaf else leaf * 1.5
            given = []
            for k, part in enumerate((memory, memory[1:])):
                with torch.set_grad_enabled(k not in without):
                    given.append(part if whole and not k else part[1:])
            try:
                results = (*run(*given), memory)
                total = sum(r.square().sum() for r in results)
                values = (*torch.autograd.grad(total, leaf), *results)
                found.append([value.tolist() for value in values])
            except RuntimeError as error:
                found.append([re.sub(r"Output 0 of \w+", "", str(error))])
    half = len(found) // 2
    assert found[half:] == found[:half]
