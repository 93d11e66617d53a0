"""Runs a function plainly and compiled, over several calls, and compares all that can be seen."""

from __future__ import annotations

import collections
import copy
import enum
import math
import traceback
import types
from collections.abc import Callable, Iterable
from typing import Any

import torch
from weft_bytecode_capture import CaptureOptions, compile_frames


def run_graph(graph_module: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
    return graph_module.forward


def same(left: Any, right: Any) -> bool:
    """Equality of values, types included, down through containers and instances."""
    if left is right and isinstance(left, enum.Enum):
        return True  # a member's state has the member in it with CPython 3.11.2
    if isinstance(left, (type, types.FunctionType)):
        return left is right or getattr(left, "__code__", 0) is getattr(right, "__code__", 1)
    if type(left) is not type(right):
        return False
    if isinstance(left, torch.Tensor):
        return (
            left.dtype == right.dtype
            and left.requires_grad == right.requires_grad
            and left.shape == right.shape
            and left.is_inference() == right.is_inference()
            and left.stride() == right.stride()
            and bool(((left == right) | (left.isnan() & right.isnan())).all())
        )
    if isinstance(left, types.TracebackType):
        return [frame[:3] for frame in traceback.extract_tb(left)] == [
            frame[:3] for frame in traceback.extract_tb(right)
        ]
    if isinstance(left, float):
        return left == right or (math.isnan(left) and math.isnan(right))
    if isinstance(left, BaseException):
        return same(left.args, right.args) and same(left.__cause__, right.__cause__)
    if isinstance(left, dict):
        pairs = zip(left.items(), right.items(), strict=True)
        if len(left) != len(right) or not all(same(a, b) for a, b in pairs):
            return False
    elif isinstance(left, (list, tuple, collections.deque)):
        if len(left) != len(right) or not all(map(same, left, right)):
            return False
    elif isinstance(left, (set, frozenset)):
        return left == right
    if type(left).__module__ not in ("builtins", "collections"):
        return bool(same(_state(left), _state(right)) and (_has_state(left) or left == right))
    if isinstance(left, collections.deque):
        return left.maxlen == right.maxlen
    return isinstance(left, (dict, list, tuple)) or bool(left == right)


def _has_state(value: Any) -> bool:
    return hasattr(value, "__dict__") or hasattr(type(value), "__slots__")


def _state(value: Any) -> dict[str, Any]:
    state = dict(getattr(value, "__dict__", {}))
    for kind in type(value).__mro__:
        slots = getattr(kind, "__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if hasattr(value, name):
                state[name] = getattr(value, name)
    return state


def outcome(function: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """What a call gave or raised, and the arguments after it."""
    try:
        return "gave", function(*arguments), arguments
    except Exception as error:
        return "raised", error, arguments


def attempt(out: list[Any], function: Callable[[], Any]) -> None:
    """Append what a captured call gives, or its error's name and text."""
    try:
        out.append(function())
    except Exception as error:
        out.append((type(error).__name__, str(error)))


def check(
    function: Callable[..., Any],
    calls: Iterable[tuple[Any, ...]],
    *,
    fullgraph: bool = True,
    reset: Callable[[], Any] = lambda: None,
    state: Callable[[], Any] = lambda: None,
) -> None:
    """Every call, twice over, gives what it gives in CPython.

    ``state`` reads what the function changes beside its arguments, ``reset`` brings it back.
    """
    calls = list(calls)
    compiled = compile_frames(function, run_graph, CaptureOptions(fullgraph=fullgraph))
    for arguments in (*calls, *calls):
        reset()
        plain = (*outcome(function, copy.deepcopy(arguments)), state())
        reset()
        found = (*outcome(compiled, copy.deepcopy(arguments)), state())
        assert same(found, plain), f"{found} is not {plain}, for {arguments}"
    reset()
