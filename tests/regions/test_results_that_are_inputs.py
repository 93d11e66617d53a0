"""Results that eager makes the caller's very tensors, or one tensor twice, depending on data.

What the caller writes to them afterwards has to reach the tensor that eager's would.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree
from weft_bytecode_capture import CaptureOptions, capture

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


def view_of_one(x: Tensor, y: Tensor) -> Tensor:
    view = x[1:]
    for i in range(20):
        if y.sum() > i:
            view = y[1:]
    return view


NOT_KEPT = [
    one_for_two,
    branch_inside_a_loop,
    new_one_kept_by_a_branch,
    inputs_swapped,
    changed_in_some_iterations,
    kept_by_a_while,
    returned_from_a_loop,
    in_an_attribute,
    view_of_one,
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
]


def regions_in(function: Callable[..., Any]) -> int:
    """How many regions the graphs of all calls have; results, identities and later writes are eager's."""
    line = Line()
    compiled = capture(function, options=CaptureOptions(rolled_loop_length=4), backend=line)
    for call in CALLS:
        mine, theirs = ([x.clone() for x in call] for _ in range(2))
        with torch.no_grad():
            got, wanted = compiled(*mine).result, function(*theirs)
        got, wanted = (pytree.tree_leaves(result) for result in (got, wanted))
        assert _identities(got, mine) == _identities(wanted, theirs)
        torch.testing.assert_close(got, wanted)
        for left, right in zip(got, wanted, strict=True):
            left.add_(7)
            right.add_(7)
        torch.testing.assert_close([*got, *mine], [*wanted, *theirs])
    return line.regions


def _identities(results: list[Tensor], inputs: list[Tensor]) -> list[list[tuple[bool, bool]]]:
    every = [*results, *inputs]
    return [
        [(a is b, a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()) for b in every]
        for a in results
    ]


@pytest.mark.parametrize("function", NOT_KEPT, ids=lambda f: f.__name__)
def test_what_cannot_be_decided_is_not_kept(function: Callable[..., Any]) -> None:
    assert regions_in(function) == 0


@pytest.mark.parametrize("function", [branch_inside_a_branch, while_inside_a_for])
def test_the_outer_region_alone_is_not_kept(function: Callable[..., Any]) -> None:
    assert regions_in(function) > 0


@pytest.mark.parametrize("function", KEPT, ids=lambda f: f.__name__)
def test_what_is_never_one_tensor_is_kept(function: Callable[..., Any]) -> None:
    assert regions_in(function) == 1
