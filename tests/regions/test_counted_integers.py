"""Integers that a kept loop counts: tensors in the graph, ints for the program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.fx
from weft.options import CompileOptions
from weft.pipeline import Pipeline
from weft_bytecode_capture import capture


def check(function: Callable[..., Any], *calls: tuple[Any, ...], graphs: int = 1) -> None:
    """Each call has eager's results, numbers included; ``graphs`` are made, the first with a loop."""
    pipeline = Pipeline(CompileOptions(strict=True, verify=True), raise_errors=True)
    seen: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        seen.append(graph)
        return pipeline(graph, inputs)

    compiled = capture(function, backend=backend)
    for arguments in calls:
        with torch.no_grad():
            wanted, got = function(*arguments), compiled(*arguments).result
        torch.testing.assert_close(got, wanted)
        kinds = [[type(value) for value in result] for result in (got, wanted)]
        assert kinds[0] == kinds[1]
    assert len(seen) == graphs
    assert "while_loop" in {str(node.target) for node in seen[0].graph.nodes}


def halvings(x: torch.Tensor) -> tuple[torch.Tensor, int]:
    x, count = x + 0, 0
    while x.sum() > 1:
        x = x * 0.5
        count += 1
    return x, count


def two_counts(x: torch.Tensor) -> tuple[torch.Tensor, int, int]:
    x, up, down = x + 0, 3, 10
    while x.sum() > 1:
        x = x * 0.5
        up = 2 + up
        down = down - 1
    return x, up, down


def branches(x: torch.Tensor) -> tuple[torch.Tensor, int]:
    total, count = x * 0, 0
    for i in range(30):
        if (x + i).sum() > 40:
            total = total + x
            count += 1
        else:
            total = total - i
    return total, count


def ended(x: torch.Tensor) -> tuple[torch.Tensor, int]:
    x, steps = x + 0, 0
    for _ in range(50):
        x = x * 0.75
        steps += 1
        if x.sum() < 0.5:
            break
    return x, steps


INPUTS = [(torch.rand(8) * 9,), (torch.rand(8),), (torch.zeros(8),)]


@pytest.mark.parametrize("function", [halvings, two_counts, branches, ended])
def test_counts_are_returned(function: Callable[..., Any]) -> None:
    check(function, *INPUTS)


def test_a_count_that_is_used_after_the_loop() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, int]:
        y, count = halvings(x)
        return y * (count * 2), count

    check(function, *INPUTS)


def test_a_count_that_the_body_uses() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, int]:
        x, count = x + 0, 0
        while x.sum() > 1:
            x = x * 0.5 - count
            count += 1
        return x, count

    check(function, *INPUTS)
