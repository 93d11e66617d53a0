"""One function called with many modules: two compilations serve all that are built alike."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable

import pytest
import torch
from test_symbolic_sizes import Compiled, assert_same
from torch import nn


class Block(nn.Module):
    def __init__(self, bias: bool = True) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3, bias=bias)
        self.norm = nn.BatchNorm1d(3)
        self.register_buffer("scale", torch.rand(3))
        self.offset = torch.rand(3)
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x + self.norm(self.linear(x)).relu() * self.scale + self.offset


def sequence(names: str) -> nn.Sequential:
    layers = {"a": nn.Linear(3, 3), "b": nn.Tanh()}
    return nn.Sequential(OrderedDict((name, layers[name]) for name in names))


def tied() -> Block:
    block = Block()
    block.norm.weight = block.linear.bias
    return block


def hooked() -> Block:
    block = Block()
    block.linear.register_forward_hook(lambda module, arguments, result: result * 2)
    return block


def shadowed() -> Block:
    block = Block()
    block.__dict__["scale"] = torch.full((3,), 7.0)  # found before the buffer
    return block


def frozen() -> Block:
    return Block().requires_grad_(False)


def check(compiled: Compiled, module: nn.Module) -> None:
    """Results, gradients and buffers as a plain run's, from equal modules."""
    plain = copy.deepcopy(module)
    x, y = (torch.linspace(-1, 2, 12).reshape(4, 3).requires_grad_() for _ in range(2))
    found, wanted = compiled.compiled(module, x), compiled.function(plain, y)
    assert_same(found, wanted)
    found.sum().backward()
    wanted.sum().backward()
    assert_same(x.grad, y.grad)
    pairs = zip(module.state_dict().values(), plain.state_dict().values(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    for a, b in zip(module.parameters(), plain.parameters(), strict=True):
        assert_same(a.grad, b.grad)
    assert getattr(module, "calls", 0) == getattr(plain, "calls", 0)


def call(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return module(x)


def test_two_compilations_serve_all_layers() -> None:
    compiled = Compiled(call)
    blocks = [Block() for _ in range(10)]
    for _ in range(2):
        for block in blocks:
            check(compiled, block)
            block.zero_grad()
            block.calls = 0  # a number that changes is another matter
    assert compiled.count == 2


@pytest.mark.parametrize(
    "other",
    [
        lambda: Block().eval(), lambda: Block(bias=False), tied, hooked, shadowed, frozen,
        lambda: sequence("ab"), lambda: sequence("ba"), lambda: sequence("a"), lambda: Block().double(),
    ],
)  # fmt: skip
def test_modules_built_otherwise_are_told_apart(other: Callable[[], nn.Module]) -> None:
    def function(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return module(x.to(next(module.parameters()).dtype))

    compiled = Compiled(function, fullgraph=False)
    for make in (Block, Block, other, Block, lambda: sequence("ab"), other, other, Block):
        check(compiled, make())


def test_a_method_compiled_in_its_class_serves_its_instances() -> None:
    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linears = nn.ModuleList(nn.Linear(3, 3) for _ in range(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for linear in self.linears:
                x = linear(x).tanh()
            return x

    compiled = Compiled(Layer.forward)
    for _ in range(5):
        check(compiled, Layer())
    longer = Layer()
    longer.linears.append(nn.Linear(3, 3))
    check(compiled, longer)
    assert compiled.count == 3


def test_one_module_in_two_places_is_told_from_two() -> None:
    def function(pair: nn.ModuleList, x: torch.Tensor) -> torch.Tensor:
        first, second = pair[0], pair[1]
        first.calls += 1
        return first.linear(x) * second.calls

    compiled = Compiled(function)
    shared = Block()
    for pair in ([Block(), Block()], [Block(), Block()], [shared, shared], [Block(), Block()]):
        found, wanted = nn.ModuleList(pair), copy.deepcopy(nn.ModuleList(pair))
        x = torch.ones(2, 3)
        assert_same(compiled.compiled(found, x), function(wanted, x))
        assert [block.calls for block in found] == [block.calls for block in wanted]
