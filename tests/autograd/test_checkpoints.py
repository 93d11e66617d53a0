"""``torch.utils.checkpoint`` of functions that change something: they run again in backward, as in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import weft
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from weft_bytecode_capture import capture

Block = Callable[["World", Tensor], Tensor]


class World:
    """What a block may change."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.norm = nn.BatchNorm1d(3)
        self.buffer = torch.zeros(3)
        self.count = 0
        self.log: list[int] = []

    def seen(self) -> list[Any]:
        buffers = [b.clone() for b in (*self.norm.buffers(), self.buffer)]
        return [*buffers, self.count, list(self.log)]


def batch_norm(world: World, x: Tensor) -> Tensor:
    normed: Tensor = world.norm(x)
    return normed.relu() * x


def statistics_of_a_function(world: World, x: Tensor) -> Tensor:
    mean, variance = world.norm.running_mean, world.norm.running_var
    return F.batch_norm(x, mean, variance, training=True) * x


def buffer(world: World, x: Tensor) -> Tensor:
    world.buffer.add_(1)
    return (x * x).sin()


def view_of_a_buffer(world: World, x: Tensor) -> Tensor:
    world.buffer[1:].view(2, 1)[0] = 7 + world.buffer[1]
    return (x * x).sin()


def written_before_it_is_read(world: World, x: Tensor) -> Tensor:
    world.buffer.mul_(2)
    return (x * (world.buffer + 1)).sin()


def attribute(world: World, x: Tensor) -> Tensor:
    world.count += 1
    return (x * world.count).sin()


def container(world: World, x: Tensor) -> Tensor:
    world.log.append(len(world.log))
    return (x * len(world.log)).sin()


def its_own_memory(world: World, x: Tensor) -> Tensor:
    made = torch.zeros(x.shape)
    made[0] = x[1]
    parts = [made.add_(1), x * 2]
    parts.append(parts[0].exp())
    return torch.stack(parts).sum(0) * world.norm.training


def random_numbers(world: World, x: Tensor) -> Tensor:
    return F.dropout(x.sin(), 0.5) * x


CHANGING = [
    batch_norm, statistics_of_a_function, buffer, view_of_a_buffer, written_before_it_is_read,
    attribute, container,
]  # fmt: skip


def _step(wrap: Callable[[Any], Any], block: Block, reentrant: bool) -> list[Any]:
    world = World()
    function = wrap(
        lambda x: checkpoint(lambda y: block(world, y), x * 1.5, use_reentrant=reentrant).sum()
    )
    seen = []
    for seed in range(2):
        torch.manual_seed(seed)
        x = torch.randn(4, 3, requires_grad=True)
        outcome: Any = function(x)
        seen += [outcome.detach(), *world.seen()]
        try:
            outcome.backward()
        except RuntimeError as error:
            seen.append(str(error).partition(":")[0])
        seen += [x.grad, *world.seen(), torch.rand(1)]
    return seen


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("block", [*CHANGING, its_own_memory, random_numbers])
def test_like_eager(block: Block, reentrant: bool) -> None:
    wanted, found = _step(lambda f: f, block, reentrant), _step(weft.compile, block, reentrant)
    assert len(wanted) == len(found)
    for one, other in zip(wanted, found, strict=True):
        torch.testing.assert_close(other, one) if isinstance(one, Tensor) else None
        assert isinstance(one, Tensor) or one == other


@pytest.mark.parametrize("block", [its_own_memory, random_numbers])
def test_one_graph(block: Block) -> None:
    world = World()
    function = capture(lambda x: checkpoint(block, world, x, use_reentrant=False))
    assert not function(torch.randn(4, 3, requires_grad=True)).breaks


def test_breaks_are_named() -> None:
    world = World()
    function = capture(lambda x: checkpoint(batch_norm, world, x, use_reentrant=False))
    breaks = function(torch.randn(4, 3, requires_grad=True)).breaks
    assert breaks[0].kind == "checkpoint with effects"
    assert breaks[0].hints
    with torch.no_grad():
        assert not function(torch.randn(4, 3)).breaks


def _factor(x: Tensor, w: Tensor) -> Tensor:
    return (x @ w).sin() * x


def written_by_data(x: Tensor, w: Tensor, reentrant: bool) -> Tensor:
    y: Tensor = checkpoint(_factor, x, w, use_reentrant=reentrant)
    w.data.mul_(2)
    return y


def written_by_data_in_a_loop(x: Tensor, w: Tensor, reentrant: bool) -> Tensor:
    y: Tensor = checkpoint(_factor, x, w, use_reentrant=reentrant)
    for i in range(3):
        w.data[i].mul_(y[0].detach().sum())
    return y


def written_by_data_behind_a_break(x: Tensor, w: Tensor, reentrant: bool) -> Tensor:
    y: Tensor = checkpoint(_factor, x, w, use_reentrant=reentrant)
    torch._dynamo.graph_break()
    w.data.mul_(2)
    return y


def written_without_gradients(x: Tensor, w: Tensor, reentrant: bool) -> Tensor:
    y: Tensor = checkpoint(lambda x: _factor(x, w), x, use_reentrant=reentrant)
    with torch.no_grad():
        w[0] = 2.0
    return y


def made_and_written(x: Tensor, w: Tensor, reentrant: bool) -> Tensor:
    h = x * 2
    y: Tensor = checkpoint(_factor, h, w, use_reentrant=reentrant)
    h.detach().zero_()
    return y


def result_written(x: Tensor, w: Tensor, reentrant: bool) -> Tensor:
    y: Tensor = checkpoint(lambda x: (x @ w).exp(), x, use_reentrant=reentrant)
    return y.mul_(w)


def result_copied_over(x: Tensor, w: Tensor, reentrant: bool) -> Tensor:
    y: Tensor = checkpoint(lambda x: torch.softmax(x @ w, -1), x, use_reentrant=reentrant)
    y[0].copy_(w[0])
    return y


def one_of_two_results_written(x: Tensor, w: Tensor, reentrant: bool) -> Tensor:
    y, z = checkpoint(lambda x: ((x @ w).tanh(), x * w), x, use_reentrant=reentrant)
    with torch.no_grad():
        y.view(-1)[::2].zero_()
    return y + z


WRITTEN_LATER = [
    written_by_data, written_by_data_in_a_loop, written_by_data_behind_a_break,
    written_without_gradients, made_and_written, result_written, result_copied_over,
    one_of_two_results_written,
]  # fmt: skip


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("program", WRITTEN_LATER)
def test_what_is_read_is_written_later(program: Any, reentrant: bool) -> None:
    """Eager computes the call again from what is there by then."""

    def found(function: Any) -> list[Any]:
        x, w = (
            torch.linspace(0, 1, 9, dtype=torch.float64).view(3, 3).requires_grad_()
            for _ in range(2)
        )
        y = function(x, w, reentrant)
        try:
            y.sum().backward()
        except RuntimeError as error:
            return [str(error).partition(":")[0]]
        return [y, x.grad, w.grad, w.detach()]

    wanted, seen = found(program), found(weft.compile(program))
    assert len(wanted) == len(seen)
    for one, other in zip(wanted, seen, strict=True):
        torch.testing.assert_close(other, one) if isinstance(one, Tensor) else None
        assert isinstance(one, Tensor) or one == other


def test_a_step_behind_backward_is_in_the_same_graph() -> None:
    """Backward has been in the call by then."""
    model = nn.Linear(3, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = checkpoint(lambda y: model(y).relu(), x, use_reentrant=False).sum()
        loss.backward()
        optimizer.step()
        return loss

    assert not capture(step)(torch.randn(4, 3)).breaks


def test_results_that_nothing_saved_are_written_in_the_same_graph() -> None:
    linear = nn.Linear(3, 3)

    def block(x: Tensor) -> Tensor:
        y: Tensor = checkpoint(linear, x, use_reentrant=False)
        return F.relu(y, inplace=True)

    assert not capture(block)(torch.randn(4, 3)).breaks
