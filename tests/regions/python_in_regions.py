"""What programs do inside loops and branches on tensors: exceptions, contexts, generators, closures, state.

Each function takes a matrix of 20 rows and 4 columns.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch


def try_in_a_loop(x: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(4)
    for row in x:
        try:
            total = total + row
        finally:
            total = total * 0.5
    return total


def except_in_a_loop(x: torch.Tensor) -> torch.Tensor:
    names = {"a": 2.0}
    total = torch.zeros(4)
    for row in x:
        try:
            factor = names["b"]
        except KeyError:
            factor = 3.0
        total = total + row * factor
    return total


def with_in_a_loop(x: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(4)
    for row in x:
        with torch.no_grad():
            total = total + row * 2
    return total


def own_context_in_a_loop(x: torch.Tensor) -> torch.Tensor:
    @contextlib.contextmanager
    def scaled(factor: float) -> Any:
        yield factor * 2

    total = torch.zeros(4)
    for row in x:
        with scaled(1.5) as factor:
            total = total + row * factor
    return total


def try_around_a_branch(x: torch.Tensor) -> torch.Tensor:
    for i in range(20):
        try:
            if x[i].sum() > 0:
                x = x * 0.9
            else:
                x = x + 0.1
        except ValueError:
            x = x * 100
    return x


def with_around_a_branch(x: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(4)
    for row in x:
        with torch.no_grad():
            if row.sum() > 0:
                total = total + row
    return total


def break_inside_with(x: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(4)
    for row in x:
        with torch.no_grad():
            total = total + row.abs()
            if total.sum() > 5:
                break
    return total


def break_inside_try(x: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(4)
    for row in x:
        try:
            total = total + row.abs()
            if total.sum() > 5:
                break
        except ValueError:
            total = total * 0
    return total


def return_from_a_while(x: torch.Tensor) -> torch.Tensor:
    y = x
    while y.abs().sum() < 1000:
        y = y * 1.5
        if y.max() > 20:
            return y * 2
    return y + 1


def return_from_nested_loops(x: torch.Tensor) -> torch.Tensor:
    for i in range(20):
        for j in range(16):
            if x[i, 0] > x[j, 1] + 1.5:
                return x * 2
    return x * 1


def return_the_places(x: torch.Tensor) -> Any:
    for i in range(20):
        for j in range(4):
            if x[i, j] > 1.5:
                return i, j
    return -1, -1


def first_place(x: torch.Tensor) -> int:
    for i in range(20):
        if x[i].sum() > 2:
            return i
    return -1


def break_of_an_inner_loop(x: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(())
    for i in range(20):
        for j in range(16):
            total = total + x[i, 0] * x[j, 1]
            if total > 2:
                break
        total = total * 0.5
    return total


def break_of_both_loops(x: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(())
    for i in range(20):
        found = torch.tensor(False)
        for j in range(16):
            total = total + (x[i, 0] * x[j, 1]).abs()
            if total > 3:
                found = torch.tensor(True)
                break
        if found:
            break
    return total


def while_in_a_while(x: torch.Tensor) -> torch.Tensor:
    y = x.abs() + 0.1
    while y.sum() < 1000:
        while y.max() < 10:
            y = y * 2
        y = y + 1
    return y


def while_in_a_for(x: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(4)
    for row in x:
        v = row.abs() + 0.01
        while v.sum() < 10:
            v = v * 2
        total = total + v
    return total


def continue_by_a_value(x: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(4)
    for row in x:
        if row.sum() < 0:
            continue
        if row.max() > 2:
            continue
        total = total + row
    return total


def while_with_continue(x: torch.Tensor) -> torch.Tensor:
    i = torch.tensor(0)
    total = torch.zeros(4)
    while i < 20:
        i = i + 1
        if x[i - 1].sum() < 0:
            continue
        total = total + x[i - 1]
    return total


def conditional_expressions(x: torch.Tensor) -> torch.Tensor:
    a = x[0] if x.sum() > 0 else x[1] * 2
    for i in range(20):
        a = a + (x[i] if x[i].sum() > 0 else -x[i])
    return a


def and_or_not(x: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(4)
    for row in x:
        if (row.sum() > 0 and row.max() > 0.5) or not row.min() > -1:
            total = total + row
    return total


def chained_comparison(x: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(4)
    for row in x:
        if -1 < row.sum() < 1:
            total = total + row
    return total


def any_of_rows(x: torch.Tensor) -> torch.Tensor:
    if any(row.sum() > 5 for row in x[:4]):
        return x * 2
    return x + 1


def min_and_max(x: torch.Tensor) -> torch.Tensor:
    best = x[0].sum()
    for row in x:
        best = max(best, row.sum())
    return best


def float_that_grows(x: torch.Tensor) -> torch.Tensor:
    scale = 1.0
    y = x
    for i in range(20):
        y = y + x[i] * scale
        scale = scale * 0.9
    return y * scale


def float_in_a_while(x: torch.Tensor) -> Any:
    scale = 1.0
    y = x.abs()
    while y.sum() > 1:
        y = y * scale
        scale *= 0.9
    return y, scale


def number_by_side(x: torch.Tensor) -> torch.Tensor:
    factor = 2 if x.sum() > 0 else 3
    return x * factor


def float_by_side(x: torch.Tensor) -> Any:
    if x.sum() > 0:
        rate, shift = 0.1, 1
    else:
        rate, shift = 0.25, -1
    return x * rate + shift, rate


def flag_by_side(x: torch.Tensor) -> torch.Tensor:
    found = False
    if x.max() > 1:
        found = True
    return x * 2 if found else x + 1


def flag_in_a_loop(x: torch.Tensor) -> Any:
    found = False
    total = torch.zeros(4)
    for row in x:
        if row.sum() > 2:
            found = True
        total = total + row
    return total, found


def counted_in_branches(x: torch.Tensor) -> Any:
    positive = negative = 0
    for row in x:
        if row.sum() > 0:
            positive += 1
        else:
            negative += 1
    return positive, negative


def count_that_is_used(x: torch.Tensor) -> torch.Tensor:
    steps, y = 0, x.abs()
    while y.sum() > 1:
        steps += 1
        y = y * 0.5 / steps
    return y


def patience(x: torch.Tensor) -> Any:
    best, waited = torch.tensor(1e9), 0
    for i in range(20):
        loss = x[i].abs().sum()
        if loss < best:
            best, waited = loss, 0
        else:
            waited += 1
        if waited >= 5:
            break
    return best, waited


def count_in_the_test(x: torch.Tensor) -> torch.Tensor:
    steps, y = 0, x.abs()
    while y.sum() > 1 and steps < 30:
        y = y * 0.9
        steps += 1
    return y


def write_at_a_count(x: torch.Tensor) -> Any:
    """Rows that are kept move to the front."""
    out, n = torch.zeros_like(x), 0
    for row in x:
        if row.sum() > 0:
            out[n] = row
            n += 1
    return out, n


def position_of_the_greatest(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    for _ in range(20):
        place = y[:, 0].argmax()
        y[place] = y[place] * 0.5 - 1
    return y


def position_as_an_int(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    for _ in range(20):
        place = int(y[:, 0].argmax())
        y[place] = y[place] * 0.5 - 1
    return y


def item_in_a_loop(x: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(4)
    for row in x:
        total = total + row * row.sum().item()
    return total


def generator_in_a_loop(x: torch.Tensor) -> torch.Tensor:
    def pairs(rows: torch.Tensor) -> Any:
        for i in range(20):
            yield rows[i], rows[19 - i]

    total = torch.zeros(4)
    for a, b in pairs(x):
        total = total + a * b
    return total


def comprehension_in_a_loop(x: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(4)
    for row in x:
        parts = [row * k for k in range(3)]
        total = total + sum(parts)
    return total


def comprehension_that_hides_a_local(x: torch.Tensor) -> Any:
    k, total = 5.0, torch.zeros(4)
    for row in x:
        parts = [row * k for k in (1, 2)]
        total = (total + parts[0] + parts[1] * k).sin()
    return total, k


def comprehension_over_rows(x: torch.Tensor) -> torch.Tensor:
    return torch.stack([row.relu() + i for i, row in enumerate(x)])


def sum_over_rows(x: torch.Tensor) -> torch.Tensor:
    return sum(x[i] * i for i in range(20))  # type: ignore[return-value]


def sliding_pairs(x: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(4)
    for a, b in zip(x[:-1], x[1:], strict=True):  # noqa: RUF007
        total = total + a * b
    return total


def list_of_tensors(x: torch.Tensor) -> torch.Tensor:
    rows = list(x)
    total = torch.zeros(4)
    for row in rows:
        total = total * 0.5 + row
    return total


def unbound_rows(x: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(4)
    for row in x.unbind(0):
        total = total * 0.5 + row
    return total


def chunks(x: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(1, 4)
    for part in x.split(1):
        total = total * 0.5 + part
    return total


def closure_in_a_loop(x: torch.Tensor) -> torch.Tensor:
    weight = x.t() @ x

    def step(h: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
        return torch.tanh(h @ weight + row)

    h = torch.zeros(4)
    for row in x:
        h = step(h, row)
    return h


def nonlocal_state(x: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(4)

    def add(row: torch.Tensor) -> None:
        nonlocal total
        total = total + row

    for row in x:
        add(row)
    return total


def cell_of_a_loop(x: torch.Tensor) -> torch.Tensor:
    h = torch.zeros(4)
    for row in x:
        h = torch.tanh(h + row)
    return (lambda: h * 2)()


def lambda_in_a_loop(x: torch.Tensor) -> torch.Tensor:
    h = torch.zeros(4)
    for row in x:
        update = lambda v: v * 0.5 + row  # noqa: E731, B023
        h = update(h)
    return h


class State:
    """Carried state in attributes."""

    def __init__(self, like: torch.Tensor) -> None:
        self.h = torch.zeros_like(like)
        self.count = 0

    def step(self, row: torch.Tensor) -> torch.Tensor:
        self.h = torch.tanh(self.h + row)
        self.count += 1
        return self.h


def attributes_of_an_object(x: torch.Tensor) -> Any:
    state = State(x[0])
    for row in x:
        state.step(row)
    return state.h, state.count


def attribute_by_side(x: torch.Tensor) -> torch.Tensor:
    state = State(x)
    if x.sum() > 0:
        state.h = x * 2
    else:
        state.h = x - 1
    return state.h


def dict_of_counts(x: torch.Tensor) -> Any:
    state = {"h": x[0], "n": 0}
    for row in x:
        state["h"] = state["h"] * 0.5 + row
        state["n"] += 1
    return state


def list_that_a_branch_appends_to(x: torch.Tensor) -> Any:
    kept = []
    for row in x:
        if row.sum() > 0:
            kept.append(row)
    return kept


def last_of_a_list(x: torch.Tensor) -> torch.Tensor:
    states = [x[0]]
    for i in range(1, 20):
        states.append(torch.tanh(states[-1] + x[i]))
    return torch.stack(states)


def previous_and_current(x: torch.Tensor) -> torch.Tensor:
    previous = None
    total = torch.zeros(4)
    for row in x:
        if previous is not None:
            total = total + (row - previous).abs()
        previous = row
    return total


def first_iteration_differs(x: torch.Tensor) -> torch.Tensor:
    h = None
    for i, row in enumerate(x):
        h = row if i == 0 else torch.tanh(h + row)
    return h  # type: ignore[return-value]


def every_second(x: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(4)
    for i in range(20):
        if i % 2 == 0:
            total = total + x[i]
        else:
            total = total - x[i]
    return total


def asserts(x: torch.Tensor) -> torch.Tensor:
    y = x
    for row in x:
        assert row.shape == (4,), row.shape
        y = y + row
    return y


def while_by_numbers(x: torch.Tensor) -> torch.Tensor:
    i, total = 0, torch.zeros(4)
    while i < 20:
        total = total + x[i]
        i += 1
    return total


def while_by_two_pointers(x: torch.Tensor) -> torch.Tensor:
    low, high, total = 0, 19, torch.zeros(4)
    while low < high:
        total = total + x[low] * x[high]
        low += 1
        high -= 1
    return total


def halving_strides(x: torch.Tensor) -> torch.Tensor:
    y = torch.zeros(32)
    y[:20] = x[:, 0]
    stride = 1
    while stride < 32:
        y = y + torch.nn.functional.pad(y, (stride, 0))[:32]
        stride *= 2
    return y


PROGRAMS = [
    value
    for value in vars().copy().values()
    if getattr(value, "__module__", "") == __name__ and value is not State
]
