"""Slices that end at a loop's counter, and loops whose bounds are counters of loops around them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from weft_bytecode_capture import capture

from . import numerical_programs, sequence_programs
from .test_loop_lengths import Counting
from .test_symbolic_bounds import check

N = 20


def prefixes(x: torch.Tensor) -> Any:
    sums, greatest, means = torch.zeros(N), torch.zeros(N, 4), torch.zeros(N, 4)
    for i in range(1, N):
        sums[i] = x[:i].sum()
        greatest[i] = x[:i].max(0).values
        means[i] = torch.cat([x[:i], x[i + 1 :]]).mean(0) / (x[:i].shape[0] + 1)
    return sums, greatest, means


def empty_at_first(x: torch.Tensor) -> torch.Tensor:
    out = torch.ones(N, 4)
    for i in range(N):
        window = x[:i]
        out[i] = window.sum(0) + len(window)
    return out


def written_parts(x: torch.Tensor) -> torch.Tensor:
    out = torch.zeros(N, N)
    for i in range(N):
        out[i, :i] = x[i, 0]
        out[i, i:] += 1
        out[:i, i].mul_(2)
        x[i:] *= 0.9
    return out


def attention(x: torch.Tensor) -> torch.Tensor:
    out = torch.zeros(N, 4)
    for t in range(N):
        weights = torch.softmax(x[: t + 1] @ x[t], 0)
        out[t] = weights @ x[: t + 1]
    return out


def from_the_end(x: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(4)
    for i in range(1, N):
        total = total + x[-i:].sum(0) - x[:-i].sum(0) + x[i::2].sum(0)
    return total


def branch_on_a_part(x: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(4)
    for i in range(1, N):
        part = x[:i]
        if part.sum() > 3:
            part = part * 2
        total = total + part.sum(0)
    return total


def sorted_by_selection(x: torch.Tensor) -> torch.Tensor:
    y = x[:, 0].clone()
    for i in range(N):
        least = y[i:].argmin() + i
        first = y[least].clone()
        y[least] = y[i]
        y[i] = first
    return y


def views_of_parts(x: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(4)
    for i in range(1, N):
        total = total + x[:i].reshape(-1).view(i, 4).t().contiguous().sum(1)
        total = total + x[:i].unsqueeze(0).expand(3, -1, -1).mean((0, 1))
    return total


def run(function: Callable[..., Any], rows: int = N) -> Counting:
    """Results and effects are eager's, through all stages, for tensors of two contents."""
    backend = Counting()
    compiled = capture(function, backend=backend)
    for seed in range(2):
        theirs = torch.rand(rows, 4, generator=torch.Generator().manual_seed(seed)) - 0.3
        mine = theirs.clone()
        with torch.no_grad():
            wanted, got = function(theirs), compiled(mine).result
        torch.testing.assert_close(got, wanted, equal_nan=True)
        torch.testing.assert_close(mine, theirs)
    return backend


@pytest.mark.parametrize(
    "function",
    [
        prefixes,
        empty_at_first,
        written_parts,
        attention,
        from_the_end,
        branch_on_a_part,
        sorted_by_selection,
        views_of_parts,
    ],
    ids=lambda f: f.__name__,
)
def test_parts_that_end_at_a_counter(function: Callable[..., Any]) -> None:
    (graph,) = run(function).graphs
    assert "while_loop" in {str(node.target) for node in graph.graph.nodes}


@pytest.mark.parametrize(
    "function",
    [
        sequence_programs.key_value_cache,
        sequence_programs.suppression,
        numerical_programs.cholesky,
        numerical_programs.cholesky_by_columns,
    ],
    ids=lambda f: f.__name__,
)
def test_whole_programs_through_all_stages(function: Callable[..., Any]) -> None:
    (graph,) = run(function, rows=20).graphs
    assert len(graph.graph.nodes) < 60  # however many iterations there are


def pairs(x: torch.Tensor, n: int) -> torch.Tensor:
    total = torch.zeros(4)
    for i in range(n):
        for j in range(i):
            total = torch.tanh(total + x[i] * x[j])
    return total


def upper_triangle(x: torch.Tensor, n: int) -> torch.Tensor:
    out = torch.zeros(n, n)
    for i in range(n):
        for j in range(i, n):
            out[i, j] = (x[i] * x[j]).sum()
    return out


def cholesky_by_elements(x: torch.Tensor, n: int) -> torch.Tensor:
    a = x[:n] @ x[:n].t() + n * torch.eye(n)
    lower = torch.zeros(n, n)
    for j in range(n):
        for i in range(j, n):
            rest = a[i, j]
            for k in range(j):
                rest = rest - lower[i, k] * lower[j, k]
            if i == j:
                lower[j, j] = torch.sqrt(rest)
            else:
                lower[i, j] = rest / lower[j, j]
    return lower


@pytest.mark.parametrize(
    "function", [pairs, upper_triangle, cholesky_by_elements], ids=lambda f: f.__name__
)
def test_bounds_that_are_counters(function: Callable[..., Any]) -> None:
    """One compilation for one length, another for all others; the inner loop may be empty."""
    assert check(function, [(20,), (25,), (17,), (31,)]) == [True, True]


def test_a_local_of_a_loop_that_may_be_empty() -> None:
    """After no iteration it would be unbound: the outer loop is unrolled."""

    def function(x: torch.Tensor) -> torch.Tensor:
        total = torch.zeros(4)
        for i in range(1, N):
            for j in range(i):
                last = x[j] * i
            total = total + last
        return total

    run(function)


@pytest.mark.parametrize("leaves", ["carried", "appended"])
def test_a_part_that_leaves_its_iteration(leaves: str) -> None:
    """Its size is another in each iteration: the loop is unrolled."""

    def function(x: torch.Tensor) -> Any:
        part, found = x[:1], []
        for i in range(1, N):
            if leaves == "carried":
                part = x[:i]
            else:
                found.append(x[:i])
        return part * 1, [f * 1 for f in found]

    run(function)


def test_a_slice_that_ends_where_data_says() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        place, total = torch.tensor(0), torch.zeros(4)
        while place < 3:
            total = total + x[:place].sum(0)
            place = place + 1
        return total

    compiled = capture(function)
    x = torch.rand(N, 4)
    found = compiled(x)
    torch.testing.assert_close(found.result, function(x))
    reasons = [region.reason for report in found.reports for region in report.unkept_regions]
    assert any("slice that ends where data says" in reason for reason in reasons)


def ends_at_an_item_of_each(x: torch.Tensor) -> torch.Tensor:
    total = x * 0
    for _ in range(N):
        t = (total.sum().abs() % 4).long().item()
        total = total + x[:t].sum()
    return total


def writes_up_to_an_item(x: torch.Tensor) -> torch.Tensor:
    total = x.sum()
    for _ in range(N):
        t = (total.abs() % 4).long().item()
        x[:t] += 1
        total = total + x[t:].sum()
    return total


def ends_at_an_item_before(x: torch.Tensor) -> torch.Tensor:
    t, total = x.abs().sum().long().item() % 4, x * 0
    for _ in range(N):
        total = total + x[:t].sum()
    return total


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (ends_at_an_item_of_each, "slice that ends where data says"),
        (writes_up_to_an_item, "slice that ends where data says"),
    ],
)
def test_slices_that_end_at_an_item(function: Callable[..., torch.Tensor], reason: str) -> None:
    """They unroll the loop, and keep it in the graph."""
    compiled, reports = capture(function), []
    for scale in (1.0, -2.0, 0.0):
        mine, theirs = (torch.arange(4.0) * scale for _ in range(2))
        found = compiled(mine)
        torch.testing.assert_close(found.result, function(theirs), rtol=0, atol=0)
        assert torch.equal(mine, theirs) and not found.breaks
        reports += found.reports
    reasons = [region.reason for report in reports for region in report.unkept_regions]
    assert any(reason in each for each in reasons)


def test_a_slice_that_ends_at_an_item_from_before_the_loop() -> None:
    """Its size is one for all iterations."""
    compiled = capture(ends_at_an_item_before)
    for scale in (1.0, -2.0, 0.0):
        x = torch.arange(4.0) * scale
        found = compiled(x)
        torch.testing.assert_close(found.result, ends_at_an_item_before(x), rtol=0, atol=0)
        assert not found.breaks


def test_gradients_through_parts() -> None:
    import weft

    def function(x: torch.Tensor) -> torch.Tensor:
        total = torch.zeros(4)
        for i in range(1, N):
            total = torch.tanh(total + x[:i].sum(0) * x[i:].mean())
        return total

    theirs, mine = (torch.rand(N, 4, generator=torch.Generator().manual_seed(0)) for _ in range(2))
    wanted = function(theirs.requires_grad_())
    got = weft.compile(function)(mine.requires_grad_())
    torch.testing.assert_close(got, wanted)
    wanted.sum().backward()
    got.sum().backward()
    torch.testing.assert_close(mine.grad, theirs.grad)
