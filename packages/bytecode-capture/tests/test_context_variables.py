"""Context variables: read, set and reset as CPython does."""

import contextvars
import sys
from typing import Any

import pytest
import torch
from differential import run_graph
from weft_bytecode_capture import CaptureOptions, compile_frames

V = contextvars.ContextVar("V", default=2.0)
UNSET = contextvars.ContextVar("UNSET")


def set_and_reset(x):
    token = V.set(V.get() + 1)
    y = x * V.get()
    V.reset(token)
    return y, V.get(), V.name, token.var is V


def stays_set(x):
    V.set(V.get() + 1)
    UNSET.set(x)
    return x * V.get() + UNSET.get()


def unset(x):
    try:
        return x * UNSET.get()
    except LookupError as error:
        return x, UNSET.get(7), error.args[0] is UNSET


def nested(x):
    outer = V.set(3.0)
    inner = V.set(4.0)
    y = x * V.get()
    V.reset(inner)
    y = y + V.get()
    V.reset(outer)
    return y, V.get(), inner.old_value


def token_escapes(x):
    return x + 1, V.set(5.0)


def wrong_token(x):
    try:
        UNSET.reset(V.set(1.0))
    except ValueError:
        return x, V.get()


def reset_twice(x):
    token = V.set(1.0)
    V.reset(token)
    try:
        V.reset(token)
    except RuntimeError:
        return x, V.get()


def set_in_a_loop(x):
    for i in range(30):
        x = x * 0.9 + V.get()
        V.set(i / 10)
    return x


def set_in_a_branch(x):
    if x.sum() > 0:
        V.set(5.0)
    return x * V.get()


def with_tokens(x):
    with V.set(3.0) as token:
        y = x * V.get()
        with V.set(4.0):
            y = y + V.get()
        try:
            with UNSET.set(x):
                raise ValueError
        except ValueError:
            y = y + UNSET.get(0)
    return y, V.get(), token.var is V


CAPTURED: tuple[Any, ...] = (set_and_reset, stays_set, unset, nested)
if sys.version_info >= (3, 14):
    CAPTURED += (with_tokens,)
LEFT_TO_PYTHON = (token_escapes, wrong_token, reset_twice, set_in_a_loop, set_in_a_branch)


def _called(function):
    """What three calls in one context give, between which the variables are set, and what they leave."""

    def calls():
        found = []
        for number in (None, 3.5, 4.5):
            if number is not None:
                V.set(number)
            result = function(torch.arange(2.0) + 1)
            found.append(result if isinstance(result, tuple) else (result,))
            found.append((V.get(), UNSET.get(None)))
        return found

    return contextvars.Context().run(calls)


@pytest.mark.parametrize("function", CAPTURED + LEFT_TO_PYTHON, ids=lambda f: f.__name__)
def test_context_variables(function):
    options = CaptureOptions(fullgraph=function in CAPTURED)
    compiled = compile_frames(function, run_graph, options)
    for _ in range(2):
        for found, wanted in zip(_called(compiled), _called(function), strict=True):
            for left, right in zip(found, wanted, strict=True):
                assert type(left) is type(right)
                if isinstance(right, torch.Tensor):
                    assert torch.equal(left, right)
                elif not isinstance(right, contextvars.Token):
                    assert left == right
