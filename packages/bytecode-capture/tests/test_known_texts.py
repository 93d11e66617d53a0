"""``json`` of values that are known, ``dir`` of instances, and operators of deques."""

from __future__ import annotations

import collections
import json

import torch
from differential import attempt, check

X = torch.ones(2)
SETTINGS = {"a": [1, 2.5, None, True], "b": {"c": "x"}}


def json_texts(x, n):
    out = [json.dumps(SETTINGS, sort_keys=True), json.dumps({"n": n, "s": [n, "é"]}, indent=2)]
    out += [json.loads('{"a": [1, {"b": null}]}'), json.loads(json.dumps(SETTINGS)) == SETTINGS]
    attempt(out, lambda: json.loads("{"))
    attempt(out, lambda: json.dumps({1: (1, 2)}, separators=(",", ":")))
    attempt(out, lambda: json.dumps({(1,): 2}))
    attempt(out, lambda: json.dumps(float("nan")))
    attempt(out, lambda: json.dumps(float("nan"), allow_nan=False))
    return out, x


class Plain:
    shared = 1

    def __init__(self):
        self.own = 1


class Telling(Plain):
    def __dir__(self):
        return ["q", "a"]


class Slotted:
    __slots__ = ("k",)


def names(given, x):
    made = Plain()
    made.new = 2
    public = [name for name in dir(given) if not name.startswith("_")]
    return dir(made), dir(Telling()), dir(Slotted()), dir(given), public, x


def deques(x):
    out, short, long = [], collections.deque([1, 2], 3), collections.deque([3, 4, 5])
    attempt(out, lambda: short + long)
    attempt(out, lambda: long + short)
    for factor in (2, 0, -1, True, "x", 1.5):
        attempt(out, lambda factor=factor: short * factor)
        attempt(out, lambda factor=factor: factor * long)
    attempt(out, lambda: short + [1])
    attempt(out, lambda: [1] + short)
    same = long
    long *= 2
    short *= 0
    return out, same is long, long, short, short.maxlen, x


def repeated_deque(given, x):
    given *= 2
    same = given
    given += [9]
    return given is same, given, given + given, x


def test_json():
    check(json_texts, [(X, 1), (X, 2), (X, 3)], fullgraph=True)


def test_names_of_instances():
    check(names, [(Plain(), X), (Telling(), X)], fullgraph=True)


def test_deques():
    check(deques, [(X,)], fullgraph=True)
    calls = [(collections.deque([1, 2], 3), X), (collections.deque([1, 2]), X)]
    check(repeated_deque, calls, fullgraph=True)
