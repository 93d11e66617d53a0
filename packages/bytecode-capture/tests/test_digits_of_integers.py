"""The most digits that texts of integers may have, which a program reads and sets."""

from __future__ import annotations

import contextlib
import sys

import pytest
import torch
from differential import check

X = torch.ones(2)


@contextlib.contextmanager
def digits(count):
    before = sys.get_int_max_str_digits()
    try:
        sys.set_int_max_str_digits(count)
        yield
    finally:
        sys.set_int_max_str_digits(before)


def limited(x):
    out = []
    with digits(1000):
        for text in ("1" * 1000, "1" * 1001):
            try:
                out.append(int(text) % 7)
            except ValueError as error:
                out.append(str(error))
        try:
            str(10**1000)
        except ValueError as error:
            out.append(str(error))
    with digits(0):
        out.append(len(str(10**6000)))
    try:
        sys.set_int_max_str_digits(3)
    except ValueError as error:
        out.append(str(error))
    return out, sys.get_int_max_str_digits(), x + 1


def kept(count, x):
    sys.set_int_max_str_digits(count)
    return sys.get_int_max_str_digits(), x + 1


@pytest.fixture(autouse=True)
def _as_before():
    before = sys.get_int_max_str_digits()
    yield
    sys.set_int_max_str_digits(before)


def test_limits_of_blocks():
    check(limited, [(X,)], fullgraph=True)


def test_a_limit_that_stays():
    calls = [(700, X), (800, X), (5000, X)]
    check(kept, calls, state=sys.get_int_max_str_digits, fullgraph=True)
