"""Stacks of layers compiled by the layer: what eager gives, and one program for all that are alike."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import weft
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional
from weft.options import CompileOptions
from weft.pipeline import Pipeline
from weft.program_cache import ProgramCache
from weft.repeated_blocks import MIN_BLOCKS

WIDTH = 8


class Layer(nn.Module):
    """A residual layer; ``kind`` says what is particular about it."""

    def __init__(self, kind: str = "plain") -> None:
        super().__init__()
        self.kind = kind
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)
        self.register_buffer("seen", torch.zeros(WIDTH))
        self.table = nn.Embedding(3, WIDTH)

    def forward(self, x: torch.Tensor, first: torch.Tensor) -> torch.Tensor:
        y = self.down(functional.gelu(self.up(self.norm(x))))
        if self.kind == "dropout":
            y = functional.dropout(y, 0.5, self.training)
        if self.kind == "other":
            y = y.tanh() * 2
        if self.kind == "first":
            y = y + first
        if self.kind == "index":
            y = y + self.table(first.argmax(-1) // 3 + 1)
        if self.kind == "buffer":
            self.seen.add_(y.detach().mean((0, 1)))
        if self.kind == "write":
            y.mul_(2)
        x = x + y
        return x * 0.5 + (x.sin() * x.cos()) * 0.25


class Stack(nn.Module):
    """Layers in a row; ``gives``: what it returns besides the last one's result."""

    def __init__(self, kinds: list[str], gives: str = "last", shared: int = 0) -> None:
        super().__init__()
        self.layers = nn.ModuleList(map(Layer, kinds))
        for number in range(1, shared + 1):
            self.layers[number].up.weight = self.layers[0].up.weight
        self.gives = gives
        self.double()  # sums in another order round otherwise

    def forward(self, x: torch.Tensor) -> Any:
        first = x = x * 2
        hidden = []
        for layer in self.layers:
            x = layer(x, first)
            hidden.append(x)
        if self.gives == "views":
            return [h.transpose(0, 1) for h in hidden], x, x[0]
        return (x, *hidden) if self.gives == "hidden" else (x,)


class Compiled:
    """A stack compiled by the layer, with programs in a folder of its own."""

    def __init__(self, folder: Path, function: Callable[..., Any]) -> None:
        self.programs = ProgramCache(folder)
        options = CompileOptions(share_blocks=True, strict=True)
        pipeline = Pipeline(options, raise_errors=True, programs=self.programs)
        self.run = weft.compile(function, backend=pipeline, fullgraph=True)

    @property
    def made_and_found(self) -> tuple[int, int]:
        """Programs that were compiled, and that were found."""
        return self.programs.counts["stored"], self.programs.counts["hit"]


def leaves(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [leaf for item in value for leaf in leaves(item)]


def outcome(
    run: Callable[..., Any], model: nn.Module, x: torch.Tensor, *, train: bool
) -> list[torch.Tensor]:
    """Results, what they share, gradients and buffers of two calls."""
    found: list[torch.Tensor] = []
    for _ in range(2):
        torch.manual_seed(1)
        x = x.detach().clone().requires_grad_(train)
        with torch.set_grad_enabled(train):
            results = leaves(run(x))
            found += [r.detach().clone() for r in results]
            for r in results:
                assert r.requires_grad is train
            pointers = [r.untyped_storage().data_ptr() for r in results]
            found.append(torch.tensor([pointers.index(p) for p in pointers]))
            found.append(torch.tensor([r.stride() for r in results if r.dim() == 3]))
            if train:
                sum((k + 1) * r.square().sum() for k, r in enumerate(results)).backward()
                assert x.grad is not None
                found.append(x.grad)
    found += [p.grad.clone() for p in model.parameters() if p.grad is not None]
    return [*found, *(buffer.clone() for buffer in model.buffers())]


def check(folder: Path, model: nn.Module, *, train: bool) -> tuple[int, int]:
    """Compare with eager; programs made and found."""
    other = copy.deepcopy(model)
    x = torch.randn(2, 3, WIDTH, dtype=torch.double)
    compiled = Compiled(folder, other)
    expected = outcome(model, model, x, train=train)
    actual = outcome(compiled.run, other, x, train=train)
    torch.testing.assert_close(actual, expected)
    return compiled.made_and_found


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("gives", ["last", "hidden", "views"])
def test_layers_that_are_alike_have_one_program(tmp_path: Path, gives: str, train: bool) -> None:
    layers = MIN_BLOCKS + 2
    made, found = check(tmp_path, Stack(["plain"] * layers, gives).train(train), train=train)
    assert made <= 3
    assert found >= layers - 2


@pytest.mark.parametrize(
    ("kinds", "shared"),
    [
        (["first"] * 7, 0),  # what the first layer takes, all take
        (["plain"] * 3 + ["other"] + ["plain"] * 6, 0),
        (["plain", "other"] * 6, 0),
        (["plain"] * 7, 6),  # one weight for all
        (["plain"] * 7, 3),
        (["dropout"] * 7, 0),
    ],
    ids=["residual", "one differs", "pairs", "tied", "some tied", "dropout"],
)
@pytest.mark.parametrize("train", [False, True])
def test_stacks_of_other_forms(tmp_path: Path, kinds: list[str], shared: int, train: bool) -> None:
    made, found = check(tmp_path, Stack(kinds, "hidden", shared).train(train), train=train)
    assert made < len(kinds)
    assert found >= 3


@pytest.mark.parametrize("kind", ["buffer", "write"])
def test_a_graph_that_writes_is_one_program(tmp_path: Path, kind: str) -> None:
    assert check(tmp_path, Stack([kind] * 7), train=True) == (1, 0)


def test_few_layers_are_one_program(tmp_path: Path) -> None:
    assert check(tmp_path, Stack(["plain"] * (MIN_BLOCKS - 1)), train=False) == (1, 0)


def test_layers_without_gradients_have_programs_of_their_own(tmp_path: Path) -> None:
    model = Stack(["plain"] * 8)
    model.layers[3].requires_grad_(False)
    made, found = check(tmp_path, model, train=True)
    assert made >= 3
    assert found >= 3


def test_modes_that_reach_into_the_layers_are_one_program(tmp_path: Path) -> None:
    class WithoutGradients(Stack):
        def forward(self, x: torch.Tensor) -> Any:
            with torch.no_grad():
                (y,) = super().forward(x)
            return (x + y,)

    assert check(tmp_path, WithoutGradients(["plain"] * 7), train=True) == (1, 0)


def test_modes_before_the_layers_are_none_of_theirs(tmp_path: Path) -> None:
    class Scaled(Stack):
        def forward(self, x: torch.Tensor) -> Any:
            with torch.no_grad():
                scale = x.abs().mean()
            return super().forward(x * scale)

    made, found = check(tmp_path, Scaled(["plain"] * 7), train=True)
    assert made <= 3
    assert found >= 5


def test_backward_runs_twice_and_is_differentiated(tmp_path: Path) -> None:
    model = Stack(["plain"] * 7)
    compiled = Compiled(tmp_path, copy.deepcopy(model))

    def gradients(run: Callable[..., Any]) -> list[torch.Tensor]:
        torch.manual_seed(2)
        x = torch.randn(2, 3, WIDTH, dtype=torch.double, requires_grad=True)
        (y,) = run(x)
        (once,) = torch.autograd.grad(y.sum(), x, retain_graph=True)
        (twice,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(twice.square().sum(), x)
        return [once, twice.detach(), second]

    torch.testing.assert_close(gradients(compiled.run), gradients(model))


def test_sizes_that_vary(tmp_path: Path) -> None:
    model = Stack(["plain"] * 7)
    compiled = Compiled(tmp_path, model)
    with torch.no_grad():
        for rows in (2, 5, 3):
            x = torch.randn(rows, 3, WIDTH, dtype=torch.double)
            torch.testing.assert_close(compiled.run(x), model(x))


def test_an_index_out_of_range_raises_as_in_eager(tmp_path: Path) -> None:
    model = Stack(["index"] * 7)
    compiled = Compiled(tmp_path, model)
    x = torch.zeros(2, 3, WIDTH, dtype=torch.double)
    with torch.no_grad():
        torch.testing.assert_close(compiled.run(x), model(x))
        x[..., -1] = 1
        with pytest.raises(IndexError) as expected:
            model(x)
        with pytest.raises(IndexError) as raised:
            compiled.run(x)
        assert str(raised.value) == str(expected.value)
        x[..., -1] = 0
        torch.testing.assert_close(compiled.run(x), model(x))


def test_a_result_that_is_written_to_before_backward(tmp_path: Path) -> None:
    """What a layer gave, and backward of the next reads: eager's error, and none behind the last."""
    for position, fails in ((2, True), (-1, False)):
        for run in (Stack(["plain"] * 7, "hidden"), None):
            model = run or Compiled(tmp_path, Stack(["plain"] * 7, "hidden")).run
            results = model(torch.randn(2, 3, WIDTH, dtype=torch.double, requires_grad=True))
            results[position].mul_(2)
            if fails:
                with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                    results[0].sum().backward()
            else:
                results[0].sum().backward()


@given(data=st.data())
@settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_random_stacks(tmp_path: Path, data: st.DataObject) -> None:
    kinds = data.draw(
        st.lists(
            st.sampled_from(["plain", "plain", "plain", "other", "first", "dropout"]),
            min_size=7,
            max_size=12,
        )
    )
    gives = data.draw(st.sampled_from(["last", "hidden", "views"]))
    shared = data.draw(st.integers(0, 6))
    train = data.draw(st.booleans())
    check(tmp_path, Stack(kinds, gives, shared).train(train), train=train)
