"""Loops whose length changes between calls: compiled for one length, then once for all others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.fx
from weft.options import CompileOptions
from weft.pipeline import Pipeline
from weft_bytecode_capture import capture


class Counting:
    """weft's stages as a backend; ``graphs`` are the graphs that it was given."""

    def __init__(self) -> None:
        self._pipeline = Pipeline(CompileOptions(strict=True, verify=True), raise_errors=True)
        self.graphs: list[torch.fx.GraphModule] = []

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        self.graphs.append(graph)
        return self._pipeline(graph, inputs)


def check(function: Callable[..., Any], calls: list[tuple[Any, ...]], graphs: int = 2) -> None:
    """Each call has eager's results and effects; ``graphs`` were compiled, the last with a loop."""
    backend = Counting()
    compiled = capture(function, backend=backend)
    for arguments in calls:
        mine, theirs = (
            [a.clone() if isinstance(a, torch.Tensor) else a for a in arguments] for _ in range(2)
        )
        with torch.no_grad():
            wanted, got = function(*theirs), compiled(*mine).result
        torch.testing.assert_close(got, wanted, equal_nan=True)
        torch.testing.assert_close(mine, theirs, equal_nan=True)
    assert len(backend.graphs) == graphs
    assert "while_loop" in {str(node.target) for node in backend.graphs[-1].graph.nodes}


def repeated(x: torch.Tensor, n: int) -> torch.Tensor:
    for i in range(n):
        x = torch.sin(x) * 0.5 + i
    return x


def by_steps(x: torch.Tensor, n: int) -> torch.Tensor:
    total = x * 0
    for i in range(3, n, 2):
        total += x * i
    return total


def recurrent(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    h = torch.zeros(4)
    out = torch.zeros(x.shape[0], 4)
    for t in range(x.shape[0]):
        h = torch.tanh(x[t] @ w + h)
        out[t] = h
    return out


def rows(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    h = torch.zeros(4)
    for row in x:
        h = torch.tanh(row @ w + h)
    return h


def in_place(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    for t in range(1, x.shape[0]):
        x[t] += x[t - 1] * w[0]
    return x.sum()


def until(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    h = x[0] * 0
    for t in range(x.shape[0]):
        h = h + x[t] @ w
        if h.sum() > 20:
            break
    return h


def numbered(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    out = torch.zeros(x.shape[0], 4)
    for i, row in enumerate(x):
        out[i] = torch.tanh(row @ w) * i
    return out


def together(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    h = w[0] * 1
    for left, right in zip(x, x.flip(0), strict=False):
        h = torch.tanh(left @ w + h) * right
    return h


def by_length(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    h = x[0] * 0
    for t in range(len(x)):
        h = torch.tanh(x[len(x) - 1 - t] @ w + h) / len(x)
    return h


LENGTHS = (20, 30, 17, 42)


@pytest.mark.parametrize("function", [repeated, by_steps], ids=lambda f: f.__name__)
def test_a_number_of_iterations_that_is_passed(function: Callable[..., Any]) -> None:
    check(function, [(torch.rand(5), n) for n in LENGTHS])


@pytest.mark.parametrize(
    "function",
    [recurrent, rows, in_place, until, numbered, together, by_length],
    ids=lambda f: f.__name__,
)
def test_a_number_of_iterations_that_is_a_size(function: Callable[..., Any]) -> None:
    check(function, [(torch.rand(n, 4), torch.rand(4, 4)) for n in LENGTHS])


def shortest(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(4)
    for i, row in zip(range(60, 4, -3), x, strict=False):
        total = total * 0.5 + row * i
    return total


def ended_by_another(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(4)
    for i, row in enumerate(x, -3):
        total = total + (row @ w) * i
        if total.sum() > 5:
            break
    return total


@pytest.mark.parametrize("function", [numbered, together, shortest, ended_by_another])
def test_enumerate_and_zip_of_one_length(function: Callable[..., Any]) -> None:
    check(function, [(torch.rand(20, 4), torch.rand(4, 4)) for _ in range(2)], graphs=1)


def stacked(x: torch.Tensor, w: torch.Tensor) -> Any:
    h, outs, others = torch.zeros(4), [], []
    for i, row in enumerate(x):
        h = torch.tanh(row @ w + h)
        outs.append(h)
        others.append(h[None] * i)
    return torch.stack(outs), torch.stack(outs, 1), torch.cat(others), h


def stacked_by_number(x: torch.Tensor, n: int) -> Any:
    outs = []
    for i in range(2, n):
        outs.append(x * i)
    return torch.stack(outs)


def numbers_of_iterations(x: torch.Tensor, w: torch.Tensor) -> Any:
    """A sum of counters, the counter before, and the last one."""
    h, total, before, last = w[0], 0, 0, None
    for i in range(len(x) - 1, 0, -2):
        h = torch.tanh(h + x[i] * x[before])
        total += i
        before = last = i
    return h, total, before, last, i


def read_backwards(x: torch.Tensor, w: torch.Tensor) -> Any:
    h, outs = w[0] * 1, []
    for t in range(len(x) - 1, -1, -1):
        h = torch.tanh(x[t] @ w + h)
        outs.append(h[None])
    ends = outs[0] - outs[-1], outs[::-1][-1] + 1, len(outs), not outs
    outs.reverse()
    return torch.stack(outs, -1), torch.cat(outs, 1), torch.stack(outs[::-1]), outs[0] + 0, ends


@pytest.mark.parametrize("function", [numbers_of_iterations, read_backwards])
def test_what_is_used_of_all_iterations(function: Callable[..., Any]) -> None:
    check(function, [(torch.rand(n, 4), torch.rand(4, 4)) for n in LENGTHS])


def test_rows_of_lists_that_grow_with_the_loop() -> None:
    check(stacked, [(torch.rand(n, 4), torch.rand(4, 4)) for n in LENGTHS])
    check(stacked_by_number, [(torch.rand(5), n + 30) for n in LENGTHS])


def test_elements_of_a_list_that_grows_with_the_loop() -> None:
    def function(x: torch.Tensor, n: int) -> Any:
        outs = []
        for i in range(n):
            outs.append(x * i)
        outs.append(x)
        return outs, outs[3] + outs[-2], len(outs), outs[-2] is outs[-1]

    compiled = capture(function, backend=Counting())
    for n in (20, 30, 20, 25):
        x = torch.rand(3)
        with torch.no_grad():
            torch.testing.assert_close(compiled(x, n).result, function(x, n))


def test_a_break_between_rows() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, list[int]]:
        total, seen = torch.zeros(4), []
        for i, row in enumerate(x):
            total = total + row * i
            seen.append(int(total.sum()))
        for row in x:
            total = total + row
            seen.append(int(total.sum()))
        return total, seen

    compiled = capture(function, backend=Counting())
    for n in (12, 20, 16):
        x = torch.rand(n, 4)
        torch.testing.assert_close(compiled(x).result, function(x))


def by_length_or_none(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    h = torch.zeros(4)
    for t in range(len(x)):
        h = torch.tanh(x[t] @ w + h)
    return h


@pytest.mark.parametrize("function", [by_length_or_none, rows, numbered])
def test_no_row_and_one_row_have_a_graph_each(function: Callable[..., Any]) -> None:
    """Sizes of 0 and 1 are no symbols: broadcasting and strides mean something else for them."""
    backend = Counting()
    compiled = capture(function, backend=backend)
    for n in (20, 30, 0, 1, 2, 3, 7, 1, 0):
        x, w = torch.rand(n, 4), torch.rand(4, 4)
        with torch.no_grad():
            torch.testing.assert_close(compiled(x, w).result, function(x, w))
    assert len(backend.graphs) == 4


def test_python_on_a_length() -> None:
    """``len(x)`` is a symbol where it varies; what needs the number has it."""

    def program(x: torch.Tensor) -> Any:
        n = len(x)
        numbers = n // 2, divmod(n, 3), float(n), type(n) is int, n in (7, 8), max(n, 3), n**0.5
        texts = f"{n:03d}", str(n), "ab" * n, {n: 1}, [0] * n, list(range(n))
        return (x.view(n, -1) / n + torch.ones(len(x), 1)).sum(), x[len(x) - 1], numbers, texts

    compiled = capture(program, backend=Counting())
    for n in (5, 7, 9, 7, 2, 1, 11):
        x = torch.rand(n, 3)
        got, wanted = compiled(x).result, program(x)
        torch.testing.assert_close(got[:2], wanted[:2])
        assert got[2:] == wanted[2:]
        assert all(type(a) is type(b) for a, b in zip(got[2], wanted[2], strict=True))


def test_no_iterations_after_some() -> None:
    backend = Counting()
    compiled = capture(repeated, backend=backend)
    for n in (20, 30, 0, 1, -3):
        x = torch.rand(5)
        torch.testing.assert_close(compiled(x, n).result, repeated(x, n))


def test_all_elements_of_a_range_that_changes() -> None:
    def listed(x: torch.Tensor, n: int) -> Any:
        numbers = list(range(n))
        outs = []
        for i in range(n):
            outs.append(x * i)
        return torch.stack(outs), numbers

    compiled = capture(listed, backend=Counting())
    for n in (20, 30, 20, 25):
        x = torch.rand(3)
        torch.testing.assert_close(compiled(x, n).result, listed(x, n))


def _counted(x: torch.Tensor, n: int) -> torch.Tensor:
    for i in range(n):
        x = torch.sin(x) + i
    return x


def _nested(x: torch.Tensor, n: int) -> torch.Tensor:
    for i in range(n):
        for j in range(n):
            x = torch.sin(x) + i * j
    return x


def _over_rows(x: torch.Tensor, n: int) -> torch.Tensor:
    out = torch.zeros(n, 3)
    for i, row in enumerate(x.expand(n, 3)):
        out[i] = torch.sin(row)
    return out


@pytest.mark.parametrize("function", [_counted, _nested, _over_rows], ids=lambda f: f.__name__)
def test_graphs_do_not_grow_with_the_number_of_iterations(function: Callable[..., Any]) -> None:
    """Nothing runs: the sizes of the graphs are what compilation takes its time for."""

    def nodes(module: torch.fx.GraphModule) -> int:
        inner = [m for m in module.modules() if isinstance(m, torch.fx.GraphModule)]
        return sum(len(m.graph.nodes) for m in inner)

    found = []
    for length in (20, 1000, 100_000):
        seen: list[int] = []

        def backend(module: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
            seen.append(nodes(module))  # noqa: B023
            return lambda *given: (torch.zeros(3),)

        capture(function, backend=backend)(torch.rand(3), length)
        found.append(seen)
    assert found[0] == found[1] == found[2]
    assert len(found[0]) == 1
