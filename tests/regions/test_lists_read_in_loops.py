"""Lists that a kept loop fills and its body reads as one tensor: one loop, one graph, as in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import weft
from weft_bytecode_capture import capture

pytestmark = pytest.mark.native

Tensor = torch.Tensor
Program = Callable[[Tensor], Any]


def decoder(x: Tensor) -> Any:
    """Ends where each row has had the token that ends it."""
    state, scores, tokens = x, [], []
    for _ in range(30):
        state = torch.tanh(state.roll(1, 1) * 1.3 + x)
        scores.append(state)
        tokens.append(state.argmax(1))
        if torch.stack(tokens, dim=1).eq(2).any(-1).all():
            break
    return torch.stack(scores, dim=1).softmax(-1), tokens


def attention(x: Tensor) -> Any:
    keys = []
    for _ in range(20):
        x = torch.tanh(x)
        keys.append(x)
        k = torch.stack(keys, 1)
        x = x + ((x.unsqueeze(1) @ k.mT).softmax(-1) @ k).squeeze(1)
    return x, keys[-1]


def begun_with_some(x: Tensor) -> Any:
    rows = [x * 2, x]
    for k in range(3, 23):
        x = torch.tanh(x + k)
        rows.append(x)
        x = x + torch.stack(rows).mean(0)
    return x, torch.cat(rows)


def columns(x: Tensor) -> Any:
    total, parts = x.sum() * 0, []
    for _ in range(20):
        x = x.cos()
        parts.append(x)
        total = total + torch.cat(parts, dim=1).amax(1).sum()
    return total


def changed_behind_the_read(x: Tensor) -> Any:
    """What a list holds is the very tensor."""
    rows = []
    with torch.no_grad():
        for _ in range(20):
            x = x.cos()
            rows.append(x)
            before = torch.stack(rows).sum(0)
            x.mul_(0.5)
            x = x + before + torch.stack(rows).sum(0)
    return x, rows[0]


KEPT = (decoder, attention, begun_with_some, columns, changed_behind_the_read)


def first_is_written(x: Tensor) -> Any:
    first = x * 2
    rows = [first]
    for _ in range(20):
        x = torch.tanh(x)
        rows.append(x)
        with torch.no_grad():
            first.add_(1)
        x = x + torch.stack(rows).mean(0)
    return x, first


def one_tensor_many_times(x: Tensor) -> Any:
    state, rows, total = x * 1, [], x * 0
    for _ in range(20):
        with torch.no_grad():
            state.add_(1)
        rows.append(state)
        total = total + torch.stack(rows).sum(0)
    return total, rows[0]


def two_each_time(x: Tensor) -> Any:
    rows, total = [], x.sum() * 0
    for _ in range(20):
        x = x.cos()
        rows.append(x)
        rows.append(x + 1)
        total = total + torch.stack(rows).sum()
    return total


def read_before(x: Tensor) -> Any:
    rows, total = [x], x.sum() * 0
    for _ in range(20):
        total = total + torch.stack(rows).sum()
        x = x.cos()
        rows.append(x)
    return total


def every_other(x: Tensor) -> Any:
    rows, total = [], x.sum() * 0
    for k in range(0, 40, 2):
        x = x.cos() + k
        rows.append(x)
        total = total + torch.stack(rows).sum()
    return total


OTHERS = (first_is_written, one_tensor_many_times, two_each_time, read_before, every_other)


def made(rows: int) -> Tensor:
    return torch.randn(rows, 5, generator=torch.Generator().manual_seed(rows)).double()


@pytest.mark.parametrize("function", KEPT + OTHERS, ids=lambda f: f.__name__)
def test_results_are_eagers(function: Program) -> None:
    compiled = weft.compile(function, fullgraph=True)
    for rows in (3, 2, 7, 1):
        torch.testing.assert_close(compiled(made(rows)), function(made(rows)))


@pytest.mark.parametrize("function", KEPT, ids=lambda f: f.__name__)
def test_loops_are_kept(function: Program) -> None:
    (graph,) = capture(function)(made(3)).graphs
    assert any("while_loop" in str(node.target) for node in graph.graph_module.graph.nodes)


@pytest.mark.parametrize(
    "function", [decoder, attention, begun_with_some, columns], ids=lambda f: f.__name__
)
def test_gradients_are_eagers(function: Program) -> None:
    compiled = weft.compile(function, fullgraph=True)
    for rows in (3, 2):
        got, want = made(rows).requires_grad_(), made(rows).requires_grad_()
        for called, given in ((compiled, got), (function, want)):
            result = called(given)
            first = result[0] if isinstance(result, tuple) else result
            first.square().sum().backward()
        torch.testing.assert_close(got.grad, want.grad)
