"""Lists, dicts and instances that loops and branches make anew, change, or return: eager's, one or two."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch

from .random_programs import ContainerProgram
from .regions_kept import regions_in
from .test_random_programs import Line, agree

Tensor = torch.Tensor


class Pair(NamedTuple):
    """State as a named tuple."""

    h: Tensor
    n: int


@dataclasses.dataclass
class State:
    """State as an object that may change."""

    h: Tensor
    n: int


def new_dict(x: Tensor, y: Tensor) -> Any:
    s = {"h": x * 1, "c": y * 1}
    for _ in range(20):
        s = {"h": s["h"] * 0.5 + 1, "c": s["c"] + s["h"]}
    return s


def new_list(x: Tensor, y: Tensor) -> Any:
    s = [x * 1, y * 1]
    for _ in range(20):
        s = [s[1], s[0] * 0.5 + 1]
    return s


def new_named_tuple(x: Tensor, y: Tensor) -> Any:
    s = Pair(x * 1, 0)
    for _ in range(20):
        s = Pair(s.h + y, s.n + 2)
    return s.h, s.n


def new_instance(x: Tensor, y: Tensor) -> Any:
    s = State(x * 1, 0)
    for _ in range(20):
        s = State(s.h + y, s.n + 2)
    return s.h, s.n


def new_in_new(x: Tensor, y: Tensor) -> Any:
    s: Any = {"a": [x * 1, {"b": y * 1}], "c": (x * 2, y * 2)}
    for _ in range(20):
        s = {"a": [s["a"][1]["b"] + 1, {"b": s["a"][0] * 0.5}], "c": (s["c"][1], s["c"][0] + 1)}
    return s


def new_in_a_while(x: Tensor, y: Tensor) -> Any:
    s: Any = {"h": x * 1, "k": 0}
    while s["h"].sum() < 100:
        s = {**s, "h": s["h"].abs() + 1, "k": s["k"] + 1}
    return s


def left_before_the_new_one(x: Tensor, y: Tensor) -> Any:
    s = {"h": x * 1}
    for _ in range(20):
        if s["h"].sum() > 50:
            break
        s = {"h": s["h"] + 2}
    return s


def best_so_far(x: Tensor, y: Tensor) -> Any:
    best = {"x": x * 1, "loss": y * 1}
    for i in range(20):
        z = x - i * y
        if z.sum() < best["loss"].sum():
            best = {"x": z + 0, "loss": z * 1}
    return best


def two_names_before(x: Tensor, y: Tensor) -> Any:
    s = t = {"h": x * 1}
    for _ in range(20):
        s = {"h": s["h"] + 1}
    t["h"] = t["h"] + 5
    return s, t


def compared_with_the_first(x: Tensor, y: Tensor) -> Any:
    s = {"h": x * 1}
    first, count = s, x * 0
    for _ in range(20):
        if s is first:
            count = count + 1
        s = {"h": s["h"] + 1}
    return s, count


def either_list(x: Tensor, y: Tensor) -> Any:
    if x.sum() > 0:
        s = [x + 1, y * 2]
    else:
        s = [x * 2, y + 1]
    s[0] += 1
    return s


def either_or_none_new(x: Tensor, y: Tensor) -> Any:
    s = {"h": x * 1, "n": 0}
    if x.sum() > 0:
        s = {"h": y * 1, "n": 3}
    return s


def key_on_both_sides(x: Tensor, y: Tensor) -> Any:
    s: dict[str, Any] = {}
    if x.sum() > 0:
        s["h"], s["n"] = x + 1, 1
    else:
        s["h"], s["n"] = x - 1, 2
    return s


def appended_on_both_sides(x: Tensor, y: Tensor) -> Any:
    held = [x * 1]
    if y.sum() > 0:
        held.append(x + 1)
        held[0] = held[0] * 2
    else:
        held.append(y * 2)
    held[1] = held[1] + 1
    return held


def counted_on_one_side(x: Tensor, y: Tensor) -> Any:
    s = State(x * 1, 0)
    for i in range(20):
        if (y * i).sum() > 5:
            s.n += 1
            s.h = s.h + 1
    return s.h, s.n


def element_by_side_in_a_loop(x: Tensor, y: Tensor) -> Any:
    held = [x * 1, y * 1]
    for i in range(20):
        if (held[0] + i).sum() > 10:
            held[0] = held[0] * 0.5
        else:
            held[1] = held[1] + 1
    return held


def swapped(x: Tensor, y: Tensor) -> Any:
    a, b = [x * 1], [y * 1]
    if x.sum() > 0:
        a, b = b, a
    a[0] = a[0] + 1
    return a, b


def written_in_global(x: Tensor, y: Tensor) -> Any:
    global HELD
    HELD = [x * 1]
    s = HELD
    if x.sum() > 0:
        s = [y * 1]
    s[0] = s[0] + 1
    return s, HELD


HELD: list[Tensor] = []


def returned_from_a_loop(x: Tensor, y: Tensor) -> Any:
    for i in range(20):
        x = x + 1
        if x.sum() > 30:
            return {"x": x * 1, "i": i}
    return {"x": x + 0, "i": -1}


def returned_from_a_while(x: Tensor, y: Tensor) -> Any:
    while x.sum() < 100:
        x = x.abs() + 1
        if x.sum() > 30:
            return [x * 1, y * 1]
    return [x * 2, y * 1]


def local_and_element(x: Tensor, y: Tensor) -> Any:
    held, z = [x * 1], x * 2
    if x.sum() > 0:
        held[0] = x + 5
        z = x * 7
    return held[0] + 0, z + 0


KEPT: dict[Callable[..., Any], int] = {
    new_dict: 1,
    new_list: 1,
    new_named_tuple: 1,
    new_instance: 1,
    new_in_new: 1,
    new_in_a_while: 1,
    left_before_the_new_one: 1,
    best_so_far: 1,
    two_names_before: 1,
    compared_with_the_first: 1,
    either_list: 1,
    either_or_none_new: 1,
    key_on_both_sides: 1,
    appended_on_both_sides: 1,
    counted_on_one_side: 1,
    element_by_side_in_a_loop: 1,
    swapped: 1,
    local_and_element: 1,
    returned_from_a_loop: 2,
    returned_from_a_while: 2,
}
"""Programs with how many regions their one graph has."""


def two_names_for_the_new_one(x: Tensor, y: Tensor) -> Any:
    s, t = {"h": x * 1}, {"h": x * 2}
    for _ in range(20):
        s = t = {"h": s["h"] + 1}
    t["h"] = t["h"] + 5
    return s, t


def changed_and_new(x: Tensor, y: Tensor) -> Any:
    s = {"h": x * 1}
    first = s
    for _ in range(20):
        s["h"] = s["h"] + 1
        s = {"h": s["h"] * 0.5}
    return s, first


def kept_by_another(x: Tensor, y: Tensor) -> Any:
    s, held = {"h": x * 1}, [x]
    for _ in range(20):
        held[0] = s  # type: ignore[call-overload]
        s = {"h": s["h"] + 1}
    held[0]["h"] = x * 0  # type: ignore[call-overload]
    return s, held


def appended_on_one_side(x: Tensor, y: Tensor) -> Any:
    held = [x * 1]
    if y.sum() > 0:
        held.append(x + 1)
    return held


def swapped_with_another_name(x: Tensor, y: Tensor) -> Any:
    a, b = [x * 1], [y * 1]
    c = a
    if x.sum() > 0:
        a, b = b, a
    a[0] = a[0] + 1
    return a, b, c


def named_twice_on_one_side(x: Tensor, y: Tensor) -> Any:
    a, b = [x * 1], [y * 1]
    if x.sum() > 0:
        a = b = [x + y]
    a[0] = a[0] + 1
    return a, b


def new_beside_a_closure(x: Tensor, y: Tensor) -> Any:
    s = {"h": x * 1}

    def value() -> Tensor:
        return s["h"]

    for _ in range(20):
        s = {"h": value() + 1}
    return s


def one_list_in_either(x: Tensor, y: Tensor) -> Any:
    s, q = {"h": [x * 1]}, {"h": [y * 1]}
    if x.sum() > 0:
        q = {"h": s["h"]}
    else:
        y = y * 2
        q = {"h": s["h"]}
    s["h"].append(y)
    return s, q


def another_name(x: Tensor, y: Tensor) -> Any:
    s, q = {"h": x * 1, "n": 0}, {"h": y * 1, "n": 1}
    if x.sum() > 0:
        q = s
    s["n"] += 3
    return s, q


def another_name_in_a_loop(x: Tensor, y: Tensor) -> Any:
    s, q, k = {"n": 0}, {"n": 0}, 0
    while x.sum() > 0 and k < 3:
        q = s
        k += 1
    s["n"] -= 1
    return s, q


def dead_name_of_another(x: Tensor, y: Tensor) -> Any:
    s, q = {"h": x * 1, "n": 0}, {"h": y * 1, "n": 1}
    if x.sum() > 0:
        q = s
    q = [s]
    return s, q


def exchanged_on_one_side(x: Tensor, y: Tensor) -> Any:
    s, q = {"h": x * 1, "n": 0}, {"h": y * 1, "n": 1}
    if x.sum() > 0:
        q, s = s, {"h": y + 1, "n": 2}
    return s["h"], s["n"], q["h"], q["n"]


NOT_KEPT = [
    two_names_for_the_new_one,
    changed_and_new,
    kept_by_another,
    appended_on_one_side,
    swapped_with_another_name,
    written_in_global,
    named_twice_on_one_side,
    new_beside_a_closure,
]

OF_TWO_NAMES = [
    one_list_in_either,
    another_name,
    another_name_in_a_loop,
    dead_name_of_another,
    exchanged_on_one_side,
]

ENDLESS = (new_in_a_while, returned_from_a_while)  # for tensors without elements

CALLS = [
    (torch.ones(4), torch.ones(4) * 2),
    (-torch.ones(4), -torch.ones(4) * 5),
    (torch.zeros(4), torch.full((4,), 1e30)),
    (torch.zeros(0), torch.zeros(0)),
]


@pytest.mark.parametrize("function", KEPT, ids=lambda f: f.__name__)
def test_containers_that_regions_make(function: Callable[..., Any]) -> None:
    calls = CALLS[:3] if function in ENDLESS else CALLS
    assert regions_in(function, calls)[0] == [KEPT[function]]


@pytest.mark.parametrize("function", NOT_KEPT, ids=lambda f: f.__name__)
def test_containers_with_two_names_are_not_copied(function: Callable[..., Any]) -> None:
    assert not any(regions_in(function, CALLS)[0])


@pytest.mark.parametrize("function", OF_TWO_NAMES, ids=lambda f: f.__name__)
def test_branches_that_give_a_container_another_name(function: Callable[..., Any]) -> None:
    regions_in(function, CALLS)


@pytest.mark.parametrize("seed", [7000277, 7000430, 7000787, 7000992, 7001131])
def test_programs_of_containers_with_two_names(seed: int) -> None:
    agree(seed, Line(), ContainerProgram)
