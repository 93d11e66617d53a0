"""Results that eager makes the caller's very tensors, or one tensor twice, depending on data.

What the caller writes to them afterwards has to reach the tensor that eager's would.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from weft_bytecode_capture import capture

from .regions_kept import regions_in
from .test_random_programs import Line

Tensor = torch.Tensor


def one_for_two(x: Tensor, y: Tensor) -> Any:
    a, b = x * 1, y * 2
    if x.sum() > 0:
        a = b = x + 1
    return a, b


def branch_inside_a_branch(x: Tensor, y: Tensor) -> Tensor:
    if x.sum() > 0:
        z = x if y.sum() > 0 else x + 1
    else:
        z = x - 1
    return z


def branch_inside_a_loop(x: Tensor, y: Tensor) -> Tensor:
    for _ in range(20):
        if y.sum() > 5:
            x = y
    return x


def new_one_kept_by_a_branch(x: Tensor, y: Tensor) -> Any:
    a, b = x * 1, y * 2
    for _ in range(20):
        b = b * 0.9
        if b.sum() > 5:
            a = b
    return a, b


def inputs_swapped(x: Tensor, y: Tensor) -> Any:
    for _ in range(20):
        if y.sum() > 5:
            x, y = y, x
        y[0] -= 1
    return x, y


def changed_in_some_iterations(x: Tensor, y: Tensor) -> Tensor:
    for i in range(20):
        if x.sum() < i:
            x = x + y
    return x


def kept_by_a_while(x: Tensor, y: Tensor) -> Tensor:
    z = y * 2
    while x.sum() < 10:
        if x.sum() > 3:
            z = y
        x = x + 1
    return z


def while_inside_a_for(x: Tensor, y: Tensor) -> Tensor:
    for i in range(20):
        while x.sum() < i:
            x = x + 1
    return x


def returned_from_a_loop(x: Tensor, y: Tensor) -> Tensor:
    for i in range(20):
        for j in range(20):
            if x[0] > i + j:
                return x
    return y


class Holder:
    """An object whose attribute a loop sets."""

    def __init__(self, held: Tensor) -> None:
        self.held = held


def in_an_attribute(x: Tensor, y: Tensor) -> Tensor:
    holder = Holder(x)
    for i in range(20):
        if y.sum() > i:
            holder.held = y
    return holder.held


def from_a_list(x: Tensor, y: Tensor) -> Tensor:
    held, z = [x], x * 1
    for i in range(20):
        if y.sum() > i:
            z = held[0]
    return z


def from_a_dict(x: Tensor, y: Tensor) -> Any:
    held, z = {"x": x}, x * 1
    for i in range(20):
        z = held["x"] if y.sum() > i else z
    return z, x


def from_an_attribute_in_a_while(x: Tensor, y: Tensor) -> Any:
    holder, z, n = Holder(x), x * 1, y.sum()
    while n > 0:
        for _ in range(4):
            z = holder.held if n > 3 else z
        n = n - 2
    return z, x


def view_of_one(x: Tensor, y: Tensor) -> Tensor:
    view = x[1:]
    for i in range(20):
        if y.sum() > i:
            view = y[1:]
    return view


def until_either(x: Tensor, y: Tensor) -> Any:
    k = 0
    while x.sum() > 1 and k < 100:
        x = x / 2
        k += 1
    return x, k


def left_by_a_break(x: Tensor, y: Tensor) -> Tensor:
    for _ in range(20):
        if x.sum() > 10:
            break
        x = x * 1.5 + 1
    return x


def halved_where_large(x: Tensor, y: Tensor) -> Tensor:
    for _ in range(20):
        if x.sum() > 10:
            x = x * 0.5
    return x


def bisected(low: Tensor, high: Tensor) -> Any:
    while (high - low).max() > 1e-3:
        middle = (low + high) / 2
        if (middle * middle).sum() > 2:
            high = middle
        else:
            low = middle
    return low, high


def one_of_two(x: Tensor, y: Tensor) -> Any:
    z = x
    if x.sum() > 1:
        z = y
    return z, x + 1


def one_of_three(x: Tensor, y: Tensor) -> Tensor:
    z = x + 1
    if x.sum() > 1:
        z = x
    if y.sum() > 1:
        z = y
    return z


def two_of_a_loop(x: Tensor, y: Tensor) -> Any:
    best = x
    for i in range(6):
        if y.sum() > i:
            best, x = x, best + 1
    return best, x


def returned_early(x: Tensor, y: Tensor) -> Tensor:
    for i in range(20):
        if x.sum() + i > 15:
            return x
        x = x + y.abs() * i
    return y


def written_on_the_way(x: Tensor, y: Tensor) -> Tensor:
    for i in range(6):
        if y.sum() > i:
            x = y
        x[0] += 1
    return x


def one_more_tensor(x: Tensor, y: Tensor) -> Any:
    made = x + 1
    a = x if x.sum() > 1 else made
    b = y if y.sum() > 1 else made
    return a, b


def in_a_list(x: Tensor, y: Tensor) -> Any:
    z = x
    if y.sum() > 1:
        z = y
    return [z, {"z": z}], z + 1


def behind_a_break(x: Tensor, y: Tensor) -> Any:
    for _ in range(20):
        if y.sum() > 5:
            x = y
    held = [x]
    torch._dynamo.graph_break()
    x[0] = 7
    return held, x + 0


def two_behind_a_break(x: Tensor, y: Tensor) -> Any:
    z, n = x, 0
    while x.sum() > 1 and n < 30:
        x = x / 2
        n += 1
    if y.sum() > 1:
        z = y
    torch._dynamo.graph_break()
    x[0] = 7
    z[1] = 9
    return z, x


def view_of_the_chosen(x: Tensor, y: Tensor) -> Any:
    z = x
    if x.sum() > 1:
        z = y
    return z, z[1:]


def view_on_one_side(x: Tensor, y: Tensor) -> Tensor:
    z = x[:]
    if x.sum() > 1:
        z = y
    return z


NOT_KEPT = [new_one_kept_by_a_branch]

TAGGED = [
    one_for_two,
    view_of_one,
    view_of_the_chosen,
    view_on_one_side,
    branch_inside_a_branch,
    branch_inside_a_loop,
    inputs_swapped,
    changed_in_some_iterations,
    kept_by_a_while,
    while_inside_a_for,
    in_an_attribute,
    from_a_list,
    from_a_dict,
    from_an_attribute_in_a_while,
    until_either,
    left_by_a_break,
    halved_where_large,
    bisected,
    one_of_two,
    two_of_a_loop,
    in_a_list,
    written_on_the_way,
]


def taken_turns(x: Tensor, y: Tensor) -> Any:
    a, b = x * 1, y * 2
    for _ in range(20):
        a, b = b, a + b
    return a, b


def always_changed(x: Tensor, y: Tensor) -> Any:
    for i in range(20):
        x = x * 2 if y.sum() > i else x + 1
    return x, y


def two_of_a_branch(x: Tensor, y: Tensor) -> Any:
    if x.sum() > 0:
        a, b = x + 1, y + 2
    else:
        a, b = y + 3, x + 4
    return a, b


def old_and_new(x: Tensor, y: Tensor) -> Any:
    old = new = x + 1
    while new.sum() < 30:
        old, new = new, new + y.abs() + 1
    return old + 0, new


KEPT = [taken_turns, always_changed, two_of_a_branch, old_and_new]

CALLS = [
    (torch.ones(4), torch.ones(4) * 2),
    (torch.ones(4) * 3, torch.zeros(4)),
    (-torch.ones(4), torch.ones(4) * 5),
    (torch.zeros(4), -torch.ones(4)),
    (torch.ones(4) * 30, torch.ones(4) * 5),
    (torch.zeros(4), torch.zeros(4)),
]


@pytest.mark.parametrize("function", NOT_KEPT, ids=lambda f: f.__name__)
def test_what_cannot_be_decided_is_not_kept(function: Callable[..., Any]) -> None:
    assert regions_in(function, CALLS)[-1][0] == 0  # behind breaks there may be regions


@pytest.mark.parametrize("function", TAGGED, ids=lambda f: f.__name__)
def test_what_the_graph_says_is_kept(function: Callable[..., Any]) -> None:
    assert regions_in(function, CALLS)[-1] == [1]


@pytest.mark.parametrize(
    "function", [one_of_three, one_more_tensor, returned_early, returned_from_a_loop]
)
def test_regions_one_after_another_are_kept(function: Callable[..., Any]) -> None:
    assert regions_in(function, CALLS)[-1] == [2]


def layers_dropped(x: Tensor, y: Tensor) -> Any:
    states = [x]
    for k in (1, 4, 9):
        if y.sum() < k:
            states.append(x)
            continue
        x = x * 2
        states.append(x)
    return x, states


def two_of_each_branch(x: Tensor, y: Tensor) -> Any:
    if x.sum() > 1:
        a, b = x, y
    else:
        a, b = y + 1, x
    c = a if y.sum() > 1 else b
    d = c if x.sum() > 8 else a * 2
    return a, b, c, d


def chosen_behind_a_loop(x: Tensor, y: Tensor) -> Any:
    a = x
    for i in range(20):
        if y.sum() > i:
            a = y
    b = a if x.sum() > 1 else x + 1
    return a, b, b if y.sum() > 1 else a


def made_before_branches(x: Tensor, y: Tensor) -> Any:
    made, other = x + 1, y + 1
    a = made if x.sum() > 1 else other
    b = a if y.sum() > 1 else made
    c = b if x.sum() > 20 else x - 1
    return [made, a], b, c


@pytest.mark.parametrize(
    ("function", "regions"),
    [
        (layers_dropped, 3),
        (two_of_each_branch, 3),
        (chosen_behind_a_loop, 3),
        (made_before_branches, 3),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_results_that_may_be_earlier_ones_are_kept(
    function: Callable[..., Any], regions: int
) -> None:
    assert regions_in(function, CALLS)[-1] == [regions]


@pytest.mark.parametrize(("function", "regions"), [(behind_a_break, 1), (two_behind_a_break, 2)])
def test_regions_before_a_break_are_kept(function: Callable[..., Any], regions: int) -> None:
    assert regions_in(function, CALLS)[-1][0] == regions


def test_attributes_of_the_callers_objects_get_the_chosen_tensor() -> None:
    def program(holder: Holder, y: Tensor) -> Tensor:
        x = holder.held
        holder.held = y if y.sum() > 5 else x
        return y * 2

    compiled = capture(program, backend=Line())
    for _, y in CALLS:
        mine, theirs, x = Holder(y), Holder(y), y + 1
        mine.held = theirs.held = x
        with torch.no_grad():
            assert torch.equal(compiled(mine, y).result, program(theirs, y))
        assert mine.held is theirs.held


@pytest.mark.parametrize("function", KEPT, ids=lambda f: f.__name__)
def test_what_is_never_one_tensor_is_kept(function: Callable[..., Any]) -> None:
    assert regions_in(function, CALLS)[-1] == [1]
