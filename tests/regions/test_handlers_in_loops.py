"""Loops whose bodies bind names where they handle an exception: they leave the loop with eager's values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import weft
from torch import Tensor
from weft.registry import codegens

from tests.fuzz.evaluated import EvaluatedCpp


def bound_first_there(x: Tensor) -> Any:
    for row in x:
        try:
            _ = {}["none"]
        except KeyError:
            last = row * 2
    return last


def added_there(x: Tensor) -> Any:
    total = x[0]
    for row in x:
        shifted = row + 1
        try:
            _ = shifted.missing
        except AttributeError:
            total = total + shifted
    return total


def in_a_while_loop(x: Tensor) -> Any:
    total = x[0]
    while total.sum() < 50:
        try:
            _ = {}["none"]
        except KeyError:
            total = total * 2 + 1
    return total


def handler_around(x: Tensor) -> Any:
    total = x[0]
    try:
        for row in x:
            try:
                _ = {}["none"]
            except KeyError:
                total = total + row
    except ValueError:
        total = total * 100
    return total


def finally_and_handler(x: Tensor) -> Any:
    total, count = x[0], 0
    for row in x:
        try:
            try:
                _ = {}["none"]
            finally:
                total = total + row
        except KeyError:
            count = count + 1
    return total, count


def handler_of_a_handler(x: Tensor) -> Any:
    total = other = x[0]
    for row in x:
        try:
            try:
                _ = {}["none"]
            except KeyError:
                total = total + row
                _ = [][3]
        except IndexError:
            other = other - row
    return total, other


def handler_that_goes_on(x: Tensor) -> Any:
    total = x[0]
    for row in x:
        try:
            part = row * 2
            if row.shape[0] > 2:
                raise ValueError
        except ValueError:
            continue
        total = total + part
    return total, part


PROGRAMS = (
    bound_first_there, added_there, in_a_while_loop, handler_around, finally_and_handler,
    handler_of_a_handler, handler_that_goes_on,
)  # fmt: skip


@pytest.mark.parametrize("dynamic", [None, True], ids=["static", "varying"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_values_are_eagers(
    program: Callable[[Tensor], Any], dynamic: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(codegens, "cpu", EvaluatedCpp)
    compiled = weft.compile(program, dynamic=dynamic)
    for rows in (30, 26):
        x = torch.linspace(0.5, 1.5, rows * 3, dtype=torch.float64).view(rows, 3)
        torch.testing.assert_close(compiled(x), program(x))
