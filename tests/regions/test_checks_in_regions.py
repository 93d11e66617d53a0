"""What operators in a region rely on of sizes that data decides there is checked where the region runs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import weft
from weft.registry import codegens

from tests.fuzz.evaluated import EvaluatedCpp

Tensor = torch.Tensor


def rows_of_one_number(x: Tensor, mask: Tensor) -> Tensor:
    if mask.any():
        return x.sum() + (x[mask] * x[~mask]).sum()
    return x.sum()


def products_of_rows(x: Tensor, mask: Tensor) -> Tensor:
    if mask.any():
        (here,) = mask.nonzero(as_tuple=True)
        (there,) = (~mask).nonzero(as_tuple=True)
        return (x[here].T @ x[there]).sum()
    return x.sum()


def a_size_read_from_a_tensor(x: Tensor, mask: Tensor) -> Tensor:
    if mask.any():
        counts = mask.sum()
        places = torch.arange(counts)
        return x.sum() + (places.float() * x[mask][:, 0]).sum()
    return x.sum()


def written_before(x: Tensor, mask: Tensor) -> Tensor:
    x.add_(1)
    if mask.any():
        return (x[mask] + x[~mask]).sum()
    return x.sum()


def written_inside(x: Tensor, mask: Tensor) -> Tensor:
    if mask.any():
        x.mul_(2)
        both = x[mask] + x[~mask]
        x.sub_(3)
        return both.sum()
    return x.sum()


def a_result_that_nothing_reads(x: Tensor, mask: Tensor) -> Tensor:
    if mask.any():
        here, there = x[mask], x[~mask]
        here + there
        return here.sum()
    return x.sum()


def in_each_iteration(x: Tensor, mask: Tensor) -> Tensor:
    total = x.sum() + mask.sum()
    for row in x:
        if row.sum() > 0:
            total = total + (row[row > 0] * row.abs()[row > 0].flip(0)).sum()
    return total


ONE_GRAPH = (
    rows_of_one_number,
    products_of_rows,
    a_size_read_from_a_tensor,
    written_before,
    written_inside,
    a_result_that_nothing_reads,
    in_each_iteration,
)
TRAINED = (rows_of_one_number, written_before, in_each_iteration)
CALLS = ((6, 3), (8, 4), (8, 0), (6, 2), (10, 5))
"""Rows, and how many of them the mask has: halves fit together, the others may be refused."""


def outcome(
    function: Callable[..., Tensor], x: Tensor, mask: Tensor, trained: bool
) -> list[Tensor] | str:
    """The result and what became of ``x``, or the error's text with it."""
    leaf = x.clone().requires_grad_(trained)
    given = leaf * 1 if trained else leaf
    try:
        result = function(given, mask)
    except RuntimeError as error:
        return f"{error} {given.tolist()}"
    if trained:
        result.backward()
        return [result.detach(), given.detach(), leaf.grad if leaf.grad is not None else leaf]
    return [result, given]


def assert_same(found: list[Tensor] | str, wanted: list[Tensor] | str) -> None:
    if isinstance(found, str) or isinstance(wanted, str):
        assert found == wanted
    else:
        torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize(
    ("function", "trained"),
    [*((function, False) for function in ONE_GRAPH), *((function, True) for function in TRAINED)],
)
def test_like_eager(
    function: Callable[..., Tensor], trained: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(codegens, "cpu", EvaluatedCpp)
    compiled, log = weft.compile(function), weft.CompileLog()
    generator = torch.Generator().manual_seed(0)
    with weft.observe(log):
        for rows, chosen in CALLS:
            x = torch.randn(rows, 4, generator=generator)
            mask = torch.arange(rows) < chosen
            wanted = outcome(function, x, mask, trained)
            assert_same(outcome(compiled, x, mask, trained), wanted)
    assert not log.graph_breaks
    assert [graph.eager_reason for graph in log.graphs] == [None] * len(log.graphs)
    assert len(log.graphs) <= 2


def sizes_from_outside(x: Tensor, mask: Tensor) -> Tensor:
    here, there = x[mask], x[~mask]
    if x.sum() > 0:
        return (here * there).sum()
    return here.sum() - there.sum()


def test_sizes_from_outside_are_not_relied_on_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(codegens, "cpu", EvaluatedCpp)
    compiled = weft.compile(sizes_from_outside)
    for rows, chosen, sign in ((6, 3, 1), (6, 3, -1), (6, 2, -1), (6, 2, 1), (8, 4, 1), (8, 1, -1)):
        x, mask = torch.rand(rows, 4) * sign, torch.arange(rows) < chosen
        wanted = outcome(sizes_from_outside, x, mask, False)
        assert_same(outcome(compiled, x, mask, False), wanted)
