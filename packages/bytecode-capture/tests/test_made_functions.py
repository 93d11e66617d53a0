"""Functions made in captured code: their docstrings, and code that is put in place of theirs."""

import functools
import itertools
import types

import pytest
import torch
from differential import check


def docstrings(x):
    def plain():
        return "a text"

    def documented():
        """What it does."""
        return "a text"

    def formatted():
        f"""Not a docstring of {x}"""  # noqa: B021

    @functools.wraps(plain)
    def wrapping():
        pass

    functions = (plain, documented, formatted, wrapping, lambda: "a text", lambda: None)
    return x + 1, [function.__doc__ for function in functions]


def renamed_frames(x, name):
    def scaled(value, factor=2):
        """Scales."""
        return value * factor

    scaled.__code__ = scaled.__code__.replace(co_name=name, co_qualname=name)
    code = scaled.__code__
    return scaled(x), code.co_name, scaled.__name__, scaled.__qualname__, scaled.__doc__


def other_code(x, name):
    factor = 3.0

    def scaled(value):
        return value * factor

    def shifted(value):
        return value + factor

    scaled.__code__ = shifted.__code__
    return scaled(x), scaled.__name__


def code_of_another_closure(x, name):
    def scaled(value):
        return value * x

    def plain(value):
        return value

    try:
        scaled.__code__ = plain.__code__
    except ValueError as error:
        return x, str(error)
    return scaled(x), name


def without_gradients(x):
    @torch.no_grad()
    def scaled(value):
        return value * 2

    return scaled(x), scaled.__name__, scaled.__code__.co_name


def write_to_class(x, kind):
    try:
        kind.attribute = 1
    except TypeError as error:
        return x - 1, str(error)
    return x + 1, kind.attribute


class Own:
    pass


class Named(dict):
    """Globals that have every name but those of Python's own."""

    def __missing__(self, name):
        if name.startswith("__"):
            raise KeyError(name)
        return len(name)


def scaled_by_name(x):
    return x * factor + max  # noqa: F821


SCALED = types.FunctionType(scaled_by_name.__code__, Named(factor=2))


def call_with_other_globals(x):
    return SCALED(x + 1)


def test_docstrings():
    check(docstrings, [(torch.ones(2),), (torch.zeros(2),)])


@pytest.mark.parametrize("function", [renamed_frames, other_code], ids=lambda f: f.__name__)
def test_code_is_replaced(function):
    check(function, [(torch.ones(2), "one"), (torch.zeros(2), "two")])


def test_code_with_another_closure_is_refused():
    check(code_of_another_closure, [(torch.ones(2), "one")], fullgraph=False)


def test_decorated_by_a_context():
    """Torch 2.15 gives each function that a context decorates code of its own, named as the context."""
    check(without_gradients, [(torch.ones(2, requires_grad=True),), (torch.zeros(2),)])


@pytest.mark.parametrize("kind", [itertools.chain, functools.partial, int, Own])
def test_attributes_of_classes_made_by_c(kind):
    check(write_to_class, [(torch.ones(2), kind)], fullgraph=False)


def test_globals_of_another_class():
    check(SCALED, [(torch.ones(2),)], fullgraph=False)
    check(call_with_other_globals, [(torch.ones(2),)], fullgraph=False)
