"""Loops and branches in each other, in every order: one graph, whose body is captured once."""

from __future__ import annotations

import itertools
import linecache
from collections.abc import Callable
from typing import Any

import pytest
import torch
from weft_bytecode_capture import CaptureOptions, capture
from weft_bytecode_capture.symbolic.regions import evaluation


def _lines(kinds: str, has_rest: bool, depth: int = 1) -> list[str]:
    """Regions in each other, the first of ``kinds`` outermost; ``has_rest``: each goes on after that."""
    if not kinds:
        return ["x = x * 0.7 + 0.01", "steps += 1"]
    inner = [f"    {line}" for line in _lines(kinds[1:], has_rest, depth + 1)]
    match kinds[0]:
        case "f":
            rest = [f"    y = y + x * i{depth}"] * has_rest
            return [f"for i{depth} in range(n):", *inner, *rest]
        case "w":
            test = f"while x.sum() > 0.{depth} and steps < 30:"
            counting = [f"k{depth} = 0", f"while x.sum() > k{depth} and k{depth} < 9:"]
            if has_rest:
                return [*counting, *inner, f"    k{depth} += 1"]
            return [test, "    steps += 1", *inner]
        case _:
            other = ["else:", "    x = x - 0.25", "    steps += 2"]
            return [f"if x.max() > 0.{depth}:", *inner, *["    y = y - x"] * has_rest, *other]


def _program(kinds: str, has_rest: bool) -> Callable[..., Any]:
    lines = ["y, steps = x + 1, 0", *_lines(kinds, has_rest), "return x + 1, y + 1, steps"]
    source = "def program(x, n):\n" + "".join(f"    {line}\n" for line in lines)
    name = f"<{kinds}, {has_rest}>"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    scope: dict[str, Any] = {"torch": torch}
    exec(compile(source, name, "exec"), scope)
    program: Callable[..., Any] = scope["program"]
    return program


def _compare(function: Callable[..., Any], x: torch.Tensor, n: int, graphs: int = 1) -> None:
    options = CaptureOptions(rolled_loop_length=3)
    captured = capture(function, options=options)(x.clone(), n)
    torch.testing.assert_close(captured.result, function(x.clone(), n), equal_nan=True)
    assert len(captured.graphs) <= graphs
    assert not captured.breaks


CALLS = [(1.0, 3), (3.0, 0), (3.0, 1), (float("nan"), 3), (-1.0, 3)]


@pytest.fixture
def instructions(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The instructions that regions' evaluation has come to, in all attempts."""
    found: list[int] = []
    original = evaluation._is_at_head

    def counting(evaluator: Any, index: int) -> bool:
        found.append(index)
        return original(evaluator, index)

    monkeypatch.setattr(evaluation, "_is_at_head", counting)
    return found


@pytest.mark.parametrize("has_rest", [False, True])
@pytest.mark.parametrize(("depth", "calls"), [(1, CALLS), (2, CALLS), (3, CALLS[:1])])
def test_regions_in_each_other_are_one_graph(
    depth: int, calls: list[tuple[float, int]], has_rest: bool
) -> None:
    torch.manual_seed(depth)
    for kinds in map("".join, itertools.product("fwi", repeat=depth)):
        program = _program(kinds, has_rest)
        for scale, n in calls:
            _compare(program, torch.rand(3, dtype=torch.float64) * scale, n)


@pytest.mark.parametrize("has_rest", [False, True])
@pytest.mark.parametrize("kinds", ["fwfi", "wfwi", "fffw", "wiwf", "ifwi", "fiwf", "wwww"])
def test_what_capture_evaluates_grows_as_the_depth(
    kinds: str, has_rest: bool, instructions: list[int]
) -> None:
    """Each depth adds attempts, one for each number that its loop counts: the square of the depth at most."""
    counts = []
    for depth in range(1, 5):
        instructions.clear()
        _compare(_program(kinds[-depth:], has_rest), torch.rand(3, dtype=torch.float64), 3)
        counts.append(len(instructions))
    assert counts[3] < 16 * max(counts[0], 100)


def _ends_where_the_outer_one_repeats(x: torch.Tensor, n: int) -> Any:
    steps = 0
    for _ in range(n):
        while x.sum() > 1 and steps < 9:
            steps += 1
            x = x * 0.75
    return x + 0, steps


def _branch_before_the_outer_one_repeats(x: torch.Tensor, n: int) -> Any:
    steps = 0
    for i in range(n):
        if x.sum() > i:
            for _ in range(n):
                if x.max() > 0.5:
                    x = x * 0.9
                    steps += 1
    return x + 0, steps


@pytest.mark.parametrize(
    "program", [_ends_where_the_outer_one_repeats, _branch_before_the_outer_one_repeats]
)
def test_an_inner_region_ends_where_the_loop_around_it_repeats(program: Callable[..., Any]) -> None:
    for scale, n in ((9.0, 4), (0.1, 4), (-1.0, 3), (9.0, 1), (9.0, 0), (float("inf"), 3)):
        _compare(program, torch.rand(3, dtype=torch.float64) * scale, n)
