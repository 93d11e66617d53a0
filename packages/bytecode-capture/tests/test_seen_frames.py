"""Functions that ask for their caller by ``sys._getframe``: its names and lines, as in eager."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from weft_bytecode_capture import capture


def place(depth: int = 1) -> tuple[str, int, str, str]:
    frame = sys._getframe(depth)
    code = frame.f_code
    return code.co_filename, frame.f_lineno, code.co_name, code.co_qualname


def wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def inner(*args: Any) -> Any:
        return function(*args)

    return inner


@wrapped
def through_another(depth: int) -> Any:
    return place(depth)


def of_callers(x: torch.Tensor) -> Any:
    def called() -> Any:
        return place(), place(
            2,
        )

    y = x + 1
    first = called()
    return y, first, called(), through_another(3)


def with_no_depth(x: torch.Tensor) -> Any:
    def called() -> Any:
        frame = sys._getframe()
        return frame.f_lineno, frame.f_code.co_firstlineno, frame.f_back.f_code.co_name

    return x * 2, called()


def identities(x: torch.Tensor) -> Any:
    def called() -> Any:
        frame, again, caller = sys._getframe(), sys._getframe(0), sys._getframe(1)
        same = frame is again, frame is caller, frame.f_back is caller, caller is None
        return same, frame == again, frame == caller, bool(frame)

    return x * 2, called()


def within_others(x: torch.Tensor) -> Any:
    def numbers():
        for k in range(2):
            yield place(k)

    @contextlib.contextmanager
    def at():
        yield place()

    with at() as where:
        y = x.sin()
    return y, where[2:], [p[2] for p in numbers()], [place()[1:3] for _ in range(2)]


ONE_GRAPH = (of_callers, with_no_depth)
OTHERS = (identities, within_others)


@pytest.mark.parametrize("function", ONE_GRAPH + OTHERS, ids=lambda f: f.__name__)
def test_what_frames_show_is_eagers(function: Callable[..., Any]) -> None:
    x = torch.randn(3)
    result = capture(function)(x)
    wanted = function(x)
    assert torch.equal(result.result[0], wanted[0])
    assert result.result[1:] == wanted[1:]
    if function in ONE_GRAPH:
        assert not result.breaks


def test_frames_that_outlive_their_call() -> None:
    def kept() -> Any:
        return sys._getframe()

    def program(x: torch.Tensor) -> Any:
        frame = kept()
        return x + 1, frame.f_code.co_name, frame.f_lineno

    x = torch.randn(3)
    assert capture(program)(x).result[1:] == program(x)[1:]
