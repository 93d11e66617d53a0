"""Lists whose last elements a loop reads as it appends to them: ``states.append(step(states[-1]))``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import weft

from .regions_kept import regions_in

Program = Callable[[torch.Tensor], Any]


def last(x: torch.Tensor) -> Any:
    states = [x[0] * 1]
    for i in range(1, len(x)):
        states.append(torch.tanh(states[-1] + x[i]))
    return torch.stack(states), len(states), states[-1]


def by_number(x: torch.Tensor) -> Any:
    states = [x[0]]
    for i in range(1, x.shape[0]):
        states.append(torch.tanh(states[i - 1] + x[i]))
    return torch.stack(states)


def last_two(x: torch.Tensor) -> Any:
    states = [x[0], x[1]]
    for row in x:
        states.append(states[-1] * 0.5 - states[-2] + row)
    return torch.cat(states)


def last_two_by_number(x: torch.Tensor) -> Any:
    states = [x[0], x[1]]
    for i in range(2, x.shape[0]):
        states.append(torch.tanh(states[i - 1] + states[i - 2] + x[i]))
    return torch.stack(states)


def first_and_last(x: torch.Tensor) -> Any:
    states = [torch.zeros(4, dtype=x.dtype)]
    for row in x:
        states.append(states[-1] + row * states[0].cos())
    return torch.stack(states[::-1])


def after_the_append(x: torch.Tensor) -> Any:
    states, total = [x[0]], x[1] * 1
    for row in x:
        states.append(torch.tanh(states[-1] + row))
        total = total + states[-1] * states[-2]
    return torch.stack(states), total


def new_one_written(x: torch.Tensor) -> Any:
    states = [x[0] * 1]
    for row in x:
        states.append(states[-1] + row)
        states[-1].mul_(0.5)
    return torch.stack(states)


def by_side(x: torch.Tensor) -> Any:
    states = [x[0]]
    for row in x:
        if row.sum() > 0:
            state = states[-1] * 0.5
        else:
            state = states[-1] - row
        states.append(state)
    return torch.stack(states)


def two_lists(x: torch.Tensor) -> Any:
    first, second = [x[0]], [x[1]]
    for row in x:
        first.append(torch.tanh(second[-1] + row))
        second.append(first[-1] * 2)
    return torch.stack(first), torch.stack(second)


def nested(x: torch.Tensor) -> Any:
    outer = [x[0]]
    for _ in range(6):
        inner = [outer[-1]]
        for row in x:
            inner.append(torch.tanh(inner[-1] + row))
        outer.append(inner[-1] + inner[2])
    return torch.stack(outer)


SYMBOLIC = [
    *(last, by_number, last_two, last_two_by_number, first_and_last, after_the_append),
    *(new_one_written, by_side, two_lists),
]


def matrix(rows: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rows)
    return torch.randn(rows, 4, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("program", SYMBOLIC, ids=lambda program: program.__name__)
def test_one_loop_for_all_lengths(program: Program) -> None:
    calls = [(matrix(rows),) for rows in (9, 12, 7, 20)]
    assert [len(graphs) for graphs in regions_in(program, calls)] == [1, 2, 2, 2]
    assert all(regions_in(program, calls)[-1])


def test_a_loop_inside_a_loop() -> None:
    assert regions_in(nested, [(matrix(9),), (matrix(9) - 1,)])[-1] == [1]


@pytest.mark.parametrize("program", [*SYMBOLIC, nested], ids=lambda program: program.__name__)
def test_gradients(program: Program) -> None:
    def gradient(function: Program) -> torch.Tensor:
        x = matrix(18).requires_grad_()
        results = function(x)
        results = results if isinstance(results, tuple) else (results,)
        tensors = [value for value in results if isinstance(value, torch.Tensor)]
        total: Any = sum((value * (n + 1)).sum() for n, value in enumerate(tensors))
        return torch.autograd.grad(total, x)[0]

    compiled = weft.compile(program, fullgraph=True)
    torch.testing.assert_close(gradient(compiled), gradient(program))


def written_before(x: torch.Tensor) -> Any:
    """The loop writes to what the list has held before: the first elements are that very tensor."""
    start = x[0] * 1
    states = [start]
    for row in x:
        start.add_(1)
        states.append(states[-1] + row)
    return torch.stack(states), start


def written_after(x: torch.Tensor) -> Any:
    start = x[0] * 1
    states = [start]
    for row in x:
        states.append(states[-1] + row)
    start.mul_(3)
    return torch.stack(states), states[0]


def read_before_the_write(x: torch.Tensor) -> Any:
    start = x[0] * 1
    states = [start]
    for row in x:
        states.append(states[-1] + row)
    whole = torch.stack(states)
    start.mul_(3)
    return whole, start


def older_one_written(x: torch.Tensor) -> Any:
    states = [x[0] * 1]
    for row in x:
        states.append(states[-1] + row)
        states[-2].mul_(0.5)
    return torch.stack(states)


def the_same_again(x: torch.Tensor) -> Any:
    states = [x[0] * 1]
    for _ in x:
        states.append(states[-1])
    states[3].add_(1)
    return states[1], torch.stack(states)


def last_one_written(x: torch.Tensor) -> Any:
    states = [x[0] * 1]
    for row in x:
        states.append(states[-1] + row)
    states[-1].mul_(3)
    return torch.stack(states)


def an_argument(x: torch.Tensor) -> Any:
    states = [x]
    for _ in range(20):
        states.append(states[-1] * 0.5)
    return torch.stack(states), states[0], states[-1]


def other_sizes(x: torch.Tensor) -> Any:
    states = [x[0, :2]]
    for row in x:
        states.append(row + states[-1].sum())
    return states[0], torch.stack(states[1:])


def too_far_back(x: torch.Tensor) -> Any:
    states = [x[0]]
    for row in x[:7]:
        states.append(states[-2] + row if len(states) > 1 else row)
    return torch.stack(states)


@pytest.mark.parametrize(
    "program",
    [
        *(written_before, written_after, read_before_the_write, older_one_written, the_same_again),
        *(last_one_written, an_argument, other_sizes, too_far_back),
    ],
    ids=lambda program: program.__name__,
)
def test_as_eager_whether_kept_or_not(program: Program) -> None:
    regions_in(program, [(matrix(9),), (matrix(9) - 1,), (matrix(12),)])


def test_an_element_that_is_not_there_is_eagers_error() -> None:
    def program(x: torch.Tensor) -> Any:
        states = [x[0]]
        for row in x:
            states.append(states[-2] + row)
        return states

    with pytest.raises(IndexError, match="list index out of range"):
        weft.compile(program)(matrix(9))
