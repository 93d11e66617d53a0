"""Checks of positions that come before all that a program changes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from weft_loop_ir import (
    ExternCall,
    LoopNode,
    ScheduleOptions,
    check_first,
    lower,
    raises_by_value,
    schedule,
    write_back,
)
from weft_loop_ir.loop_graph import item_writes

aten = torch.ops.aten
X, Y = torch.zeros(8, 5), torch.ones(3, 5)
INDEX = torch.tensor([0, 2, 7])

# The first result is written to the first input; how many checks come first, and how many stay.
PROGRAMS: dict[str, tuple[Any, int, int]] = {
    "put": (lambda x, i, y: aten.index_put(x, [i], y), 1, 0),
    "put twice": (lambda x, i, y: aten.index_put(aten.index_put(x, [i], y), [i], y, True), 1, 0),
    "read beside": (lambda x, i, y: (aten.add(x, 1), aten.index_select(y, 0, i)), 1, 0),
    "computed": (lambda x, i, y: aten.index_add(x, 0, aten.remainder(i, 8), y), 1, 0),
    "two": (lambda x, i, y: aten.index_put(x, [i, aten.add(i, -3)], y[0, 0]), 1, 0),
    "of what is written": (lambda x, i, y: _by_its_own_numbers(aten.add(x, 1)), 0, 1),
    "without positions": (lambda x, i, y: aten.add(x, 1), 0, 0),
}


def _by_its_own_numbers(x: torch.Tensor) -> Any:
    return x, aten.index_select(x, 0, aten._to_copy(x[:, 0], dtype=torch.int64))


def _beside_a_quotient(x: torch.Tensor, i: torch.Tensor, y: torch.Tensor) -> Any:
    changed, quotient = aten.mul(x, 2), aten.remainder(x.to(torch.int64)[:, 0][:3], aten.mul(i, 2))
    return changed, quotient, y


def test_calls_that_may_raise_come_first() -> None:
    graph = write_back(lower(make_fx(_beside_a_quotient, tracing_mode="fake")(X, INDEX, Y)), {0: 0})
    steps = schedule(check_first(graph), ScheduleOptions(verify=True)).steps
    call = next(k for k, step in enumerate(steps) if isinstance(step, ExternCall))
    changed = [k for k, step in enumerate(steps) if set(item_writes(step)) & set(graph.inputs)]
    assert changed
    assert call < changed[0]


CALLS: dict[str, tuple[Any, bool, bool]] = {
    "counts within bounds": (lambda x, i, y: aten.histc(x, 4, 0, 3), False, False),
    "counts up to the ends": (lambda x, i, y: aten.histc(x, 4), True, True),
    "counts of numbers": (lambda x, i, y: aten.bincount(i, minlength=4), True, True),
    "sums at places": (lambda x, i, y: aten.put(x, i, y[:, 0]), True, False),
    "sorting": (lambda x, i, y: aten.sort(x), False, False),
}
"""Whether a call raises for some values, and whether it does so before it returns from a GPU."""


@pytest.mark.parametrize("name", CALLS)
def test_what_raises_by_value(name: str) -> None:
    program, raises, raises_at_once = CALLS[name]
    nodes = lower(make_fx(program, tracing_mode="real")(X, INDEX, Y)).nodes
    calls = [node for node in nodes if isinstance(node, ExternCall)]
    assert [raises_by_value(call) for call in calls] == [raises]
    assert [raises_by_value(call, asserts_later=True) for call in calls] == [raises_at_once]


@pytest.mark.parametrize("name", PROGRAMS)
def test_checks(name: str) -> None:
    program, first, left = PROGRAMS[name]
    graph = write_back(lower(make_fx(program, tracing_mode="fake")(X, INDEX, Y)), {0: 0})
    checked = check_first(graph)
    nodes = [node for node in checked.nodes if isinstance(node, LoopNode)]
    checks = [node for node in nodes if node.body.checks_positions]
    assert sum(not node.writes for node in checks) == first
    assert sum(bool(node.writes) for node in checks) == left
    changed = [k for k, node in enumerate(nodes) if set(node.writes) & set(graph.inputs)]
    assert changed
    assert all(nodes.index(node) < changed[0] for node in checks if not node.writes)
    steps = schedule(checked, ScheduleOptions(verify=True)).steps
    assert [bool(step.writes) for step in steps[:first]] == [False] * first
