"""Regions whose results may be the caller's own tensors: kept where one predicate decides, exact always."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree
from weft.options import CompileOptions
from weft.pipeline import Pipeline
from weft_bytecode_capture import capture


def check(function: Callable[..., Any], *calls: torch.Tensor, regions: int = 1) -> None:
    """Results, and which of them are the argument or share its storage, are eager's."""
    pipeline = Pipeline(CompileOptions(strict=True, verify=True), raise_errors=True)
    seen: list[str] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        seen.extend(str(node.target) for node in graph.graph.nodes)
        return pipeline(graph, inputs)

    compiled = capture(function, backend=backend)
    for x in calls:
        mine, theirs = x.clone(), x.clone()
        with torch.no_grad():
            wanted, got = function(theirs), compiled(mine).result
        for left, right in zip(pytree.tree_leaves(got), pytree.tree_leaves(wanted), strict=True):
            torch.testing.assert_close(left, right)
            assert (left is mine) == (right is theirs)
            storages = [tensor.untyped_storage().data_ptr() for tensor in (left, mine)]
            expected = [tensor.untyped_storage().data_ptr() for tensor in (right, theirs)]
            assert (storages[0] == storages[1]) == (expected[0] == expected[1])
        torch.testing.assert_close(mine, theirs)
    assert seen.count("while_loop") + seen.count("cond") == regions


def shrunk(x: torch.Tensor) -> torch.Tensor:
    while x.sum() > 1:
        x = x * 0.5
    return x


def shrunk_and_counted(x: torch.Tensor) -> Any:
    count = 0
    while x.sum() > 1:
        x = x * 0.5
        count += 1
    return x, (x, x + 1)


def clipped(x: torch.Tensor) -> torch.Tensor:
    if x.sum() > 1:
        x = x.clamp(max=0.1)
    return x


def kept(x: torch.Tensor) -> torch.Tensor:
    return x if x.sum() > 1 else x + 1


def written_before(x: torch.Tensor) -> torch.Tensor:
    x.add_(0.1)
    if x.sum() > 1:
        x = x * 2
    return x


CALLS = [torch.full((4,), 3.0), torch.zeros(4), torch.full((4,), -1.0), torch.ones(4)]


@pytest.mark.parametrize(
    "function",
    [shrunk, shrunk_and_counted, clipped, kept, written_before],
    ids=lambda f: f.__name__,
)
def test_one_predicate_decides(function: Callable[..., Any]) -> None:
    check(function, *CALLS)


def a_view(x: torch.Tensor) -> torch.Tensor:
    y = x
    if x.sum() > 1:
        y = x * 2
    return y[1:]


def either_is_there(x: torch.Tensor) -> Any:
    y = x if x.sum() > 1 else x[:]
    return y + 0, y


def two_branches(x: torch.Tensor) -> torch.Tensor:
    if x.sum() > 1:
        x = x * 2
    if x.sum() > 5:
        x = x * 2
    return x


def in_a_list(x: torch.Tensor) -> Any:
    if x.sum() > 1:
        x = x * 2
    return x, [x]


def part_of_one_of_several_results(x: torch.Tensor) -> Any:
    y = x.sort(0)[0]
    for _ in range(25):
        z = y[1:]
    return x, [x, x], z


def part_of_a_part(x: torch.Tensor) -> Any:
    y = x.view(2, 2).unbind(0)[0]
    for _ in range(25):
        z = y[1:]
    return x, z


@pytest.mark.parametrize(
    ("function", "regions"),
    [
        (a_view, 1),
        (either_is_there, 1),
        (two_branches, 2),
        (in_a_list, 1),
        (part_of_one_of_several_results, 1),
        (part_of_a_part, 1),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_tags_decide(function: Callable[..., Any], regions: int) -> None:
    check(function, *CALLS, regions=regions)


def test_what_is_written_after_a_break_may_be_an_argument() -> None:
    """Through the branches inside a loop, too."""

    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        for _ in range(40):
            if y.sum() > 5:
                x = y
        torch._dynamo.graph_break()
        x[0] = 7
        return x + 0

    pipeline = Pipeline(CompileOptions(verify=True), raise_errors=True)
    compiled = capture(program, backend=pipeline)
    for start in CALLS:
        given = [[t.clone() for t in (start + 1, start)] for _ in range(2)]
        with torch.no_grad():
            torch.testing.assert_close(compiled(*given[0]).result, program(*given[1]))
        torch.testing.assert_close(given[0], given[1])
