"""``torch._foreach_*`` in training: each result has the gradients of its own operands, and no others'.

All results of a call require gradients if any operand does.  In backward of one result the operands of others
keep ``grad`` as it was.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import weft
from torch import Tensor

LISTS = {
    1: "abs exp sigmoid sqrt norm round clone max neg sign tanh",
    2: "mul add sub div maximum clamp_min pow",
    3: "addcmul addcdiv lerp",
}
"""Names of functions by the number of lists that they take."""

CALLS = [
    (name, count)
    for count, names in LISTS.items()
    for name in names.split()
    if hasattr(torch, f"_foreach_{name}")  # torch before 2.13 has no clone
]
RETURNED = [(0,), (1,), (0, 1), (1, 0)]
SHARES = 3
"""In so many parts the choices of operands are divided, which are a case each."""


def marks(count: int) -> list[tuple[bool, ...]]:
    """Which operands require gradients: all choices, of few operands, or those of one, of two and of all."""
    every = itertools.product((False, True), repeat=2 * count)
    return [mask for mask in every if count < 3 or sum(mask) in (1, 2, 2 * count)]


def seen(
    function: Callable[..., Sequence[Tensor]], mask: Sequence[bool], returned: int
) -> list[Any]:
    """What is there of the results and the gradients, of backward through each result and through all."""
    found: list[Any] = []
    for behind in [*((k,) for k in range(returned)), tuple(range(returned))]:
        torch.manual_seed(len(mask))
        operands = [torch.rand(3 + k % 2) + 0.5 for k in range(len(mask))]
        for operand, marked in zip(operands, mask, strict=True):
            operand.requires_grad_(marked)
        results = function(*operands)
        found += [(r.detach(), r.requires_grad, r.is_leaf) for r in results]
        if any(mask):
            results = [results[k] for k in behind]
            torch.autograd.backward(results, [torch.ones_like(r) for r in results])
        found.append([operand.grad for operand in operands])
    return found


@pytest.mark.parametrize(
    ("returned", "share"), list(itertools.product(RETURNED, range(SHARES))), ids=str
)
@pytest.mark.parametrize(("name", "count"), CALLS)
def test_each_result_has_gradients_to_its_own_operands(
    name: str, count: int, returned: tuple[int, ...], share: int
) -> None:
    function = getattr(torch, f"_foreach_{name}")

    def program(*operands: Tensor) -> Sequence[Tensor]:
        results = function(*(operands[2 * k : 2 * k + 2] for k in range(count)))
        return [results[k] for k in returned]

    for mask in marks(count)[share::SHARES]:
        compiled = weft.compile(program, fullgraph=True)
        expected, given = (seen(f, mask, len(returned)) for f in (program, compiled))
        torch.testing.assert_close(given, expected)
        weft.reset()  # which operands require gradients are many versions of one function


def of_scalars(x: Tensor, y: Tensor) -> Sequence[Tensor]:
    return torch._foreach_mul([x, y], 2)


def of_a_tensor_in_common(x: Tensor, y: Tensor) -> Sequence[Tensor]:
    return torch._foreach_mul([x, y], torch.tensor(2.0))


def used_by_others(x: Tensor, y: Tensor) -> Sequence[Tensor]:
    first, second = torch._foreach_mul([x, y], 2)
    return second * 3, first + 1, second.detach()


def of_lists_of_lists(x: Tensor, y: Tensor) -> Sequence[Tensor]:
    both = torch._foreach_mul([x, y], 2)
    return *torch._foreach_add(both, [y, x]), both[0]


def written_later(x: Tensor, y: Tensor) -> Sequence[Tensor]:
    both = torch._foreach_mul([x, y], 2)
    both[1].mul_(both[0])
    return both


def overwritten(x: Tensor, y: Tensor) -> Sequence[Tensor]:
    both = torch._foreach_mul([x, y], 2)
    both[0].zero_()
    return both


def written_lists(x: Tensor, y: Tensor) -> Sequence[Tensor]:
    both = [x + 0, y + 0]
    torch._foreach_mul_(both, 2)
    return both


def seen_twice(x: Tensor, y: Tensor) -> Sequence[Tensor]:
    _, second = torch._foreach_exp([x, y])
    return second.view(-1), second


def chosen_by_data(x: Tensor, y: Tensor) -> Sequence[Tensor]:
    first, second = torch._foreach_mul([x, y], 2)
    return torch.where(y.sum() > 0, first, second.sum()), second


PROGRAMS = [
    of_scalars,
    of_a_tensor_in_common,
    used_by_others,
    of_lists_of_lists,
    written_later,
    overwritten,
    written_lists,
    seen_twice,
    chosen_by_data,
]


@pytest.mark.parametrize("mask", list(itertools.product((False, True), repeat=2)), ids=str)
@pytest.mark.parametrize("program", PROGRAMS)
def test_gradients_of_results_that_are_used(
    program: Callable[..., Sequence[Tensor]], mask: tuple[bool, bool]
) -> None:
    def sized(x: Tensor, y: Tensor) -> Sequence[Tensor]:
        return program(x, y[:3])

    compiled = weft.compile(sized, fullgraph=True)
    expected, given = (gradients(f, mask) for f in (sized, compiled))
    torch.testing.assert_close(given, expected)


def gradients(function: Callable[..., Sequence[Tensor]], mask: tuple[bool, bool]) -> list[Any]:
    """The results, and the gradients of each of them alone."""
    x, y = (torch.rand(3 + k, generator=torch.Generator().manual_seed(k)) for k in range(2))
    operands = [x.requires_grad_(mask[0]), y.requires_grad_(mask[1])]
    wanted = [operand for operand in operands if operand.requires_grad]
    found: list[Any] = []
    for k in range(len(function(*operands))):
        results = function(*operands)
        found.append([(r.detach(), r.requires_grad, r.is_leaf) for r in results])
        if results[k].requires_grad:
            found.append(torch.autograd.grad(results[k].sum(), wanted, allow_unused=True))
    return found


@pytest.mark.parametrize("number", range(2))
def test_gradients_asked_inside(number: int) -> None:
    def program(x: Tensor, y: Tensor) -> Sequence[Tensor | None]:
        results = torch._foreach_mul([x * 2, y], 2)
        return torch.autograd.grad(results[number].sum(), [x, y], allow_unused=True)

    x, y = torch.rand(3, requires_grad=True), torch.rand(4, requires_grad=True)
    given = weft.compile(program, fullgraph=True)(x, y)
    assert [g is None for g in given] == [k != number for k in range(2)]
    torch.testing.assert_close(given, program(x, y))
