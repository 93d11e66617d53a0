"""Results of branches and loops that are views of inputs, of one another, or one new tensor in some calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import weft

from .random_programs import SharingProgram
from .regions_kept import regions_in
from .test_random_programs import BLOCKS, Line, agree

Tensor = torch.Tensor


def input_or_view(x: Tensor, y: Tensor) -> Tensor:
    return x if x.sum() > 0 else x[:]


def view_on_one_side(x: Tensor, y: Tensor) -> Any:
    z = x * 2 if x.sum() > 0 else y.unsqueeze(0).t().movedim(0, 1).reshape(2, 2).flatten()
    return z, y


def one_view_for_two(x: Tensor, y: Tensor) -> Any:
    a, b = x * 1, y * 2
    if x.sum() > 0:
        a = b = y.view(2, 2).view(4)
    return a, b


def parts_of_a_split(x: Tensor, y: Tensor) -> Any:
    a, b = x[:2] * 1, y[2:]
    if x.sum() > 0:
        a, b = y.split(2)
    return b, a


def view_of_a_result(x: Tensor, y: Tensor) -> Any:
    z = x if x.sum() > 0 else y * 2
    return z[1:], z[1:], z.view(2, 2)[0]


def view_of_one_of_two_new(x: Tensor, y: Tensor) -> Any:
    a, b = x * 1, y * 2
    if x.sum() > 0:
        a = b = x + 1
    return a[1:], b, b.view(2, 2)


def three_names(x: Tensor, y: Tensor) -> Any:
    a, b, c = x * 1, y * 2, x * 3
    if x.sum() > 0:
        a = b = x + 1
    elif y.sum() > 0:
        b = c = y - 1
    return a, b, c


def new_by_either_branch(x: Tensor, y: Tensor) -> Any:
    new = x * 2
    a = new if x.sum() > 0 else x
    b = new[1:] if y.sum() > 1 else y[1:]
    return a, b, new


def new_in_a_branch_in_a_branch(x: Tensor, y: Tensor) -> Any:
    a, b, c = x * 1, y * 2, x * 3
    if x.sum() > 0:
        a = x + 1
        if y.sum() > 2:
            b = a
        else:
            c = a
    return a, b, c


def one_given_to_another(x: Tensor, y: Tensor) -> Any:
    z = x
    for _ in range(4):
        z = y
        y = y
    return z, y


def view_of_each_iteration(x: Tensor, y: Tensor) -> Tensor:
    z = y
    while x.sum() > 0:
        z = y[:]
        x = x - 1
    return z


def same_after_each_iteration(x: Tensor, y: Tensor) -> Tensor:
    z = y
    while x.sum() > 0:
        z = y
        x = x - 1
    return z


def view_of_a_loops_result(x: Tensor, y: Tensor) -> Any:
    while x.sum() > 0:
        x = x - 1
    return x[1:], y


def written_through_the_view(x: Tensor, y: Tensor) -> Any:
    z = x[1:]
    if y.sum() > 2:
        z = y[1:]
    z.add_(5)
    return z, x + 0


KEPT: dict[Callable[..., Any], int] = {
    input_or_view: 1,
    view_on_one_side: 1,
    one_view_for_two: 1,
    parts_of_a_split: 1,
    view_of_a_result: 1,
    view_of_one_of_two_new: 1,
    three_names: 1,
    new_by_either_branch: 2,
    new_in_a_branch_in_a_branch: 1,
    one_given_to_another: 1,
    view_of_each_iteration: 1,
    same_after_each_iteration: 1,
    view_of_a_loops_result: 1,
    written_through_the_view: 1,
}
"""Programs with how many regions their one graph has."""


def views_of_two_iterations(x: Tensor, y: Tensor) -> Any:
    a = b = y * 1
    for i in range(6):
        b = y[:]
        if x.sum() > i:
            a = b
    return a, b


def view_by_the_counter(x: Tensor, y: Tensor) -> Tensor:
    row = y[0:1]
    for i in range(4):
        if x.sum() > i:
            row = y[i : i + 1]
    return row


def new_tensors_of_iterations(x: Tensor, y: Tensor) -> Any:
    a = b = y * 1
    for i in range(6):
        b = b + 1
        if x.sum() > i:
            a = b
    return a, b


def part_of_what_a_branch_makes(x: Tensor, y: Tensor) -> Any:
    a, b = x * 1, y[1:] * 2
    if x.sum() > 0:
        a = x + 1
        b = a[1:]
    return a, b


NOT_KEPT = [
    views_of_two_iterations,
    view_by_the_counter,
    new_tensors_of_iterations,
    part_of_what_a_branch_makes,
]

CALLS = [
    (torch.ones(4), torch.ones(4) * 2),
    (-torch.ones(4), torch.arange(4.0)),
    (torch.arange(4.0), -torch.ones(4)),
    (torch.zeros(4), torch.zeros(4)),
    (torch.full((4,), -float("inf")), torch.full((4,), float("inf"))),
]


@pytest.mark.parametrize("function", KEPT, ids=lambda f: f.__name__)
def test_one_graph_gives_them(function: Callable[..., Any]) -> None:
    assert regions_in(function, CALLS)[-1] == [KEPT[function]]


@pytest.mark.parametrize("function", NOT_KEPT, ids=lambda f: f.__name__)
def test_what_is_not_known_is_not_kept(function: Callable[..., Any]) -> None:
    regions_in(function, CALLS)


@pytest.mark.parametrize("block", range(BLOCKS))
def test_random_programs(block: int) -> None:
    for seed in range(block * 4, block * 4 + 4):
        agree(seed, Line(), SharingProgram)


def _with_gradients(function: Callable[..., Any], given: tuple[Tensor, ...]) -> list[Any]:
    """Which results are one tensor or an argument, the results, and the gradients of the arguments."""
    leaves = [t.clone().requires_grad_() for t in given]
    every = [*(t * 1 for t in leaves)]
    results = function(*every)
    results = results if isinstance(results, tuple) else (results,)
    objects = [*results, *every]
    first = [next(i for i, other in enumerate(objects) if other is one) for one in objects]
    sum((k + 1) * r.square().sum() for k, r in enumerate(results)).backward()  # type: ignore[union-attr]
    return [first, [r.detach() for r in results], [t.grad for t in leaves]]


WITHOUT_GRADIENTS = (
    written_through_the_view,
    parts_of_a_split,  # which autograd lets nobody write to, and regions' gradients are found by writing
)


@pytest.mark.parametrize(
    "function", [f for f in KEPT if f not in WITHOUT_GRADIENTS], ids=lambda f: f.__name__
)
def test_gradients_of_what_is_chosen(function: Callable[..., Any]) -> None:
    compiled = weft.compile(function)
    for given in CALLS[:4]:
        expected, actual = _with_gradients(function, given), _with_gradients(compiled, given)
        assert actual[0] == expected[0]
        torch.testing.assert_close(actual[1:], expected[1:])


def counted_beside_a_state(x: Tensor, y: Tensor) -> Any:
    n = 0
    while y.square().sum() < 100:
        y = y * 1.5 + x * 0.1
        n += 1
    return y, x * n


def view_written_after_a_branch(x: Tensor, y: Tensor) -> Any:
    z = y[:2]
    if x.sum() > 0:
        z = y[2:]
    z.mul_(3)
    return z, y


@pytest.mark.parametrize(
    "function",
    [counted_beside_a_state, view_written_after_a_branch, parts_of_a_split, one_view_for_two],
    ids=lambda f: f.__name__,
)
def test_gradients_where_graphs_run_as_they_are(function: Callable[..., Any]) -> None:
    """torch's own operators have no such gradients, so a backend that runs them is not given any."""
    compiled = weft.compile(function, backend="eager")
    for given in CALLS[:3]:
        wanted: list[Any] = []
        got: list[Any] = []
        for call, found in ((function, wanted), (compiled, got)):
            leaves = [t.clone().requires_grad_() for t in given]
            results = call(*(t * 1 for t in leaves))
            sum((k + 1) * r.square().sum() for k, r in enumerate(results)).backward()
            found += [*(r.detach() for r in results), *(t.grad for t in leaves)]
        torch.testing.assert_close(got, wanted)


def turned(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    for row in x:
        v = row * 2
        w = v.double()
    w.t_()
    return v, w


def turned_and_summed(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    v = x[0]
    for row in x:
        w = v = row * 3
    w.unsqueeze_(0)
    return (v.sum(0),)


def turned_apart(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    for row in x:
        v, w = row * 2, row * 3
    w.t_()
    return v.sum(0), w


@pytest.mark.parametrize("function", [turned, turned_and_summed, turned_apart])
def test_results_that_are_one_change_their_layout_together(
    function: Callable[[torch.Tensor], tuple[torch.Tensor, ...]],
) -> None:
    compiled = weft.compile(function)
    for count in (5, 3, 4):
        x = torch.randn(count, 3, 2, dtype=torch.float64)
        found, wanted = compiled(x), function(x)
        for one, other in zip(found, wanted, strict=True):
            assert one.shape == other.shape and one.stride() == other.stride()
        torch.testing.assert_close(found, wanted)
        assert [a is b for a in found for b in found] == [a is b for a in wanted for b in wanted]
