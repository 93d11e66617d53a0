"""The table of models: each takes the arguments that CPython takes, and refuses others as CPython does."""

from __future__ import annotations

import collections
import functools
import heapq
import inspect
import itertools
import operator

import pytest
import torch
from differential import check
from weft_bytecode_capture.symbolic import models, registration

registration.register_all()

# What takes fewer than CPython: calls with the others are left to it.
NARROWER = {
    "Pattern.sub", "Pattern.finditer", "finditer", "split", "sub", "signature", "copy", "deepcopy",
    "record_function", "match", "fullmatch", "search", "findall", "compile", "Tensor.numpy",
}  # fmt: skip


def rows():
    for model in models._MODELS.values():
        if model.handler is None or isinstance(model.subject, type):
            continue
        try:
            own = inspect.signature(model.subject)
        except (TypeError, ValueError):
            continue
        name = models._name(model.subject)
        if name not in NARROWER:
            yield pytest.param(model, own, id=name)


@pytest.mark.parametrize(("model", "own"), list(rows()))
def test_takes_what_cpython_takes(model: models.Model, own: inspect.Signature) -> None:
    """No argument too many, so that CPython's errors come from the same calls."""
    if model.parameters.any_count or model.parameters.any_name:
        return
    is_bound = isinstance(model.subject, models._BOUND)
    theirs = models.Parameters.of(model.subject, int(is_bound))
    for count in range(5):
        for keywords in ((), *((name,) for name in theirs.named | model.parameters.named)):
            if model.parameters.take(count, keywords):
                assert theirs.take(count, keywords), (count, keywords)


WRONG = {
    "no argument": lambda: len(),
    "two arguments": lambda: len([], []),
    "keyword": lambda: len(obj=[]),
    "class": lambda: list([1], [2]),
    "keyword of a class": lambda: tuple(iterable=[1]),
    "method": lambda: [].append(),
    "method with a keyword": lambda: [].append(x=1),
    "method of a dict": lambda: {}.get(),
    "unknown keyword": lambda: [].sort(cmp=None),
    "positional key": lambda: sorted([2, 1], len),
    "class method": lambda: dict.fromkeys(),
    "itertools": lambda: itertools.pairwise(),
    "itertools keyword": lambda: itertools.accumulate([1], function=max),
    "operator": lambda: operator.add(1),
    "heapq": lambda: heapq.heappush([]),
    "reduce": lambda: functools.reduce(max),
    "deque": lambda: collections.deque([1], 2, 3),
    "deque's method": lambda: collections.deque().rotate(1, 2),
    "partial": lambda: functools.partial(),
    "getattr": lambda: getattr(1),
    "range": lambda: range(),
    "enumerate": lambda: enumerate(),
    "set": lambda: {1}.add(1, 2),
    "pop": lambda: {1: 2}.pop(1, 2, 3),
}


def text_of_error(x, call):
    try:
        call()
    except TypeError as error:
        return x + 1, str(error)


@pytest.mark.parametrize("call", WRONG.values(), ids=WRONG)
def test_refuses_other_arguments_as_cpython_does(call) -> None:
    check(text_of_error, [(torch.ones(2), call)])
