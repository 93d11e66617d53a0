"""Operators with arguments that are numbers a loop changes: eager's results, effects and gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import weft
from weft_bytecode_capture import capture

from .test_gradients import check as check_gradients
from .test_gradients import compiled_regions as compiled_regions

Operation = Callable[[torch.Tensor, torch.Tensor, float], torch.Tensor]


def _put(x: torch.Tensor, *place: Any) -> torch.Tensor:
    made = x.clone()
    made[place[:-1]] = place[-1]
    return made


FLOATING: dict[str, Operation] = {
    "add": lambda x, y, t: torch.add(x, y, alpha=-t),
    "sub": lambda x, y, t: x.sub(y, alpha=t),
    "add_": lambda x, y, t: x.clone().add_(y, alpha=t),
    "sub_": lambda x, y, t: x.clone().sub_(y, alpha=t),
    "mul_": lambda x, y, t: x.clone().mul_(t),
    "div_": lambda x, y, t: x.clone().div_(t),
    "clamp_": lambda x, y, t: x.clone().clamp_(max=t),
    "clamp_ of both": lambda x, y, t: x.clone().clip_(-t, t),
    "fill_": lambda x, y, t: x.clone().fill_(t),
    "masked_fill": lambda x, y, t: x.masked_fill(y > 0, t),
    "masked_fill_": lambda x, y, t: x.clone().masked_fill_(y > 0, value=t),
    "setitem": lambda x, y, t: _put(x, ..., t),
    "setitem of a mask": lambda x, y, t: _put(x, (y > 0).expand_as(x), t),
    "full_like": lambda x, y, t: x + torch.full_like(x, t),
    "new_full": lambda x, y, t: x + y.new_full((), t),
}

EXACT: dict[str, Operation] = {
    "addcmul": lambda x, y, t: torch.addcmul(x, x, y, value=t),
    "addcmul_": lambda x, y, t: x.clone().addcmul_(x, y, value=-t),
    "addcdiv": lambda x, y, t: torch.addcdiv(x, y, x, value=t),
    "addcdiv_": lambda x, y, t: x.clone().addcdiv_(y, y, value=t),
    "lerp": lambda x, y, t: torch.lerp(x, y, t),
    "lerp_": lambda x, y, t: x.clone().lerp_(y, weight=t),
}

ANY: dict[str, Operation] = {
    "mul": lambda x, y, t: x.mul(t),
    "rounded sum": lambda x, y, t: torch.add(x, t),
    "difference": lambda x, y, t: torch.subtract(x, other=t),
    "div": lambda x, y, t: torch.true_divide(x, t),
    "clamp": lambda x, y, t: x.clamp(-t, t),
    "clip": lambda x, y, t: torch.clip(x, max=t),
    "clamp_min": lambda x, y, t: torch.clamp_min(x, t),
    "clamp_max": lambda x, y, t: x.clamp_max(t),
    "clamp with a constant": lambda x, y, t: torch.clamp(x, 0, t),
    "clamp from above": lambda x, y, t: x.clamp(t, -1),
    "where": lambda x, y, t: torch.where(y > 0, x, t),
    "where otherwise": lambda x, y, t: torch.where(y > 0, t, x),
    "where of a method": lambda x, y, t: x.where(y > 0, t),
    "gt": lambda x, y, t: x * x.gt(t),
    "le": lambda x, y, t: x * torch.le(x, t),
    "full": lambda x, y, t: x + torch.full((), t),
    "full of a dtype": lambda x, y, t: x + torch.full(x.shape, t, dtype=torch.float64),
    "tensor": lambda x, y, t: x + torch.tensor(t),
    "max": lambda x, y, t: x * max(t, 0.25),
    "min": lambda x, y, t: x * min(0.25, t, -t),
}

OPERATIONS = {**FLOATING, **EXACT, **ANY}


def repeated(operation: Operation) -> Callable[..., Any]:
    """The operation in a loop that halves the number."""

    def run(x: torch.Tensor, y: torch.Tensor, t: float) -> Any:
        total = operation(x, y, t)
        for _ in range(20):
            total = total * 0.5 + operation(x, y, t)
            t = t * 0.5
        return total, t

    return run


def check(operation: Operation, x: torch.Tensor, y: torch.Tensor, t: float) -> None:
    program = repeated(operation)
    with torch.no_grad():
        wanted = program(x.clone(), y.clone(), t)
        found = capture(program)(x.clone(), y.clone(), t)
    torch.testing.assert_close(found.result, wanted, equal_nan=True)
    assert found.result[0].stride() == wanted[0].stride()
    assert not found.reports[0].unkept_regions
    (graph,) = found.graphs
    assert "while_loop" in [str(node.target) for node in graph.graph_module.graph.nodes]


SPECIAL = (0.0, -0.0, 0.25, -1.5, 3.0, float("nan"), float("inf"), -float("inf"))


def values(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """All pairs of special values."""
    if not dtype.is_floating_point:
        return torch.arange(-8, 8).to(dtype), torch.arange(16).flip(0).to(dtype) - 7
    first, second = torch.meshgrid(*[torch.tensor(SPECIAL, dtype=dtype)] * 2, indexing="ij")
    return first.contiguous(), second.t()


@pytest.mark.parametrize("start", [0.5, float("nan"), -float("inf")])
@pytest.mark.parametrize("name", OPERATIONS)
def test_special_values(name: str, start: float) -> None:
    check(OPERATIONS[name], *values(torch.float64), start)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *((name, torch.float32) for name in OPERATIONS),
        *((name, torch.bfloat16) for name in {**FLOATING, **ANY}),
        *((name, torch.int64) for name in ANY),
    ],
)
def test_dtypes(name: str, dtype: torch.dtype) -> None:
    check(OPERATIONS[name], *values(dtype), 0.7)


@pytest.mark.parametrize("name", [n for n in OPERATIONS if n != "setitem of a mask"])
def test_shapes(name: str) -> None:
    for x, y in (
        (torch.rand(()), torch.rand(())),
        (torch.rand(0, 3), torch.rand(3)),
        (torch.rand(4, 3).t(), torch.rand(4)),
        (torch.rand(3, 4)[:, ::2], torch.rand(3, 1).expand(3, 2)),
    ):
        check(OPERATIONS[name], x.double(), y.double() - 0.5, 0.5)


@pytest.mark.parametrize(
    "operation",
    [
        lambda x, y, t: x.clone().clamp_(max=t),
        lambda x, y, t: x.clone().mul_(t),
        lambda x, y, t: torch.add(x, y, alpha=t),
        lambda x, y, t: torch.clamp(x, y.double(), t),
    ],
)
def test_what_eager_refuses(operation: Operation) -> None:
    x, y = values(torch.int64)
    program = repeated(operation)
    with pytest.raises((RuntimeError, TypeError)) as wanted:
        program(x, y, 0.5)
    with pytest.raises(wanted.type):
        capture(program)(x, y, 0.5)


@pytest.mark.parametrize("name", [n for n in OPERATIONS if n.endswith("_")])
def test_gradients_in_place(name: str) -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        for _ in range(20):
            t = y.detach().amax().item()
        return OPERATIONS[name](x, y, t)

    def make(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
        torch.manual_seed(seed)
        x = torch.randn(20, 5, dtype=torch.float64, requires_grad=True)
        return x, torch.rand(5, dtype=torch.float64, requires_grad=True)

    check_gradients(program, make, lengths=range(2))


def _descent(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Steps that get shorter, momentum that decays, bounds that close in; numbers that data gives."""
    rate, bound, velocity = 0.1, w.detach().abs().max().item(), torch.zeros_like(x[0])
    h = x[0] * 1
    for t in range(x.shape[0]):
        velocity = velocity.mul(1 - rate).add(torch.sin(h) * w, alpha=-rate)
        h = torch.add(h, velocity, alpha=rate).clamp(min=-bound, max=bound)
        h = torch.where(x[t] > 0, h, rate)
        bound = bound * 0.99
        rate = rate * 0.9
    return h


def _momentum(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """In place, with a number that the loop changes and bounds that it does."""
    rate, velocity = 0.1, torch.zeros_like(x)
    for t in range(x.shape[0]):
        velocity.mul_(1 - rate).add_(torch.sin(x) * w, alpha=-rate)
        velocity[t].clamp_(max=rate)
        rate = max(rate * 0.9, 0.02)
    return velocity


def _rescaled(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """The number is read in the loop."""
    h = x[0]
    for t in range(x.shape[0]):
        h = torch.add(h * w, x[t], alpha=0.5)
        size = h.detach().abs().max().item()
        h = torch.div(h, size + 1).clamp(max=size * 0.4)
    return h


def _until_small(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    h, size = x[0], x[0].detach().norm().item()
    while size > 0.5:
        h = torch.lerp(h, h.sin() * w * 0.1, 0.3).masked_fill(h > size, size)
        size = h.detach().norm().item()
    return h * 2


@pytest.mark.parametrize("program", [_descent, _momentum, _rescaled, _until_small])
def test_training(program: Callable[..., Any], compiled_regions: list[int]) -> None:
    def make(seed: int) -> Any:
        torch.manual_seed(seed)
        x = torch.randn(20, 5, dtype=torch.float64, requires_grad=True)
        return x, torch.rand(5, dtype=torch.float64, requires_grad=True)

    check_gradients(program, make, lengths=range(3))
    assert compiled_regions == [1]


def test_a_graph_of_numbers_only() -> None:
    def program(x: torch.Tensor, n: int) -> torch.Tensor:
        for _ in range(n % 9):
            pass
        return missing  # type: ignore[name-defined]  # noqa: F821

    compiled = weft.compile(program, dynamic=True)
    for n in (4, 5):
        with pytest.raises(NameError, match="missing"):
            compiled(torch.ones(3), n)
