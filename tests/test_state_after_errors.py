"""What a frame did before an operator raised stays done, random draws and writes beside it too."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import weft
from torch.nn import functional as F


class Holder:
    count = 0


State = tuple[list[Any], dict[str, Any], Holder]

DRAWS: dict[str, Callable[[torch.Tensor], Any]] = {
    "nothing": lambda x: x * 2,
    "rand": lambda x: x + torch.rand(4),
    "dropout": lambda x: F.dropout(x, 0.5),
    "normal of a copy": lambda x: x.clone().normal_(),
    "bernoulli in place": lambda x: x.bernoulli_(0.5),
    "randperm": lambda x: torch.randperm(8),
    "write": lambda x: x.add_(1),
}


def appends(state: State, drawn: Any) -> None:
    state[0].append(drawn)


def stores(state: State, drawn: Any) -> None:
    state[1]["drawn"] = 1


def counts(state: State, drawn: Any) -> None:
    state[2].count += 1


def nothing(state: State, drawn: Any) -> None:
    pass


def loops(state: State, drawn: Any) -> None:
    while len(state[0]) < 5:
        state[0].append(len(state[0]))


FAILS: dict[str, Callable[[torch.Tensor], Any]] = {
    "cholesky": lambda x: torch.linalg.cholesky(-torch.eye(2) * x.abs().amax()),
    "index": lambda x: x[torch.full((1,), 9) * x.numel()],
    "scatter": lambda x: x.scatter(0, torch.full((1,), 9) * x.numel(), 1.0),
    "scatter of no dimension": lambda x: x.sum().scatter(0, torch.full((1,), 9) * x.numel(), 1.0),
    "division": lambda x: x.numel() // torch.zeros_like(x).long(),
    "solve": lambda x: torch.linalg.solve(x.new_zeros(2, 2), x.new_ones(2)),
}


@pytest.mark.parametrize("fails", FAILS)
@pytest.mark.parametrize("effect", [appends, stores, counts, loops, nothing])
@pytest.mark.parametrize("drawn", DRAWS)
def test_effects_before_an_error(drawn: str, effect: Callable[..., None], fails: str) -> None:
    draw, fail = DRAWS[drawn], FAILS[fails]

    def program(x: torch.Tensor, state: State) -> Any:
        y = draw(x)
        effect(state, y)
        return fail(x), y

    def outcome(function: Callable[..., Any]) -> Any:
        x, state = torch.linspace(-1, 1, 4), ([], {}, Holder())
        torch.manual_seed(0)
        with pytest.raises((RuntimeError, IndexError)) as raised:
            function(x, state)
        return raised.type, x, state[0], state[1], state[2].count, torch.rand(2)

    expected = outcome(program)
    compiled = weft.compile(program)
    for _ in range(2):
        found = outcome(compiled)
        assert found[0] is expected[0]
        torch.testing.assert_close(found[1:], expected[1:], rtol=0, atol=0)


@pytest.mark.parametrize("write", ["of what was computed", "of both", "of a view"])
@pytest.mark.parametrize("effect", [appends, stores, counts])
def test_effects_before_an_error_beside_writes_with_gradients(
    effect: Callable[..., None], write: str
) -> None:
    def program(x: torch.Tensor, plain: torch.Tensor, state: State) -> Any:
        (x[1:] if write == "of a view" else x).mul_(2)
        if write == "of both":
            plain.add_(1)
        y = F.dropout(x.sin(), 0.5)
        effect(state, y)
        return y.gather(0, torch.full((1,), 9) * plain.long())

    def outcome(function: Callable[..., Any]) -> Any:
        leaf, plain = torch.linspace(-1, 1, 4, requires_grad=True), torch.ones(4)
        x, state = leaf * 1, ([], {}, Holder())
        torch.manual_seed(0)
        with pytest.raises(RuntimeError):
            function(x, plain, state)
        drawn = torch.rand(2)
        (gradient,) = torch.autograd.grad(x.sum(), leaf)
        return x._version, x, plain, state[0], state[1], state[2].count, drawn, gradient

    expected = outcome(program)
    compiled = weft.compile(program)
    for _ in range(2):
        torch.testing.assert_close(outcome(compiled), expected, rtol=0, atol=0)


def divides(x: torch.Tensor, part: torch.Tensor, state: State) -> Any:
    appends(state, 1)
    exact = x.var(-1, correction=0)
    part.mul_(0.5)
    return exact.long() // x.long()


@pytest.mark.parametrize("dynamic", [False, True])
def test_effects_before_an_error_beside_writes_to_a_part_of_another(dynamic: bool) -> None:
    """A call for which there is no program runs as it was written, from its beginning."""

    def outcome(function: Callable[..., Any]) -> Any:
        leaf, state = torch.linspace(0, 0.9, 4, requires_grad=True), ([], {}, Holder())
        x = leaf * 1
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            function(x, x[1:], state)
        return x, x._version, state[0], torch.autograd.grad(x.sum(), leaf)

    torch.testing.assert_close(
        outcome(weft.compile(divides, dynamic=dynamic)), outcome(divides), rtol=0, atol=0
    )


def draws_in_a_loop(x: torch.Tensor, state: State) -> torch.Tensor:
    for _ in range(25):
        drawn = torch.randn(3)
    state[0].append(drawn)
    return x[torch.full((1,), 9) * x.numel()]


def test_numbers_drawn_in_a_loop_before_an_error_are_drawn_once() -> None:
    def outcome(function: Callable[..., Any]) -> Any:
        torch.manual_seed(0)
        state: State = ([], {}, Holder())
        with pytest.raises(IndexError):
            function(torch.ones(4), state)
        return state[0], torch.rand(2)

    found, expected = outcome(weft.compile(draws_in_a_loop)), outcome(draws_in_a_loop)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def chooses(x: torch.Tensor) -> torch.Tensor:
    x[x > 0] = 0.5
    return x


def copies_rows(x: torch.Tensor) -> torch.Tensor:
    return x.index_copy(0, torch.arange(x.shape[0]).flip(0), x)


def adds(x: torch.Tensor) -> torch.Tensor:
    return x.add_(1)


def sorts(x: torch.Tensor) -> torch.Tensor:
    return x.sort()[0]


@pytest.mark.parametrize("fails", FAILS)
@pytest.mark.parametrize("second", [chooses, adds])
@pytest.mark.parametrize("between", [copies_rows, sorts])
def test_all_writes_before_an_error(
    between: Callable[[torch.Tensor], torch.Tensor],
    second: Callable[[torch.Tensor], torch.Tensor],
    fails: str,
) -> None:
    fail = FAILS[fails]

    def program(x: torch.Tensor, other: torch.Tensor) -> Any:
        chooses(x)
        y = between(x)
        second(other.t())
        return y, fail(x)

    def outcome(function: Callable[..., Any]) -> Any:
        x, other = torch.linspace(-1, 1, 4), torch.linspace(-1, 1, 6).view(2, 3)
        with pytest.raises((RuntimeError, IndexError)) as raised:
            function(x, other)
        return raised.type, x, other

    expected = outcome(program)
    compiled = weft.compile(program)
    for _ in range(2):
        found = outcome(compiled)
        assert found[0] is expected[0]
        torch.testing.assert_close(found[1:], expected[1:], rtol=0, atol=0)
