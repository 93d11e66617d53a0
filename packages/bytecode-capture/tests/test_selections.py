"""Elements at a number that differs from call to call: as in plain Python, and alike ones share code."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from differential import outcome, same
from torch import nn
from weft_bytecode_capture import CaptureOptions, CaptureReport, compile_frames


class Shifted(nn.ModuleList):
    def __getitem__(self, index: Any) -> Any:
        return super().__getitem__((index + 1) % len(self))


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(3))
        self.calls = torch.zeros(1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total += x
        self.calls = self.calls + 1
        return x * self.total


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(6))
        self.counting = nn.ModuleList(Counting() for _ in range(6))
        self.shifted = Shifted(nn.Linear(3, 3) for _ in range(6))
        self.named = nn.ModuleList(nn.Linear(3, 3) for _ in range(3))
        self.named.add_module("5", nn.Linear(3, 3))
        self.mixed = nn.ModuleList([nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3, bias=False)] * 2)
        self.sequential = nn.Sequential(*(nn.Linear(3, 3) for _ in range(6)))
        self.kinds = ["full", "sliding", "sliding", "full", "sliding", "full"]
        self.sizes = [1, 2, 3, 4, 5, 6]
        self.pairs = [(torch.full((3,), float(i)), torch.ones(3) * i) for i in range(6)]
        self.cells = [[torch.zeros(3)] for _ in range(6)]
        self.some = [None, torch.ones(3), None, torch.zeros(3), 2.5, "text"]


def member(model, x, i):
    return model.layers[i](x)


def next_member(model, x, i):
    return model.layers[i + 1](x) + model.layers[i](x)


def negative_member(model, x, i):
    return model.layers[i - 3](x)


def member_that_writes(model, x, i):
    return model.counting[i](x) + model.counting[0](x)


def two_members_that_write(model, x, i):
    return model.counting[i](x) + model.counting[i + 1](x) * model.counting[i].total


def shifted_member(model, x, i):
    return model.shifted[i](x)


def named_member(model, x, i):
    return model.named[i](x)


def mixed_member(model, x, i):
    return model.mixed[i](x)


def sequential_member(model, x, i):
    return model.sequential[i](x)


def kind(model, x, i):
    return x * 2 if model.kinds[i] == "full" else x - 1


def size(model, x, i):
    return x * model.sizes[i], model.sizes[i]


def pair(model, x, i):
    first, second = model.pairs[i]
    return x * first + second, model.pairs[i] is model.pairs[0], first is model.pairs[2][0]


def cell_written(model, x, i):
    model.cells[i].append(x + 1)
    model.cells[0][0].add_(1)
    return model.cells[i][0] * 2


def some_element(model, x, i):
    value = model.some[i]
    return (x, None) if value is None else (x, value)


def element_passed_on(model, x, i):
    return x + 1, model.some[i], model.cells[i]


def after_a_change(model, x, i):
    model.sizes.append(9)
    model.sizes[i] = 8
    found = model.sizes[i], model.sizes[i + 1], model.sizes[-1]
    model.sizes.pop()
    return x + 1, found


def element_replaced(model, x, i):
    old = model.some[i]
    model.some[i] = x
    return x + 1, model.some[i] is x, old is model.some[i]


def is_another(model, x, i):
    return x + 1, model.layers[i] is model.layers[1], model.cells[i] is model.cells[1]


def lengths(model, x, i):
    """Of a list that grows from call to call, before and after it grows in the call."""
    before = len(model.sizes)
    model.sizes.append(i)
    after = len(model.sizes)
    if after > 9:
        x = x * 2
    return x * before, before, after, before < 8, [0] * after, model.sizes[-1]


PROGRAMS = [
    lengths,
    member, next_member, negative_member, member_that_writes, two_members_that_write, shifted_member,
    named_member, mixed_member, sequential_member, kind, size, pair, cell_written, some_element,
    element_passed_on, after_a_change, element_replaced, is_another,
]  # fmt: skip


def reports_of(program: Callable[..., Any], indices: list[int]) -> list[CaptureReport]:
    """What is compiled for calls with ``indices``, each on a model like that of the plain call."""
    model = Model()
    plain = copy.deepcopy(model)
    reports: list[CaptureReport] = []
    compiled = compile_frames(
        program, lambda graph, inputs: graph.forward, CaptureOptions(), None, reports.append
    )
    for index in indices:
        x = torch.randn(3)
        wanted = outcome(program, (plain, x.clone(), index))
        found = outcome(compiled, (model, x.clone(), index))
        assert same(wanted[:2], found[:2]), (index, wanted[1], found[1])
        assert same(dict(plain.state_dict()), dict(model.state_dict()))
        assert same((plain.cells, plain.some, plain.sizes), (model.cells, model.some, model.sizes))
    return reports


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_as_plain_python(program: Callable[..., Any]) -> None:
    reports_of(program, [2, 3, 4, 1, 0, 5, 2, 6, -1, 3, 17, True, 0])


@pytest.mark.parametrize(
    "program", [member, next_member, size], ids=lambda program: program.__name__
)
def test_alike_elements_share_code(program: Callable[..., Any]) -> None:
    """One for the first index, two at the most for the others."""
    assert len(reports_of(program, [2, 3, 4, 1, 3])) <= 3
