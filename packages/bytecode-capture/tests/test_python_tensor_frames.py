"""Functions of tensors, captured end to end: one graph, the results of eager."""

from __future__ import annotations

import torch
from weft_bytecode_capture import capture


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(3, 3) for _ in range(2))

    def forward(self, x):
        for i, layer in enumerate(self.layers):
            x = torch.relu(layer(x)) + i
        return x


def looped(x, y):
    for i in range(3):
        x = x * y + i
    return [x, y, x]


def variadic(*tensors, **named):
    return sum(tensors) * named["scale"]


def check_one_graph(function, *args, **kwargs):
    captured = capture(function)
    first = captured(*args, **kwargs)
    assert len(first.graphs) == 1
    assert not first.breaks
    torch.testing.assert_close(first.result, function(*args, **kwargs), equal_nan=True)
    other = [argument + 1 for argument in args]
    again = captured(*other, **kwargs)
    assert not again.reports
    torch.testing.assert_close(again.result, function(*other, **kwargs), equal_nan=True)


def test_expression():
    check_one_graph(lambda x, y: torch.softmax(x * y + 1, -1), torch.randn(2, 3), torch.randn(3))


def test_loop_with_special_values():
    x = torch.tensor([float("nan"), float("inf"), -0.0])
    check_one_graph(looped, x, torch.ones(()))


def test_tensors_in_argument_containers():
    check_one_graph(variadic, torch.randn(3), torch.randn(3), scale=torch.randn(3))


def test_module_is_inlined():
    check_one_graph(Block(), torch.randn(2, 3))
