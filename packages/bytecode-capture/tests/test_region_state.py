"""What regions carry and give: containers, early returns, joint iterators, the program's own operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._higher_order_ops import while_loop
from weft_bytecode_capture import CaptureOptions, capture


def regions_in(captured: Any) -> int:
    names = [str(n.target) for g in captured.graphs for n in g.graph_module.graph.nodes]
    return names.count("cond") + names.count("while_loop")


def check(function: Callable[..., Any], x: torch.Tensor, regions: int | None) -> None:
    """Eager's result, effects and identities, in one graph with so many regions (None: any graphs)."""
    mine, theirs = x.clone(), x.clone()
    with torch.no_grad():
        wanted, captured = function(theirs), capture(function)(mine)
    torch.testing.assert_close(captured.result, wanted, equal_nan=True)
    torch.testing.assert_close(mine, theirs, equal_nan=True)
    assert (captured.result is mine) == (wanted is theirs)
    if regions is not None:
        assert (len(captured.graphs), regions_in(captured)) == (1, regions)


SCALES = [1.0, -1.0, 0.1, 5.0]


def rows(scale: float) -> torch.Tensor:
    return torch.rand(20, 4, generator=torch.Generator().manual_seed(0)) * scale


def dict_state(x: torch.Tensor) -> Any:
    state = {"h": torch.zeros(4), "c": torch.ones(4)}
    for i in range(20):
        state["h"] = torch.tanh(state["h"] + x[i])
        state["c"] = state["c"] * 0.5 + state["h"]
    return state


def list_state(x: torch.Tensor) -> Any:
    state = [torch.zeros(4), x[0], (torch.ones(4), [x[1]])]
    for row in x:
        state[0] = torch.tanh(state[0] + row)
        state[1].add_(1)
        state[2][1][0] = state[0] * 2
    return state, x


def element_on_one_side(x: torch.Tensor) -> Any:
    state = [x[0], {"a": x[1]}]
    if x.sum() > 0:
        state[0] = state[0] * 2
        state[1]["a"] = state[1]["a"] + state[0]
    return state[0] + state[1]["a"]


def local_and_cell_on_one_side(x: torch.Tensor) -> Any:
    kept = lambda: x  # noqa: E731  # that makes x a cell
    y = x * 2
    if x.sum() > 0:
        x = y + 1
        y = y - 1
    return y * 3, kept() - x, x + 1


def element_and_local_on_either_side(x: torch.Tensor) -> Any:
    state = [x[0]]
    y = x * 2
    if x.sum() > 0:
        state[0] = state[0] * 2
        y = y - 1
    else:
        y, state[0] = y + 1, y[1] * 1
    return state[0] * 2, y


def element_that_a_while_carries(x: torch.Tensor) -> Any:
    state = {"h": x}
    while state["h"].sum() < 100:
        state["h"] = state["h"].abs() * 2 + 1
    return state["h"] + 0


def strict_zip(x: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(4)
    for a, b in zip(x, x * 2, strict=True):
        total = total + a * b
    return total


def enumerated_zip(x: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(4)
    for i, (a, b) in enumerate(zip(x, x * 2, strict=False), 3):
        total = total + a * b * i
    return total


def zip_of_enumerate(x: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(4)
    for (i, a), b in zip(enumerate(x), x * 2, strict=False):
        total = total + a * b * i
    return total


def an_iterator_after_its_loop(x: torch.Tensor) -> Any:
    pairs = zip(x, x * 2, strict=False)
    total = torch.zeros(4)
    for a, b in pairs:
        total = total + a * b
    return total, next(pairs, None)


def reversed_range(x: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(4)
    for i in reversed(range(1, 20)):
        total = total * 0.5 + x[i] * i + x[-i]
    return total


@pytest.mark.parametrize(
    "function",
    [
        dict_state,
        list_state,
        element_on_one_side,
        local_and_cell_on_one_side,
        element_and_local_on_either_side,
        element_that_a_while_carries,
        strict_zip,
        enumerated_zip,
        zip_of_enumerate,
        an_iterator_after_its_loop,
        reversed_range,
    ],
    ids=lambda f: f.__name__,
)
@pytest.mark.parametrize("scale", SCALES[:2])
def test_state_in_containers_and_iterators(function: Callable[..., Any], scale: float) -> None:
    check(function, rows(scale), 1)


def strict_zip_of_other_lengths(x: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(4)
    for a, b in zip(x, x[:18], strict=True):
        total = total + a * b
    return total


def test_a_strict_zip_of_other_lengths_raises() -> None:
    with torch.no_grad(), pytest.raises(ValueError, match="shorter"):
        capture(strict_zip_of_other_lengths)(rows(1.0))


def returns_early(x: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(4)
    for i in range(20):
        total = total + x[i].abs()
        if total.sum() > 5:
            return total * 100
    return total


def returns_or_breaks(x: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(4)
    for row in x:
        total = total + row.abs()
        if total.sum() > 20:
            return total.sin()
        if total.min() > 1:
            return total.cos()
        if total.max() > 1:
            break
    total = total.relu()
    if total.sum() > 3:
        total = total * 2
    return total


def returns_its_argument(x: torch.Tensor) -> torch.Tensor:
    for row in x:
        if row.sum() > 2:
            return x
        x = x + 1
    return x * 1


def with_an_else(x: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(4)
    for row in x:
        total = total + row
        if total.sum() > 10:
            break
    else:
        total = total + 1
    return total


def first_row(x: torch.Tensor) -> torch.Tensor:
    for row in x:
        if row.sum() > 2:
            return row * 2
    return x[0] * 3


def in_a_call(x: torch.Tensor) -> torch.Tensor:
    return first_row(x) + first_row(x + 1)


@pytest.mark.parametrize(
    ("function", "regions"),
    [(returns_early, 2), (returns_or_breaks, 2), (with_an_else, 2), (in_a_call, 4)],
)
@pytest.mark.parametrize("scale", SCALES)
def test_returns_inside_loops(function: Callable[..., Any], regions: int, scale: float) -> None:
    check(function, rows(scale), regions)


def returns_another_kind(x: torch.Tensor) -> Any:
    for row in x:
        if row.sum() > 2:
            return None
        row.mul_(2)
    return x * 1


def returns_from_two_loops(x: torch.Tensor) -> torch.Tensor:
    for i in range(16):
        for j in range(16):
            if x[i, 0] > x[j, 1] + 0.5:
                return x * 2
    return x * 1


@pytest.mark.parametrize(
    "function", [returns_its_argument, returns_another_kind, returns_from_two_loops]
)
@pytest.mark.parametrize("scale", SCALES)
def test_other_returns_are_eagers(function: Callable[..., Any], scale: float) -> None:
    check(function, rows(scale), None)


def identity_in_a_loop(x: torch.Tensor) -> Any:
    h = g = torch.zeros(4)
    count = torch.zeros(4)
    for i in range(20):
        if h is g:
            count = count + 1
        h = h + x[i]
    return count, h


def identity_in_a_while(x: torch.Tensor) -> Any:
    h = g = torch.zeros(4)
    count = torch.zeros(4)
    while count.sum() < 10:
        if h is g:
            count = count + 1
        count = count + 1
        h = h + x[0]
    return count, h


def identity_after_a_branch(x: torch.Tensor) -> torch.Tensor:
    a, b = x[0], x[0] + 1
    h = a if x.sum() > 0 else b
    return x + (1 if h is a else 2)


@pytest.mark.parametrize(
    "function", [identity_in_a_loop, identity_in_a_while, identity_after_a_branch]
)
@pytest.mark.parametrize("scale", SCALES[:2])
def test_identities_that_depend_on_the_way(function: Callable[..., Any], scale: float) -> None:
    check(function, rows(scale), None)


def own_cond(x: torch.Tensor) -> Any:
    def true(a: torch.Tensor, b: torch.Tensor) -> Any:
        return a.sin(), (b + x,)

    return torch.cond(x.sum() > 0, true, lambda a, b: (a.cos(), (b - x,)), (x, x[0].clone()))


def own_loop(x: torch.Tensor) -> Any:
    def body(i: torch.Tensor, a: torch.Tensor) -> Any:
        return i + 1, a * 1.1 + x[0]

    return while_loop(lambda i, a: (i < 10) & (a.sum() < 1e3), body, (torch.tensor(0), x))


def cond_on_a_number(x: torch.Tensor) -> Any:
    return torch.cond(x.dim() == 2, torch.sin, torch.cos, [x])


@pytest.mark.parametrize(("function", "regions"), [(own_cond, 1), (own_loop, 1)])
@pytest.mark.parametrize("scale", [1.0, -1.0, 1e4])
def test_the_programs_own_operators(
    function: Callable[..., Any], regions: int, scale: float
) -> None:
    x = rows(scale)
    with torch.no_grad():
        captured, wanted = capture(function)(x), function(x)
    torch.testing.assert_close(captured.result, wanted)
    assert (len(captured.graphs), regions_in(captured)) == (1, regions)


def test_the_programs_own_operators_without_regions() -> None:
    x = rows(1.0)
    with torch.no_grad():
        captured = capture(own_cond, options=CaptureOptions(keep_control_flow=False))(x)
        torch.testing.assert_close(captured.result, own_cond(x))
        assert any(b.kind == "control-flow operator" for b in captured.breaks)
        number = capture(cond_on_a_number)(x)
    assert regions_in(number) == 0
    torch.testing.assert_close(number.result, x.sin())


COUNT = 0


class Tally:
    """A class whose attribute a loop changes."""

    total = 0


def count_in_a_global(x: torch.Tensor) -> Any:
    global COUNT
    COUNT = 0
    for row in x:
        COUNT += 1
        x = x * 0.9 + row
    return x, COUNT


def count_in_a_class(x: torch.Tensor) -> Any:
    Tally.total = 0
    for row in x:
        Tally.total += 2
        x = x * 0.9 + row
    return x, Tally.total


def global_on_one_side(x: torch.Tensor) -> Any:
    global COUNT
    COUNT = 0
    y = x * 1
    if x.sum() > 0:
        COUNT = 5
        y = x * 2
    return y + COUNT


@pytest.mark.parametrize(
    "function", [count_in_a_global, count_in_a_class, global_on_one_side], ids=lambda f: f.__name__
)
def test_globals_and_classes_that_are_written_again(function: Callable[..., Any]) -> None:
    """What was written before a region counts in it too."""
    global COUNT
    compiled = capture(function)
    for x in (torch.ones(20, 2), -torch.ones(20, 2)):
        COUNT = Tally.total = -1
        wanted, state = function(x), (COUNT, Tally.total)
        COUNT = Tally.total = -1
        torch.testing.assert_close(compiled(x).result, wanted)
        assert (COUNT, Tally.total) == state


class Watched(dict):
    """One that notes what is asked of it."""

    asked: list[str] = []

    def __getattribute__(self, name: str) -> Any:
        Watched.asked.append(name)
        return super().__getattribute__(name)


def test_an_object_of_the_programs_is_asked_nothing() -> None:
    def function(x: torch.Tensor, watched: Any) -> Any:
        kept = watched
        for i in range(20):
            x = x + i
        return x, kept

    watched = Watched(a=1)
    capture(function)(torch.ones(2), watched)
    assert not Watched.asked
