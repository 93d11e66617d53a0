"""Loops over what data chooses of one element at most: where there is none, nothing of the loop holds.

A loop that runs has met an element.  Its body may not take the size for 1 by that, nor may what follows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import weft

T = torch.Tensor


def written(v: T, p: T) -> Any:
    v, chosen = v.clone(), torch.unique(p[0])
    for _ in chosen:
        v[:] = chosen
    return v


def written_by_position(v: T, p: T) -> Any:
    v, chosen = v.clone(), torch.unique(p[0])
    for k, _ in enumerate(chosen):
        v[k] = chosen
    return v


def added(v: T, p: T) -> Any:
    chosen = p[:1][p[:1] > 0]
    for _ in chosen:
        v = v + chosen
    return v


def expanded(v: T, p: T) -> Any:
    chosen = p[:1][p[:1] > 0]
    for _ in chosen:
        v = v + chosen.expand(3, 3).cumsum(0) @ v + torch.where(v > 0, chosen, v)
    return v


def expanded_behind(v: T, p: T) -> Any:
    chosen = p[:1][p[:1] > 0]
    for element in chosen:
        v = v + element
    return v, chosen.expand(3)


def asked_behind(v: T, p: T) -> Any:
    chosen = p[:1][p[:1] > 0]
    for element in chosen:
        v = v + element
    return v, chosen.reshape(-1, 1), chosen.shape[0] == 1, chosen.sum(), v + chosen


FUNCTIONS: list[Callable[[T, T], Any]] = [
    written,
    written_by_position,
    added,
    expanded,
    expanded_behind,
    asked_behind,
]


def outcome(function: Callable[[T, T], Any], *given: T) -> Any:
    try:
        return function(*given)
    except RuntimeError as error:
        return str(error)


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("rows", [3, 1])
def test_beside_eager(function: Callable[[T, T], Any], rows: int) -> None:
    compiled = weft.compile(function)
    for places in ([2, 1, 1], [0, 3, 1], [-1, 0, 0], [3, 0, 2]):
        given = torch.arange(3.0 * rows).reshape(rows, 3), torch.tensor(places)
        found, expected = outcome(compiled, *given), outcome(function, *given)
        if isinstance(expected, str):
            assert found == expected
        else:
            torch.testing.assert_close(found, expected)
