"""Sizes that data decides anew in each iteration of a kept loop, or in one branch: they stay inside."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import weft
from weft_bytecode_capture import capture

Tensor = torch.Tensor


def chosen(x: Tensor) -> Tensor:
    total = torch.zeros(())
    for i in range(16):
        chosen = x[x > i / 16]
        total = total + chosen.sum() / max(chosen.numel(), 1) + len(chosen)
    return total


def found(x: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for i in range(16):
        mask = x > i / 16
        (places,) = torch.where(mask)
        out[places] += x[places].softmax(0)
        out[mask] *= 0.9
    return out


def means_of_those_there_are(x: Tensor) -> Tensor:
    means = []
    for i in range(16):
        part = x[x > i / 16]
        if part.numel() > 0:
            means.append(part.mean())
    return torch.stack(means)


def until_none_is_left(x: Tensor) -> Tensor:
    total = torch.zeros(())
    for i in range(16):
        part = x[x > i / 8]
        if len(part) == 0:
            break
        total = total + part.max()
    return total


def while_there_is_little(x: Tensor) -> Tensor:
    total = torch.zeros(())
    while total < 3:
        part = x[x > total / 4]
        total = total + part.numel() * 0.1 + part.sum() * 0.1 + 0.1
    return total


def in_one_branch(x: Tensor) -> Tensor:
    if x.sum() > 8:
        part = x[x > 0.5]
        return part.sum() * len(part)
    return x.sum()


KEPT = [
    chosen, found, means_of_those_there_are, until_none_is_left, while_there_is_little, in_one_branch,
]  # fmt: skip


@pytest.mark.parametrize("function", KEPT)
def test_what_stays_inside_is_kept(function: Callable[[Tensor], Tensor]) -> None:
    compiled, log = weft.compile(function, fullgraph=True), weft.CompileLog()
    for seed in range(3):
        x = torch.rand(17, generator=torch.Generator().manual_seed(seed))
        with weft.observe(log):
            torch.testing.assert_close(compiled(x.clone()), function(x))
    assert len(log.graphs) == 1
    assert not any(report.unkept_regions for report in log.conversions)


def leaves_the_loop(x: Tensor) -> tuple[Tensor, Tensor]:
    part, total = x, x.sum()
    for i in range(16):
        part = x[x > i / 16]
        total = total + part.sum()
    return part, total


def joined(x: Tensor) -> Tensor:
    return torch.cat([x[x > i / 16] for i in range(16)])


def rows_one_by_one(x: Tensor) -> Tensor:
    total = torch.zeros(())
    for i in range(16):
        for row in x[x > i / 16]:
            total = total + row
    return total


def the_first(x: Tensor) -> Tensor:
    total = torch.zeros(())
    for i in range(16):
        total = total + x[x > i / 20][0]
    return total


def two_that_have_to_be_alike(x: Tensor) -> Tensor:
    total = torch.zeros(())
    for i in range(16):
        total = total + (x[x > i / 16] * x[x >= i / 16]).sum()
    return total


OTHERS = [leaves_the_loop, joined, rows_one_by_one, the_first, two_that_have_to_be_alike]


@pytest.mark.parametrize("function", OTHERS)
def test_what_does_not_is_as_in_eager(function: Callable[[Tensor], Tensor]) -> None:
    compiled = capture(function)
    for seed in range(2):
        x = torch.rand(9, generator=torch.Generator().manual_seed(seed)) + 0.1
        torch.testing.assert_close(compiled(x.clone()).result, function(x))


def attention_over_those_chosen(x: Tensor) -> Tensor:
    total = torch.zeros((), dtype=x.dtype)
    for i in range(16):
        part = x[x > i / 16] * 3
        total = total + (torch.outer(part, part).softmax(-1) @ part).sum()
    return total


@pytest.mark.parametrize("function", [*KEPT, attention_over_those_chosen])
def test_gradients_make_them_again(function: Callable[[Tensor], Tensor]) -> None:
    compiled, log = weft.compile(function, fullgraph=True), weft.CompileLog()
    for seed in range(3):
        start = torch.rand(17, generator=torch.Generator().manual_seed(seed))
        found = []
        for program in (compiled, function):
            x = start.clone().requires_grad_()
            with weft.observe(log):
                result = program(x * 1)
            found.append((result, *torch.autograd.grad(result.square().sum(), x)))
        torch.testing.assert_close(*found)
    assert not any(report.unkept_regions for report in log.conversions)


def test_gradients_inside_the_program_make_them_again() -> None:
    def program(x: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(attention_over_those_chosen(x), x)
        return gradient * 2

    compiled = weft.compile(program, fullgraph=True)
    x = torch.rand(9, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(compiled(x), program(x))


def test_random_numbers_of_such_sizes_are_eagers() -> None:
    """They cannot be drawn again."""

    def program(x: Tensor) -> Tensor:
        total = torch.zeros((), dtype=x.dtype)
        for i in range(3):
            part = x[x > i / 16]
            total = total + (part * torch.rand_like(part)).exp().sum()
        return total

    found = []
    for run in (weft.compile(program), program):
        torch.manual_seed(3)
        x = torch.linspace(0, 1, 9, dtype=torch.float64).requires_grad_()
        found.append((result := run(x), *torch.autograd.grad(result, x)))
    torch.testing.assert_close(*found)


def test_an_error_in_an_iteration_is_eagers() -> None:
    def greatest(x: Tensor) -> Tensor:
        total = torch.zeros(())
        for i in range(16):
            total = total + x[x > i / 16].max()
        return total

    compiled = weft.compile(greatest)
    torch.testing.assert_close(compiled(torch.ones(5)), greatest(torch.ones(5)))
    with pytest.raises(RuntimeError, match="Expected reduction dim"):
        compiled(torch.zeros(5))
