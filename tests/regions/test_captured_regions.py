"""Programs with loops and branches compiled whole: one graph, eager's results and effects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import weft
from torch._higher_order_ops import while_loop
from weft_bytecode_capture import capture


def check(function: Callable[..., Any], *arguments: torch.Tensor) -> None:
    """Compiled in one graph (fullgraph) with results and effects of eager, twice."""
    theirs = [a.clone() for a in arguments]
    compiled = weft.compile(function, fullgraph=True, options={"keep_control_flow": True})
    with torch.no_grad():
        wanted = function(*theirs)
        for _ in range(2):
            mine = [a.clone() for a in arguments]
            got = compiled(*mine)
            torch.testing.assert_close(got, wanted, equal_nan=True)
            torch.testing.assert_close(mine, theirs, equal_nan=True)


def sequence(x: torch.Tensor, w: torch.Tensor) -> Any:
    h, outs = torch.zeros(4), []
    for row in x:
        h = torch.tanh(row @ w + h)
        outs.append(h)
    return torch.stack(outs), h


def table(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    out = torch.zeros(24, 24)
    for i in range(24):
        for j in range(24):
            out[i, j] = (x[i] * w[0]).sum() + j
    return out


def sinkhorn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    kernel = torch.exp(-x.abs())
    u, v = torch.ones(24), torch.ones(4)
    for _ in range(200):
        before = u
        u = (1 / 24) / (kernel @ v)
        v = (1 / 4) / (kernel.t() @ u)
        if (u - before).abs().max() < 1e-5:
            break
    return u[:, None] * kernel * v


def decode(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    keys, values, out = (torch.zeros(24, 4) for _ in range(3))
    h = x[0]
    for t in range(24):
        keys[t] = h @ w
        values[t] = torch.sin(h @ w)
        scores = (keys @ h).masked_fill(torch.arange(24) > t, float("-inf")).softmax(0)
        h = torch.tanh(scores @ values + h + x[t])
        out[t] = h
        if h.sum() > 2.0:
            break
    return out


def converging(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    a = x + 0
    while (a - a.mean(0)).abs().max() > 1e-2:
        a = a * 0.5 + a.mean(0) * 0.5 if a.max() > 1 else a * 0.7
    return a + w[0]


def early(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    if x.sum() > 0:
        x.mul_(2)
        return (x @ w).softmax(-1)
    return x @ w


def sampler(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    trajectory = torch.empty(200, 24, 4)
    for step in range(200):
        x = x - 0.01 * torch.tanh(x @ w)
        trajectory[step] = x
    return trajectory


def found(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(4)
    for row in x:
        total = total + (row @ w).relu()
        if total.sum() > 5:
            return total * 2
    return total - 1


def state_in_a_dict(x: torch.Tensor, w: torch.Tensor) -> Any:
    state = {"h": torch.zeros(4), "seen": [x[0]]}
    for row in x:
        state["h"] = torch.tanh(row @ w + state["h"])
        if state["h"].sum() > 0:
            state["seen"][0] = state["h"]
        state["h"].add_(0.1)
    return state["h"] * 2, state["seen"][0] * 3  # one tensor, or two


def either_is_written(x: torch.Tensor, w: torch.Tensor) -> Any:
    y, z = x[0] * 1, x[1] * 1
    for row in x:
        if row.sum() > 2:
            y, z = z, row * 2
        y[1:].mul_(0.9)
        z.add_(y)
    return y + 0, z + 0


def own_operators(x: torch.Tensor, w: torch.Tensor) -> Any:
    x = torch.cond(x.sum() > 0, lambda a: (a @ w).sin(), lambda a: a.cos(), (x,))
    return while_loop(lambda i, a: i < 10, lambda i, a: (i + 1, a * 1.1), (torch.tensor(0), x))


@pytest.mark.parametrize(
    "function",
    [
        *(sequence, table, sinkhorn, decode, converging, early, sampler),
        *(found, state_in_a_dict, either_is_written, own_operators),
    ],
)
@pytest.mark.parametrize("scale", [1.0, -1.0])
def test_programs(function: Callable[..., Any], scale: float) -> None:
    check(function, torch.rand(24, 4) * scale, torch.randn(4, 4))


@pytest.mark.parametrize("scale", [1.0, float("nan"), 1 + 1e-6])
def test_all_close_is_answered_in_the_graph(scale: float) -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> Any:
        found = torch.allclose(x, y, rtol=1e-4, equal_nan=True)
        steps = 0
        while not torch.allclose(y, y * 0, atol=0.1, equal_nan=True):
            y = y / 2
            steps += 1
        return found, torch.allclose(x[:0], y[:0]), y + 1 if torch.allclose(x, y) else x * 2, steps

    x = torch.rand(3) * 50
    found = capture(function)(x, x * scale)
    torch.testing.assert_close(found.result, function(x, x * scale), equal_nan=True)
    assert (len(found.graphs), found.breaks) == (1, ())


def test_all_close_of_other_dtypes_raises() -> None:
    with pytest.raises(RuntimeError, match="Float did not match Double"):
        capture(lambda x: torch.allclose(x, x.double()))(torch.rand(3))
