"""Instances of classes that derive from tuples, lists, numbers and texts, as operators' arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from differential import check
from torch import nn
from torch.nn import functional as F

x = torch.arange(8.0).reshape(2, 4)
w = torch.ones(2, 8)
cell, layer = nn.LSTMCell(4, 8), nn.LSTM(4, 8)


class State(NamedTuple):
    hidden: torch.Tensor
    inner: torch.Tensor


class Places(tuple):
    pass


class Items(list):
    pass


class Factor(float):
    pass


class Count(int):
    pass


class Word(str):
    pass


class Counted(tuple):
    """What operators read of it, no method of the class says."""

    def __iter__(self) -> Any:
        return iter((x, x, x))


class Relabelled(tuple):
    def __getitem__(self, place: Any) -> Any:
        return 0


READ: dict[str, Callable[[], Any]] = {
    "states of a cell": lambda: cell(x, State(w, w)),
    "states of a layer": lambda: layer(x[None], State(w[None] * 2, w[None])),
    "tensors of a named tuple": lambda: torch.cat(State(w, w * 2)),
    "tensors of a list": lambda: torch.stack(Items([x, x * 2])),
    "tensors of a tuple": lambda: torch.einsum("ij,kj->ik", Places((x, x))),
    "foreach": lambda: torch._foreach_add(Places((x, x)), 1.0),
    "meshgrid": lambda: torch.meshgrid(Places((x[0], x[1])), indexing="ij"),
    "sizes": lambda: x.reshape(Places((4, 2))) + torch.zeros(Items((4, 2))),
    "dims": lambda: x.permute(Places((1, 0))).sum(Places((0,))),
    "shifts": lambda: torch.roll(x, Places((1, 1)), Items((0, 1))),
    "parts": lambda: x.split(Places((1, 1))),
    "widths": lambda: F.pad(x, Places((1, Count(1)))),
    "shape of a norm": lambda: F.layer_norm(x, Places((4,))),
    "subscript of a tuple": lambda: x[Places((0, 1))],
    "subscript of a list": lambda: x[Items([0, 1])],
    "subscript of decisions": lambda: x[Items([True, False])],
    "data": lambda: torch.tensor(Items([Items([1.0]), Places([2.0])])),
    "factors": lambda: (
        x * Factor(2.0),
        Factor(2.0) - x,
        x + Count(3),
        x ** Count(2),
        x // Count(2),
    ),
    "comparisons": lambda: (Factor(0.3) < x, x == Count(1)),
    "factors by name": lambda: torch.add(x, x, alpha=Factor(2)).clamp(Factor(0), Factor(0.5)),
    "counts": lambda: x[Count(0) : Count(1)].sum(Count(1)) + x[Count(1)].view(Count(4), Count(-1)),
    "words": lambda: F.mse_loss(x, x + 1, reduction=Word("sum")),
}


@pytest.mark.parametrize("name", READ)
def test_operators_read_what_they_hold(name: str) -> None:
    check(READ[name], [(), ()], fullgraph=True)


@pytest.mark.parametrize(
    "function",
    [
        lambda: torch.stack(Counted([x, x])),
        lambda: torch.meshgrid(Counted([x[0], x[1]]), indexing="ij"),
        lambda: x[Relabelled((0, 1))],
    ],
)
def test_classes_with_methods_of_their_own_are_left_to_eager(function: Callable[[], Any]) -> None:
    check(function, [(), ()], fullgraph=False)


def joined(state: Any, factor: Any) -> torch.Tensor:
    return torch.cat(state) * factor


def test_what_is_given_is_guarded() -> None:
    calls = [
        (State(w, w), 2.0),
        (State(w, w[:1]), 3.0),
        (Places((w, x.reshape(1, 8), w)), 3.0),
        (Items((w,)), 3.0),
        (Places((w,)), 4),
        (State(w, w * 3), 2.0),
    ]
    check(joined, calls, fullgraph=True)
