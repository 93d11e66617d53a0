"""Sizes that data decides, where a program relies on others: a call that has these raises, as in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import weft
from torch import Tensor

Program = Callable[[Tensor, Tensor], Any]


def checked(y: Tensor, w: Tensor) -> Tensor:
    n = y.sum().item()
    torch._check(n == 4, lambda: "not four")
    return w.sum(0) * n


def refused(y: Tensor, w: Tensor) -> Tensor:
    n = int((y > 0).sum())
    if n != w.shape[0]:
        raise ValueError(f"{n} beside {w.shape[0]}")
    return w[:n] * 2


def features_counted(y: Tensor, w: Tensor) -> Tensor:
    chosen = y[y > 0]
    if chosen.shape[0] != w.shape[0]:
        raise ValueError("as many as rows")
    return w * chosen[:, None]


def of_a_row(y: Tensor, w: Tensor) -> Tensor:
    return y[y > 0].float() @ w


def of_ones(y: Tensor, w: Tensor) -> Tensor:
    return torch.ones(3, y.nonzero().shape[0]) @ w


def counted(y: Tensor, w: Tensor) -> Tensor:
    return torch.arange(int(y.sum())).float() + w


def of_zeros(y: Tensor, w: Tensor) -> Tensor:
    return torch.zeros(int(y.max())) * w.sum(0)


def joined(y: Tensor, w: Tensor) -> Tensor:
    return torch.cat([y[y > 0].float()[None], w])


def chosen(y: Tensor, w: Tensor) -> Tensor:
    return torch.where(y[y > 0] > 1, w, 0.0)


def classes(y: Tensor, w: Tensor) -> Tensor:
    return F.one_hot(y).float() @ w


def classes_by_number(y: Tensor, w: Tensor) -> Tensor:
    return F.one_hot(y, int(y.max()) + 1).float() @ w


def classes_in_a_loss(y: Tensor, w: Tensor) -> Tensor:
    return -(F.one_hot(y, num_classes=-1) * torch.log_softmax(w[:1], -1)).sum()


PROGRAMS: tuple[Program, ...] = (
    checked, refused, features_counted, of_a_row, of_ones, counted, of_zeros, joined, chosen, classes,
    classes_by_number, classes_in_a_loss,
)  # fmt: skip


def outcome(program: Program, y: Tensor, w: Tensor) -> Any:
    """What a call gives, with the gradient, or the class of what it raises."""
    try:
        result = program(y, w)
    except (RuntimeError, ValueError) as error:
        return type(error)
    if not result.requires_grad:
        return [result]
    return [result, *torch.autograd.grad(result.sum(), w)]


@pytest.mark.parametrize("has_gradients", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_like_eager(program: Program, has_gradients: bool) -> None:
    compiled = weft.compile(program)
    w = torch.randn(4, 4, requires_grad=has_gradients)
    numbers = [1, 1, 1, 1], [1, 1, 1, 3, 0], [1, 1, 0, 0], [1, 0, 0], [2, 2, 0, 0], [4, 4, 1, 1]
    for y in map(torch.tensor, numbers):
        got, wanted = outcome(compiled, y, w), outcome(program, y, w)
        if isinstance(wanted, type):
            assert got is wanted
        else:
            torch.testing.assert_close(got, wanted)


def test_classes_that_data_counts_are_in_the_graph() -> None:
    def hot(y: Tensor) -> Tensor:
        return F.one_hot(y).float() * 2

    compiled = weft.compile(hot, fullgraph=True)
    for y in ([0, 2, 1], [0, 5, 1], [[0, 1], [3, 0]], [0]):
        torch.testing.assert_close(compiled(torch.tensor(y)), hot(torch.tensor(y)))
    with pytest.raises(RuntimeError, match="must be non-negative"):
        compiled(torch.tensor([0, -1]))
    with pytest.raises(RuntimeError, match="from empty tensor"):
        weft.compile(hot)(torch.tensor([], dtype=torch.int64))
