"""Lists that a kept loop fills, whose length sizes or data decide: one graph, tensors apart as in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import weft
from torch.utils._pytree import tree_leaves
from weft_bytecode_capture import CaptureOptions, capture

from .test_separate_rows import sharing

Tensor = torch.Tensor


def of_each_kind(x: Tensor) -> Any:
    kinds = (x * 10).round()
    found = []
    for kind in torch.unique(kinds):
        found.append(torch.where(kinds == kind, x, 0.0).sum())
    return found


def until_small(x: Tensor) -> list[Tensor]:
    out = []
    for _ in range(40):
        x = x * 0.7
        out.append(x * 2)
        if x.abs().max() < 0.1:
            break
    return out


def ended_early(x: Tensor) -> Any:
    return until_small(x)


def with_its_length(x: Tensor) -> Any:
    out = until_small(x)
    return out, len(out), out[-1]


def stacked(x: Tensor) -> Any:
    out = until_small(x)
    return torch.stack(out), torch.cat(out), out[::-1]


def read_again(x: Tensor) -> Any:
    total = 0
    out = until_small(x)
    for row in out:
        total = total + row * row
    return total, out, out[0]


def begun_with_some(x: Tensor) -> Any:
    out = [x, x + 1]
    for _ in range(40):
        out.append(out[-1] * 0.7)
        if out[-1].abs().max() < 0.1:
            break
    return out, out[0], out[1]


def two_lists(x: Tensor) -> Any:
    sums, rows = [], []
    for _ in range(40):
        x = x * 0.7
        sums.append(x.sum())
        rows.append(x + 1)
        if x.abs().max() < 0.1:
            break
        x = x - 0.001
    return torch.stack(sums), rows, x


def unless_small(x: Tensor) -> Any:
    out = []
    for _ in range(40):
        x = x * 0.7
        if x.abs().max() < 0.1:
            break
        out.append(x * 2)
    return out, len(out)


def before_and_behind_the_end(x: Tensor) -> Any:
    every, others = [], []
    for i in range(40):
        x = x * 0.7
        every.append(x + i)
        if x.abs().max() < 0.1:
            break
        others.append(x * 2)
    return every, others


def tokens_until_one_ends_them(x: Tensor) -> Any:
    weight = torch.arange(49.0).reshape(7, 7).sin()
    tokens = [x.argmax() % 7]
    for _ in range(30):
        token = weight[tokens[-1]].argmax()
        if token == 3:
            break
        tokens.append(token)
        weight = weight.roll(1, 0) * 1.01
    return torch.stack(tokens), tokens


def branches_that_append(x: Tensor) -> Any:
    out = []
    for _ in range(40):
        x = x * 0.7
        if x.abs().max() < 0.1:
            break
        if x.sum() > 0:
            out.append(x * 2)
        else:
            out.append(x * 3)
    return out, x


def an_iteration_without_a_row(x: Tensor) -> Any:
    out = []
    for i in range(40):
        x = x * 0.7
        if x.abs().max() < 0.1:
            if i > 20:
                break
            continue
        out.append(x * 2)
    return out, x


def as_its_state(x: Tensor) -> Any:
    out = []
    for _ in range(40):
        x = x * 0.7
        out.append(x)
        if x.abs().max() < 0.1:
            break
    return out, x


def a_row_a_place(x: Tensor) -> Any:
    out = []
    for i in range(x.shape[0]):
        out.append(x[i] * 2)
    return {"list": out, "again": [out], "tuple": (out[-1], out[::-1])}


def a_row_a_place_behind_some(x: Tensor) -> Any:
    out = [x.sum(), x.max()]
    for i in range(x.shape[0]):
        out.append(x[i] * 2)
    return out, out[-1], out[0]


KEPT = [
    of_each_kind, ended_early, with_its_length, stacked, read_again, begun_with_some, two_lists,
    a_row_a_place, a_row_a_place_behind_some, unless_small, before_and_behind_the_end,
    tokens_until_one_ends_them, branches_that_append,
]  # fmt: skip
OTHERS = [as_its_state, an_iteration_without_a_row]
"""Of the first the last row is the state, one tensor in eager."""

SIZES = [(18, 1.0), (20, 0.2), (18, 5.0), (23, 100.0), (20, 1e-3)]


def argument(size: int, scale: float, gradients: bool = False) -> Tensor:
    made = torch.rand(size, generator=torch.Generator().manual_seed(size)) * scale
    return made.requires_grad_(gradients)


@pytest.mark.parametrize("gradients", [False, True], ids=["plain", "gradients"])
@pytest.mark.parametrize("function", [*KEPT, *OTHERS])
def test_results_are_eagers(function: Callable[[Tensor], Any], gradients: bool) -> None:
    compiled = weft.compile(function)
    for size, scale in SIZES:
        x = argument(size, scale, gradients)
        got, wanted = tree_leaves(compiled(x)), tree_leaves(function(x))
        torch.testing.assert_close(got, wanted)
        tensors = [
            [leaf for leaf in leaves if isinstance(leaf, Tensor)] for leaves in (got, wanted)
        ]
        assert sharing([*tensors[0], x]) == sharing([*tensors[1], x])
        totals = [sum(t.sum() * (k + 1) for k, t in enumerate(part)) for part in tensors]
        told = [isinstance(total, Tensor) and total.requires_grad for total in totals]
        assert told[0] is told[1]
        if told[0]:
            torch.testing.assert_close(*(torch.autograd.grad(total, x) for total in totals))


@pytest.mark.parametrize("function", KEPT)
def test_one_graph_serves_all_lengths(function: Callable[[Tensor], Any]) -> None:
    compiled = capture(function, options=CaptureOptions(assume_decisions=True))
    graphs = [len(compiled(argument(size, scale)).graphs) for size, scale in SIZES]
    assert graphs[0] == 1
    assert sum(graphs) <= 2  # one more for sizes that vary


def rows_of_any_size(x: Tensor) -> Tensor:
    out = []
    for _ in range(20):
        x = torch.tanh(x) * 0.5
        out.append(x * 2)
    return torch.stack(out)


def first_bound_in_the_loop(x: Tensor) -> Tensor:
    for _ in range(20):
        made = torch.tanh(x) * 0.5
        x = x + made
    return made


@pytest.mark.parametrize("function", [rows_of_any_size, first_bound_in_the_loop])
def test_a_loop_is_kept_whatever_the_size_of_its_rows(function: Callable[[Tensor], Any]) -> None:
    compiled = capture(function)
    for size in (4, 7, 9):
        report = compiled(argument(size, 1.0))
        torch.testing.assert_close(report.result, function(argument(size, 1.0)))
        loops = [
            node
            for graph in report.graphs
            for node in graph.graph_module.graph.nodes
            if str(node.target) == "while_loop"
        ]
        assert size == 9 or len(loops) == 1  # the third size needs no graph of its own


def test_nothing_is_in_it() -> None:
    compiled = weft.compile(of_each_kind)
    for size in (18, 0, 20):
        torch.testing.assert_close(compiled(argument(size, 1.0)), of_each_kind(argument(size, 1.0)))
