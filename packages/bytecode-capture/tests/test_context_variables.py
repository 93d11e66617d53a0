"""Context variables: read, set and reset as CPython does."""

import contextvars
import sys
import time
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


def _more(x, by=1.0):
    V.set(V.get() + by)
    UNSET.set(x)
    return x * V.get()


def run_in_a_copy(x):
    return contextvars.copy_context().run(_more, x, by=2.0), V.get(), UNSET.get(None)


def run_twice_in_a_copy(x):
    V.set(V.get() * 2)
    context = contextvars.copy_context()
    V.set(V.get() + 1)
    y = context.run(_more, x)
    other = context.copy()
    y = y + context.run(_more, x)
    z = other.run(_more, x) + context.run(V.get)
    held = V in context, context[V], context.get(UNSET) is x, other[V], other.get(V, 3)
    return y, z, held, V.get(), UNSET.get(None)


def run_in_nested_copies(x):
    def inner():
        V.set(V.get() + 10)
        return contextvars.copy_context().run(_more, x) + V.get()

    y = contextvars.copy_context().run(inner)
    return y, V.get()


def _failing(x):
    V.set(9.0)
    raise ValueError(V.get())


def error_in_a_copy(x):
    context = contextvars.copy_context()
    try:
        context.run(_failing, x)
    except ValueError as error:
        return x + V.get(), error.args, context[V]


def unset_in_a_copy(x):
    context = contextvars.copy_context()
    UNSET.set(x)
    try:
        return x, context[UNSET]
    except KeyError as error:
        return x + V.get(), error.args[0] is UNSET, context.run(UNSET.get, 4), UNSET in context


def reset_in_a_copy(x):
    token = V.set(6.0)

    def inner():
        own = V.set(7.0)
        found = V.get()
        V.reset(own)
        return found, V.get()

    y = contextvars.copy_context().run(inner)
    V.reset(token)
    return x + V.get(), y


def reset_of_another_context(x):
    token = V.set(6.0)
    try:
        contextvars.copy_context().run(V.reset, token)
    except ValueError:
        return x + V.get()
    return x


def run_in_a_branch(x):
    if x.sum() > 0:
        x = contextvars.copy_context().run(_more, x)
    return x * V.get()


def run_while_entered(x):
    context = contextvars.copy_context()
    try:
        return context.run(context.run, _more, x)
    except RuntimeError:
        return x + V.get()


def truth_of_a_copy(x):
    context = contextvars.copy_context()
    known = V in context
    return x + bool(context), len(context) - known


def break_in_a_copy(x):
    def inner():
        y = _more(x)
        time.sleep(0)
        return y + V.get()

    return contextvars.copy_context().run(inner), V.get()


CAPTURED: tuple[Any, ...] = (
    set_and_reset,
    stays_set,
    unset,
    nested,
    run_in_a_copy,
    run_twice_in_a_copy,
    run_in_nested_copies,
    error_in_a_copy,
    unset_in_a_copy,
    reset_in_a_copy,
)
if sys.version_info >= (3, 14):
    CAPTURED += (with_tokens,)
LEFT_TO_PYTHON: tuple[Any, ...] = (
    token_escapes,
    wrong_token,
    reset_twice,
    set_in_a_loop,
    set_in_a_branch,
    reset_of_another_context,
    run_in_a_branch,
    run_while_entered,
    break_in_a_copy,
    truth_of_a_copy,
)


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
