"""``functools.partial``: places that it leaves free (CPython 3.14), and where it is a method."""

import functools
import sys
import warnings
from typing import Any

import pytest
import torch
from differential import check, run_graph
from weft_bytecode_capture import compile_frames

FREE: Any = vars(functools).get("Placeholder")
needs_places = pytest.mark.skipif(FREE is None, reason="free places are of CPython 3.14")


def spread(a, b, c=0, *rest, scale=1):
    return (a - b * 2 + c * 3 - sum(rest)) * scale


def first_free(x):
    return functools.partial(spread, FREE, 3)(x)


def with_keywords(x):
    return functools.partial(spread, FREE, x, scale=2)(1, 5, scale=3)


def more_than_free(x):
    return functools.partial(spread, FREE, 2, FREE, 4)(x, 3, 5, 6)


def filled_by_another(x):
    return functools.partial(functools.partial(spread, FREE, FREE, 5), FREE, 2)(x)


def filled_and_more(x):
    return functools.partial(functools.partial(spread, FREE, 5), x, 2, 3)(4)


def returned(x):
    made = functools.partial(spread, FREE, 3)
    return made.args[0] is FREE, made.args[1:], made(x), made


def of_operator(x):
    return functools.partial(torch.where, x > 2, FREE, 0.0)(x)


def refused(make):
    def function(x):
        try:
            return make(x)
        except TypeError as error:
            return x * 2, str(error)

    return function


@needs_places
@pytest.mark.parametrize(
    "function",
    [first_free, with_keywords, more_than_free, filled_by_another, filled_and_more, of_operator],
)
def test_free_places_are_filled_in_order(function):
    check(function, [(torch.arange(4.0),)])


@needs_places
@pytest.mark.parametrize(
    "make",
    [
        lambda x: functools.partial(spread, x, FREE),
        lambda x: functools.partial(functools.partial(spread, FREE, x), 1, FREE),
        lambda x: functools.partial(spread, b=FREE),
        lambda x: functools.partial(spread, FREE, x)(),
        lambda x: functools.partial(spread, FREE, x)(a=1),
        lambda x: functools.partial(spread, FREE, x, FREE, 1)(2),
    ],
)
def test_places_that_are_not_filled(make):
    check(refused(make), [(torch.arange(4.0),)])


@needs_places
def test_ones_from_outside():
    outside = [functools.partial(spread, FREE, 3), functools.partial(torch.sub, FREE, 2)]
    check(lambda x: [made(x) for made in outside], [(torch.arange(4.0),)])
    held = functools.partial(spread, FREE, torch.arange(4.0))
    check(lambda x: functools.partial(held, x)(), [(torch.ones(4),)])
    check(lambda x: returned(x)[:3], [(torch.ones(4),)])


@needs_places
def test_one_that_is_returned():
    made = compile_frames(returned, run_graph)(torch.ones(4))[3]
    assert made.func is spread and made.args == (FREE, 3)


def test_one_in_a_class():
    """A function from CPython 3.14 on: an instance is its next argument."""

    class Holder:
        value = 3.0
        apply = functools.partial(lambda *given: [torch.is_tensor(v) for v in given], 1)
        fixed = staticmethod(functools.partial(lambda *given: len(given), 1))

    holder = Holder()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        bound = lambda x: (x + 1, holder.apply(x), Holder.apply(x), Holder().apply(x))  # noqa: E731
        check(bound, [(torch.ones(2),)], fullgraph=False)
        check(lambda x: (x + 1, holder.fixed(x)), [(torch.ones(2),)])
    assert len(holder.apply(1)) == (3 if sys.version_info >= (3, 14) else 2)
