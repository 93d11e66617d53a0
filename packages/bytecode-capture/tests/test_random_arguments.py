"""Compiled functions called thirty times, with nested arguments that change: always eager's result."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from random_arguments import Node, changed, classes_of, drawn
from weft_bytecode_capture import CaptureOptions, compile_frames

SEEDS = 24
CALLS = 30


def reads_everything(value: Any, x: torch.Tensor) -> Any:
    """A number that depends on all of the value."""
    if isinstance(value, torch.Tensor):
        first = value.stride()[0] if value.dim() else 0
        return value.double().sum() * (2 if value.requires_grad else 1) + value.dim() + first
    if value is None:
        return 10.0
    if isinstance(value, bool):
        return 1.0 if value else 2.0
    if isinstance(value, (int, float)):
        return value * 2
    if isinstance(value, str):
        return len(value) + (5 if value == "a" else 0)
    total: Any = 0.0
    if isinstance(value, (list, tuple)):
        for position, item in enumerate(value):
            total = total * 2 + reads_everything(item, x) * (position + 1)
        return total + len(value)
    if isinstance(value, dict):
        for position, (key, item) in enumerate(value.items()):
            total = total + reads_everything(item, x) * (position + 1) + (3 if key == "a" else 0)
        return total
    for name in ("p", "q"):
        total = total + (reads_everything(getattr(value, name), x) if hasattr(value, name) else 100)
    return total


def reads_a_part(value: Any, x: torch.Tensor) -> Any:
    """A tensor that depends on some of the value only."""
    total = x * 1.0
    if isinstance(value, dict):
        if "a" in value:
            total = total + reads_everything(value["a"], x)
        if value.get("b") is None:
            total = total * 2
        return total - (1 if len(value) == 2 else 0)
    if isinstance(value, (list, tuple)):
        if value:
            total = total + reads_everything(value[-1], x)
        return total * 5 if len(value) > 1 and value[0] is value[1] else total
    if isinstance(value, Node):
        return total + reads_everything(getattr(value, "p", 3), x)
    if isinstance(value, torch.Tensor):
        return total + value.sum() if value.dtype.is_floating_point else total
    return total + 1 if value else total


def outcome(function: Any, value: Any, x: torch.Tensor) -> Any:
    """What a call gives, in a form that compares equal for equal bits; an error by its class."""
    try:
        result = function(value, x)
    except Exception as error:
        return type(error)
    if isinstance(result, torch.Tensor):
        plain = result.detach().double()
        return result.dtype, result.shape, result.requires_grad, repr(plain.tolist())
    return type(result), repr(result)


@pytest.mark.parametrize("program", [reads_everything, reads_a_part], ids=lambda p: p.__name__)
@pytest.mark.parametrize("seed", range(SEEDS))
def test_changing_arguments(seed: int, program: Any) -> None:
    numbers = random.Random(seed)
    graphs: list[torch.fx.GraphModule] = []
    compiled = compile_frames(
        program,
        lambda graph, inputs: graphs.append(graph) or graph.forward,
        CaptureOptions(recompile_limit=2 * CALLS),
    )
    value, x = drawn(numbers, 3), torch.arange(3.0)
    classes = set()
    for _ in range(CALLS):
        classes.add(repr(classes_of(value)))
        assert outcome(compiled, value, x) == outcome(program, value, x)
        chance = numbers.random()
        if chance < 0.1:
            value = drawn(numbers, 3)
        elif chance < 0.85:
            value = changed(numbers, value, 3)
    # A size or a number that changes costs one compilation more, for each call in which one is new.
    assert len(graphs) <= 2 * len(classes)
