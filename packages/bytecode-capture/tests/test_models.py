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
from weft_bytecode_capture.symbolic import registration
from weft_bytecode_capture.symbolic.models import table as models

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


class Calling(type):
    def __call__(cls, **keywords):
        return super().__call__(**keywords)


class Made(metaclass=Calling):
    def __new__(cls, **keywords):
        return object.__new__(cls)

    def __init__(self, evaluator, kind, receiver, arguments):
        self.all = evaluator, kind, receiver, arguments


def keywords_of_any_name(x):
    made = Made(evaluator=1, kind=2, receiver=3, arguments=x)
    table = {"self": 1}
    table.update(self=2, other=3, evaluator=4)
    text = "{evaluator}"
    return x + 1, made.all, collections.OrderedDict(evaluator=1), table, text.format(evaluator=5)


def extremes(x):
    texts = []
    for call in (lambda: max([]), lambda: max(1, 2, default=0), lambda: min([1], cmp=1)):
        try:
            call()
        except (TypeError, ValueError) as error:
            texts.append(str(error))
    return x + 1, max([1, 3], key=None), min([], default=x), max(2, 1, key=lambda n: -n), texts


@pytest.mark.parametrize("function", [keywords_of_any_name, extremes])
def test_arguments_are_taken_as_cpython_takes_them(function) -> None:
    check(function, [(torch.ones(2),)])
