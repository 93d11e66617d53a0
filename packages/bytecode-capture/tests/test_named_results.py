"""Tuples with named fields that operators give (``x.max(0)``): passed in, kept across breaks, given back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from differential import run_graph, same
from weft_bytecode_capture import capture, compile_frames


def fields(x, named):
    values, places = named
    kind = type(named)
    asked = len(named), isinstance(named, tuple), kind.__name__, [part.shape for part in named]
    return values + 1, named.indices, named[0] * places[0], named[-1], asked


def given_back(x, named):
    return named, [named], named is named, x + named.values


def sequences(x, named):
    return named[:1], named + (x,), (*named, 1), named * 2, x[:1] in (named,), tuple(named)


def writes(x, named):
    named.values.add_(1)
    return named[0] * 2


def missing(x, named):
    try:
        return named.nothing
    except AttributeError as error:
        return x + 1, str(error)


def across_a_break(x, named):
    found = x.sort(0)
    print(end="")
    return found.values + named.values, found[1], type(found).__name__


def plain(value: Any) -> Any:
    """With exact tuples, which are compared element by element, for those with named fields."""
    if isinstance(value, (list, tuple)):
        return [type(value).__name__, *map(plain, value)]
    return value


FUNCTIONS = [fields, given_back, sequences, writes, missing, across_a_break]
MAKERS: list[Callable[[torch.Tensor], Any]] = [
    lambda x: x.max(0),
    lambda x: x.min(0),
    lambda x: x.sort(0),
    lambda x: x.topk(1, 0),
]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_as_in_eager(function) -> None:
    compiled = compile_frames(function, run_graph)
    for rows in (3, 4):
        for make in MAKERS:
            x = torch.arange(2.0 * rows).view(rows, 2).cos()
            mine, its = make(x), make(x)
            assert same(plain(compiled(x, mine)), plain(function(x, its)))
            assert same(plain(mine), plain(its))


@pytest.mark.parametrize("function", FUNCTIONS[:5])
def test_in_one_graph(function) -> None:
    x = torch.arange(6.0).view(3, 2)
    result = capture(function)(x, x.max(0))
    assert not result.breaks


def test_it_is_itself_that_comes_back() -> None:
    x = torch.ones(3, 2)
    named = x.max(0)
    found = compile_frames(given_back, run_graph)(x, named)
    assert found[0] is named
    assert found[1][0] is named


def test_attention_gives_no_weights_that_are_not_asked_for() -> None:
    heads = torch.nn.MultiheadAttention(4, 2, batch_first=True).eval().requires_grad_(False)

    def attend(x, asked):
        return heads(x, x, x, need_weights=asked)

    compiled, x = compile_frames(attend, run_graph), torch.ones(2, 3, 4)
    for asked in (True, False):
        assert same(compiled(x, asked), attend(x, asked))
    assert compiled(x, False)[1] is None
