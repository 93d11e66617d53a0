"""Lists that loops append tensors to which somebody else has too, and writes to either."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import weft

from .regions_kept import regions_in

Tensor = torch.Tensor


def one_tensor_in_all_places(x: Tensor) -> Any:
    h, out = torch.zeros(3), []
    for row in x:
        h.add_(row)
        out.append(h)
    return torch.stack(out), out[0] is out[1]


def written_by_the_next_iteration(x: Tensor) -> Any:
    h, out = torch.zeros(3), []
    for row in x:
        h.mul_(0.5)
        h = h + row
        out.append(h)
    return torch.stack(out), h


def handed_on_and_written(x: Tensor) -> Any:
    h = last = torch.zeros(3)
    out = []
    for row in x:
        last.mul_(2)
        last = h
        h = h + row
        out.append(h)
    return torch.stack(out)


def view_of_what_is_written(x: Tensor) -> Any:
    h, out = torch.zeros(3), []
    for row in x:
        out.append(h[:2])
        h.add_(row)
    return torch.stack(out), h


def state_before_it_is_written(x: Tensor) -> Any:
    h, out = x[0] * 1, []
    for row in x:
        out.append(h)
        h = h + row
        h.mul_(0.5)
    return torch.stack(out)


def chosen_by_a_branch(x: Tensor) -> Any:
    h, other, out = torch.zeros(3), torch.ones(3), []
    for row in x:
        h = h + 1 if row.sum() > 0 else other
        other.mul_(1.5)
        out.append(h)
    return torch.stack(out)


def written_in_an_inner_loop(x: Tensor) -> Any:
    h, out = torch.zeros(3), []
    for row in x:
        for i in range(4):
            h[:1].add_(i)
        h = h + row
        out.append(h)
    return torch.stack(out)


def rows_of_what_is_written_later(x: Tensor) -> Any:
    y, out = x * 1, []
    for row in y:
        out.append(row)
    y.add_(1)
    return torch.stack(out)


def written_through_the_list(x: Tensor) -> Any:
    y, out = x * 1, []
    for row in y:
        out.append(row)
    out[0].add_(100)
    return torch.stack(out), y


def last_state_written_later(x: Tensor) -> Any:
    h, out = torch.zeros(3), []
    for row in x:
        h = h + row
        out.append(h)
    h.add_(10)
    return torch.stack(out)


def last_element_written_later(x: Tensor) -> Any:
    h, out = torch.zeros(3), []
    for row in x:
        h = h + row
        out.append(h)
    out[-1].add_(10)
    return h + 0


def read_before_the_write(x: Tensor) -> Any:
    h, out = torch.zeros(3), []
    for row in x:
        h = h + row
        out.append(h)
    last = out[-1][:2]
    h.add_(10)
    return last + 1


def written_by_a_later_loop(x: Tensor) -> Any:
    h, out = torch.zeros(3), []
    for row in x:
        h = h + row
        out.append(h)
    total = torch.zeros(3)
    for row in x:
        h[:2].mul_(0.5)
        total = total + torch.stack(out).sum(0) + row
    return total


def in_two_lists(x: Tensor) -> Any:
    one, other = [], []
    for row in x:
        h = row * 2
        one.append(h)
        other.append(h)
    one[0].add_(10)
    return torch.stack(other)


def returned_with_the_state(x: Tensor) -> Any:
    h, out = torch.zeros(3), []
    for row in x:
        h = h + row
        out.append(h)
    return out, h


def returned_rows_of_the_argument(x: Tensor) -> Any:
    out = []
    for row in x:
        out.append(row)
    return out


def returned_many_times(x: Tensor) -> Any:
    y, out = x[0] * 2, []
    for _ in x:
        out.append(y)
    return out


def rows_of_a_comprehension(x: Tensor) -> Any:
    y = x * 1
    rows = [row for row in y]  # noqa: C416
    y.add_(1)
    return torch.stack(rows)


def written_in_a_comprehension(x: Tensor) -> Any:
    h = x[0] * 1
    return torch.stack([h.add_(row) for row in x])


NOT_KEPT = [
    one_tensor_in_all_places,
    written_by_the_next_iteration,
    handed_on_and_written,
    view_of_what_is_written,
    state_before_it_is_written,
    chosen_by_a_branch,
    written_in_an_inner_loop,
    rows_of_what_is_written_later,
    written_through_the_list,
    last_state_written_later,
    last_element_written_later,
    read_before_the_write,
    written_by_a_later_loop,
    in_two_lists,
    returned_with_the_state,
    returned_rows_of_the_argument,
    returned_many_times,
    rows_of_a_comprehension,
    written_in_a_comprehension,
]


def written_by_the_same_iteration(x: Tensor) -> Any:
    h, out = torch.zeros(3), []
    for row in x:
        h = h + row
        out.append(h)
        h.mul_(0.5)
    return torch.stack(out), h


def beside_writes_to_others(x: Tensor) -> Any:
    h, total, table, out = torch.zeros(3), torch.zeros(3), torch.zeros(30, 3), []
    for i in range(6):
        h = torch.tanh(h + x[i])
        total += h
        table[i] = h
        out.append(h)
    total.mul_(2)
    return torch.stack(out), torch.stack(out[::-1], 1), h + 1, total, table


def stacked_before_the_write(x: Tensor) -> Any:
    h, out = torch.zeros(3), []
    for row in x:
        h = h + row
        out.append(h)
    stacked = torch.stack(out)
    h.add_(10)
    return stacked


def elements_of_its_own(x: Tensor) -> Any:
    out = []
    for row in x:
        out.append(row * 2)
    out[0].add_(100)
    out[-1].mul_(2)
    return torch.stack(out), out[3] + 1


def state_before_it_is_new(x: Tensor) -> Any:
    h, out = x[0], []
    for row in x:
        out.append(h)
        h = h * 0.5 + row
    return torch.stack(out), h


KEPT = [
    written_by_the_same_iteration,
    beside_writes_to_others,
    stacked_before_the_write,
    elements_of_its_own,
    state_before_it_is_new,
]

CALLS = [(torch.arange(18.0).view(6, 3) - 7,), (-torch.ones(6, 3),)]


@pytest.mark.parametrize("function", NOT_KEPT, ids=lambda f: f.__name__)
def test_what_others_have_is_not_copied(function: Callable[..., Any]) -> None:
    regions_in(function, CALLS)


@pytest.mark.parametrize("function", KEPT, ids=lambda f: f.__name__)
def test_what_nobody_else_writes_is_a_row(function: Callable[..., Any]) -> None:
    assert regions_in(function, CALLS)[-1] == [1]


def test_rows_at_places_that_data_chooses_are_the_arguments() -> None:
    """A copy is as good where they are stacked, and not where the list is returned."""

    def chosen(x: Tensor, places: Tensor, stacked: bool) -> Any:
        rows = [x[int(k)] for k in places]
        return torch.stack(rows) if stacked else rows

    compiled = weft.compile(chosen, backend="eager")
    x, places = torch.arange(18.0).view(6, 3), torch.arange(24) % 5
    assert torch.equal(compiled(x, places, True), chosen(x, places, True))
    compiled(x, places, False)[1].zero_()
    assert x[1].sum() == 0


def test_in_inference_mode() -> None:
    with torch.inference_mode():
        for function in (written_by_the_next_iteration, last_state_written_later):
            regions_in(function, CALLS[:1])
        assert regions_in(beside_writes_to_others, CALLS[:1])[-1] == [1]
