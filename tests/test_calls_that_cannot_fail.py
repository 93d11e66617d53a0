"""Writes in code that handles exceptions: copies to put back are made only where the program may raise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.fx
from weft.options import CompileOptions
from weft.pipeline import Pipeline
from weft_bytecode_capture import capture


class Noting:
    """weft's stages as a backend; ``answers`` are what was said of each call, with its arguments."""

    def __init__(self) -> None:
        self._pipeline = Pipeline(CompileOptions(strict=True), raise_errors=True)
        self.answers: list[bool] = []

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        return _Noted(self._pipeline(graph, inputs), self.answers)


class _Noted:
    def __init__(self, function: Any, answers: list[bool]) -> None:
        self.function = function
        self.answers = answers

    def __call__(self, *arguments: Any) -> Any:
        return self.function(*arguments)

    def cannot_fail(self, *arguments: Any) -> bool:
        self.answers.append(self.function.cannot_fail(*arguments))
        return self.answers[-1]

    def call_program(self, *arguments: Any) -> Any:
        assert self.answers[-1]  # asked before, not again
        return self.function.call_program(*arguments)


def decayed(x: torch.Tensor, y: torch.Tensor) -> str:
    try:
        x.mul_(0.5).add_(y)
    except IndexError:
        return "caught"
    return "done"


def looked_up(x: torch.Tensor, y: torch.Tensor) -> str:
    try:
        x.add_(1)
        x.mul_(x[y.long()])
    except IndexError:
        return "caught"
    return "done"


def counting(**bounds: float) -> Callable[[torch.Tensor, torch.Tensor], str]:
    """A program that counts within ``bounds``, or up to the ends of the data."""

    def counted(x: torch.Tensor, y: torch.Tensor) -> str:
        try:
            x.add_(1)
            x.mul_(torch.histc(y, bins=x.numel(), **bounds))
        except RuntimeError:
            return "caught"
        return "done"

    return counted


def check(function: Callable[..., str], *inputs: torch.Tensor) -> list[bool]:
    """Results and what is left in the inputs are eager's; gives what was said of the call."""
    backend = Noting()
    compiled = capture(function, backend=backend)
    for _ in range(2):
        mine, theirs = [x.clone() for x in inputs], [x.clone() for x in inputs]
        with torch.no_grad():
            assert compiled(*mine).result == function(*theirs)
        torch.testing.assert_close(mine, theirs, equal_nan=True)
    return backend.answers


def test_pointwise_updates_cannot_fail() -> None:
    assert check(decayed, torch.randn(6), torch.randn(6)) == [True, True]
    assert check(decayed, torch.randn(0), torch.randn(0)) == [True, True]
    assert check(decayed, torch.randn(6, 4).T, torch.full((6,), float("nan"))) == [True, True]


def test_counts_fail_where_the_data_are_their_bounds() -> None:
    wild = torch.tensor([0.5, -7.0, 3.0, float("inf"), 2.0, 1e30])
    check(counting(min=0, max=4), torch.randn(6), wild)
    assert not any(check(counting(), torch.randn(6), torch.randn(9)))
    assert not any(check(counting(), torch.randn(6), wild))


def test_what_looks_up_places_of_data_may_fail() -> None:
    assert check(looked_up, torch.randn(6), torch.arange(6)) == [False, False]
    wrong = torch.arange(6)
    wrong[2] = 60
    assert not any(check(looked_up, torch.randn(6), wrong))


def test_parts_of_one_storage() -> None:
    compiled = capture(decayed, backend=Noting())
    compiled(torch.randn(4), torch.randn(4))
    for first, second in ((0, 4), (4, 0), (0, 5)):
        mine, theirs = torch.arange(9.0), torch.arange(9.0)
        wanted = decayed(theirs[first : first + 4], theirs[second : second + 4])
        got = compiled(mine[first : first + 4], mine[second : second + 4])
        assert got.result == wanted
        torch.testing.assert_close(mine, theirs)
