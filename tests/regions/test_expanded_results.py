"""Tensors that a kept branch or loop expands, or lays out otherwise, have eager's strides behind it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import weft


def rows(x: torch.Tensor) -> torch.Tensor:
    y = x
    for _ in range(25):
        y = (x * 2).expand(2, *x.shape)
    return y


def bound_in_the_loop(x: torch.Tensor) -> torch.Tensor:
    for row in x:
        y = torch.meshgrid(row[:3], x.flatten()[:2], indexing="ij")[1]
    return y


def across(x: torch.Tensor) -> torch.Tensor:
    """As of ``meshgrid``: the elements that are there lie side by side."""
    for _ in range(25):
        y = (x[0] * 2)[:, None].expand(-1, 3)
    return y


def across_in_a_branch(x: torch.Tensor) -> torch.Tensor:
    if x.sum() > 0:
        y = (x[0] * 2)[None].expand(3, -1).t()
    else:
        y = (x[0] * 3)[None].expand(3, -1).t()
    return y


def transposed(x: torch.Tensor) -> torch.Tensor:
    for _ in range(25):
        y = x.t() * 2
    return y


def branch(x: torch.Tensor) -> torch.Tensor:
    if x.sum() > 0:
        y = (x * 2)[:, :1].expand(*x.shape)
    else:
        y = (x * 3)[:, :1].expand(*x.shape)
    return y


def until(x: torch.Tensor) -> torch.Tensor:
    y = x
    while x.sum() < 40:
        x = x + 1
        y = x[:1].expand(5, x.shape[1])
    return y


def recurrence(x: torch.Tensor) -> torch.Tensor:
    """As of a state that begins with one row for all."""
    h = x[:1].expand(*x.shape)
    for _ in range(25):
        h = torch.tanh(h * x + 0.5)
    return h


def steps(x: torch.Tensor) -> torch.Tensor:
    h = x.new_zeros(1).expand(x.shape[1])
    for row in x:
        h = torch.tanh(h + row)
    return h


def bound_anew(x: torch.Tensor) -> torch.Tensor:
    h = x[:1].expand(*x.shape)
    for _ in range(25):
        h = x * 2
    return h


def stays_expanded(x: torch.Tensor) -> torch.Tensor:
    h = x[:1].expand(*x.shape)
    for _ in range(25):
        h = (x[1:2] * 2).expand(*x.shape)
    return h


def grows(x: torch.Tensor) -> torch.Tensor:
    h = x[:1].expand(*x.shape)
    while h.abs().sum() < 1000:
        h = h * 2 + x
    return h


def written_in_one_branch(x: torch.Tensor) -> torch.Tensor:
    h = x[:1].expand(*x.shape)
    if x.sum() > 0:
        h = h * x
    return h


def squeezed_in_place(x: torch.Tensor) -> torch.Tensor:
    for _ in range(25):
        y = x[:1].unsqueeze(-1) * 2
    y.squeeze_()
    return y


def transposed_in_place(x: torch.Tensor) -> torch.Tensor:
    for _ in range(25):
        y = (x[:1] * 2).expand(*x.shape)
    y.t_()
    return y


def with_a_dim_more(x: torch.Tensor) -> torch.Tensor:
    for _ in range(25):
        y = (x[:1] * 2).expand(2, *x.shape[1:])
    y.unsqueeze_(0)
    return y


def turned(x: torch.Tensor) -> torch.Tensor:
    while x.sum() < 40:
        x = x + 1
        y = x[:1].expand(5, x.shape[1])
    y.transpose_(0, 1)
    return y


def turned_in_a_branch(x: torch.Tensor) -> torch.Tensor:
    if x.sum() > 0:
        y = (x * 2)[:, :1].expand(*x.shape)
    else:
        y = (x * 3)[:, :1].expand(*x.shape)
    y.t_()
    return y


PROGRAMS = (
    with_a_dim_more,
    turned,
    turned_in_a_branch,
    squeezed_in_place,
    transposed_in_place,
    rows,
    bound_in_the_loop,
    transposed,
    branch,
    until,
    recurrence,
    steps,
    bound_anew,
    stays_expanded,
    grows,
    written_in_one_branch,
)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_strides(program: Callable[[torch.Tensor], torch.Tensor], dynamic: bool) -> None:
    compiled = weft.compile(program, dynamic=dynamic)
    for size in (4, 6):
        x = torch.rand(3, size)
        expected, found = program(x), compiled(x)
        torch.testing.assert_close(found, expected)
        assert found.stride() == expected.stride()


def test_gradients() -> None:
    for program in (rows, branch, recurrence, steps, grows):
        x = torch.rand(3, 4, dtype=torch.float64, requires_grad=True)
        expected, found = program(x), weft.compile(program)(x)
        weights = torch.rand(expected.shape, dtype=torch.float64)
        gradients = [torch.autograd.grad((y * weights).sum(), x)[0] for y in (expected, found)]
        torch.testing.assert_close(gradients[1], gradients[0])
        assert found.stride() == expected.stride()
