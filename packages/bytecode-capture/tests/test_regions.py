"""Branches and loops that stay in the graph: one graph, eager's results and effects, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from weft_bytecode_capture import CaptureOptions, capture


def check(function: Callable[..., Any], *arguments: Any, regions: int, graphs: int = 1) -> None:
    """The captured graphs give eager's results and effects, and hold so many regions."""
    mine = [a.clone() if isinstance(a, torch.Tensor) else a for a in arguments]
    theirs = [a.clone() if isinstance(a, torch.Tensor) else a for a in arguments]
    with torch.no_grad():
        wanted = function(*theirs)
        captured = capture(function)(*mine)
    torch.testing.assert_close(captured.result, wanted, equal_nan=True)
    torch.testing.assert_close(mine, theirs, equal_nan=True)
    assert len(captured.graphs) == graphs
    names = [
        str(node.target) for graph in captured.graphs for node in graph.graph_module.graph.nodes
    ]
    assert names.count("cond") + names.count("while_loop") == regions


def rows(x: torch.Tensor) -> Any:
    out = torch.zeros_like(x)
    for i in range(x.shape[0]):
        out[i] = x[i] * 2 + i
    return out, i


def recurrence(x: torch.Tensor) -> Any:
    h, c = torch.zeros(4), torch.ones(4)
    outs = []
    for row in x:
        h, c = torch.tanh(row + c), h * 2
        outs.append(h)
    return torch.stack(outs), torch.cat(outs) if h.dim() > 1 else h, c


def peeled(x: torch.Tensor) -> torch.Tensor:
    total = 0
    for i in range(20):
        total = total + x[i]
    return total  # type: ignore[return-value]


def cell(state: Any, x: torch.Tensor) -> Any:
    h, c = state
    return torch.tanh(h + x), c * 0.5 + h


def state_in_a_tuple(x: torch.Tensor) -> Any:
    state = (torch.zeros(4), torch.ones(4))
    for i in range(x.shape[0]):
        state = cell(state, x[i])
    return state


def nested_loops(x: torch.Tensor) -> torch.Tensor:
    out = torch.zeros(20, 18)
    for i in range(20):
        for j in range(18):
            out[i, j] = x[i, 0] * j
    return out


def backwards(x: torch.Tensor) -> torch.Tensor:
    for i in range(38, -1, -2):
        x[i // 2].add_(x[i // 2 - 1 + 1] * 0.5)
    return x


def slices(x: torch.Tensor) -> torch.Tensor:
    out = torch.zeros(40, 4)
    for i in range(20):
        out[2 * i : 2 * i + 2, :2] += x[i, None, :2]
    return out


def branch_in_loop(x: torch.Tensor) -> torch.Tensor:
    for i in range(20):
        if x[i].sum() > 0:
            x[i] = x[i] * 2
        elif x[i].min() < -1:
            x[i] = x[i] - 1
    return x


def break_in_loop(x: torch.Tensor) -> torch.Tensor:
    y = x + 0
    for i in range(30):
        y = y * 1.2
        if y.max() > 5:
            y = y + 100
            break
        y = y + i
        if y.min() > 30:
            break
    return y


def continue_in_loop(x: torch.Tensor) -> torch.Tensor:
    y = x + 0
    for _ in range(30):
        if y.max() > 5:
            continue
        y = y * 1.3
    return y + 1


def by_number(x: torch.Tensor) -> torch.Tensor:
    for i in range(20):
        if i == 3:
            x = x + 1
        x = x * 1.1
    return x


@pytest.mark.parametrize(
    ("function", "regions"),
    [
        (rows, 1),
        (recurrence, 1),
        (peeled, 1),
        (state_in_a_tuple, 1),
        (nested_loops, 1),
        (backwards, 1),
        (slices, 1),
        (branch_in_loop, 1),
        (break_in_loop, 1),
        (continue_in_loop, 1),
        (by_number, 1),
    ],
)
def test_loops_are_evaluated_once(function: Callable[..., Any], regions: int) -> None:
    for scale in (1.0, -1.0, 9.0):
        check(function, torch.randn(20, 4) * scale, regions=regions)


def early_return(x: torch.Tensor) -> torch.Tensor:
    if x.sum() > 0:
        return x.sin()
    return x.cos()


def expression(x: torch.Tensor) -> torch.Tensor:
    return (x * 2 if x.max() > 1 else x - 1) + 1


def in_place(x: torch.Tensor) -> torch.Tensor:
    view = x[0]
    if x.sum() > 0:
        view.add_(1)
    return x * 2


def chained(x: torch.Tensor) -> Any:
    n = 3
    if x.sum() > 0:
        y = x * n if x.max() > 1 else x / n
    elif x.min() < -1:
        y = x * 7
    else:
        y = x + 0
    return y, n


def helper(x: torch.Tensor) -> Any:
    if x.any():
        return x * 2, 3
    return x + 1, 3


def inside_a_call(x: torch.Tensor) -> torch.Tensor:
    a, n = helper(x > 0)
    return a + n  # type: ignore[no-any-return]


def shortcuts(x: torch.Tensor) -> torch.Tensor:
    if not (x.sum() > 0 and x.max() > 0.5):
        x = x * 2
    return x + 0


def sides_with_other_numbers(x: torch.Tensor) -> torch.Tensor:
    n = 1 if x.sum() > 0 else 2
    return x * n


@pytest.mark.parametrize(
    "function",
    [
        early_return,
        expression,
        in_place,
        chained,
        inside_a_call,
        shortcuts,
    ],
)
@pytest.mark.parametrize("scale", [1.0, -1.0, float("nan")])
def test_both_sides_of_a_branch_are_kept(function: Callable[..., Any], scale: float) -> None:
    check(function, torch.rand(20, 4) * scale, regions=1)


def number_that_nothing_reads(x: torch.Tensor) -> torch.Tensor:
    s = 0.5
    for o in (x / 2, x + 1):
        if o.flatten()[0] > 0:
            s = s * 0.5
    return x + 1


@pytest.mark.parametrize("scale", [1.0, -1.0])
@pytest.mark.parametrize("function", [sides_with_other_numbers, number_that_nothing_reads])
def test_sides_that_give_numbers_alone_are_both_computed(
    function: Callable[..., Any], scale: float
) -> None:
    check(function, torch.rand(20, 4) * scale, regions=0)


def doubling(x: torch.Tensor) -> torch.Tensor:
    while x.sum() < 100:
        x = x * 2
    return x + 1


def ends_in_the_middle(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    while True:
        y = y * 1.5
        if y.abs().max() > 50:
            break
        y = y + 1
    return y + 0


def halving(x: torch.Tensor) -> torch.Tensor:
    a, b = x + 0, x + 1
    while (a - b).abs().max() > 1e-3:
        a, b = b, (a + b) / 2
    return a + b


def written(x: torch.Tensor) -> torch.Tensor:
    while x.sum() < 100:
        x.mul_(2)
    return x


@pytest.mark.parametrize("function", [doubling, ends_in_the_middle, halving, written])
@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_loops_on_values_are_kept(function: Callable[..., Any], scale: float) -> None:
    check(function, torch.rand(20, 4) * scale, regions=1)


def grows(x: torch.Tensor) -> torch.Tensor:
    y = x[:1]
    for _ in range(16):
        y = torch.cat([y, x[:1]])
    return y


def looked_at(x: torch.Tensor) -> torch.Tensor:
    outs = [x]
    for _ in range(16):
        outs.append(outs[-1] * 1.1)
    return outs[-1]


def out_of_range(x: torch.Tensor) -> torch.Tensor:
    total = x[0]
    for i in range(16):
        total = total + x[i - 1]
    return total


def test_a_list_that_is_looked_at_is_kept() -> None:
    check(looked_at, torch.rand(20, 4), regions=1)


def test_a_tensor_that_grows_is_carried() -> None:
    check(grows, torch.rand(20, 4), regions=1)


def test_other_loops_are_unrolled() -> None:
    check(out_of_range, torch.rand(20, 4), regions=0)


def changes_a_list(x: torch.Tensor) -> torch.Tensor:
    found = []
    if x.sum() > 0:
        found.append(x)
    return x * (1 + len(found))


def test_a_branch_that_makes_a_list_longer_is_broken_on() -> None:
    x = torch.rand(20, 4)
    with torch.no_grad():
        captured = capture(changes_a_list)(x)
        torch.testing.assert_close(captured.result, changes_a_list(x))
    assert captured.breaks


def test_a_list_of_rows_is_what_the_loop_appended() -> None:
    def function(x: torch.Tensor) -> Any:
        outs = []
        for i in range(x.shape[0]):
            outs.append(x[i] * i)
        return outs, outs[3] + outs[-1], len(outs)

    check(function, torch.rand(18, 2), regions=1)


def test_short_loops_and_the_option_leave_nothing_rolled() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = x * 2
        return x

    check(function, torch.rand(4), regions=0)
    options = CaptureOptions(keep_control_flow=False)
    assert capture(early_return, options=options)(torch.rand(3)).breaks


def test_regions_with_gradients_are_kept() -> None:
    x = torch.rand(3, requires_grad=True)
    captured = capture(early_return)(x)
    assert not captured.breaks


def test_gradients_on_one_side_of_a_branch_are_not_to_be_asked_about() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.sum() > 0 else x.detach() * 3

    def asking(x: torch.Tensor) -> bool:
        return function(x).requires_grad

    x = torch.rand(3, requires_grad=True)
    assert not capture(function)(x).breaks
    assert capture(asking)(x).breaks
    assert not capture(asking)(x.detach()).breaks


def test_a_question_about_gradients_inside_a_loop_unrolls_it() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        for row in x:
            w = w * row if w.requires_grad else w + row
        return w

    x, w = torch.rand(18, 2, requires_grad=True), torch.rand(2)
    captured = capture(function)(x, w)
    torch.testing.assert_close(captured.result, function(x, w))
    (graph,) = captured.graphs
    assert all(str(n.target) != "while_loop" for n in graph.graph_module.graph.nodes)
