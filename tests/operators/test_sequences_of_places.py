"""Subscripts with sequences of places in tensors: ``rows, columns = zip(*places); x[rows, columns] = 0``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import weft

Tensor = torch.Tensor


def by_columns(x: Tensor, places: Tensor) -> Any:
    rows, columns = zip(*places, strict=True)
    x = x.clone()
    x[rows, columns] = 0
    return x, x[rows, columns], x[rows, :], x[..., list(columns)]


def beside_numbers(x: Tensor, places: Tensor) -> Any:
    y = x.clone()
    y[:, [places[0, 1], 2]] = 7
    return y, x[:, [places[0, 0], -1]], x[[places[0, 0]], [places[1, 0]]]


def to_an_argument(x: Tensor, places: Tensor) -> Any:
    rows, columns = zip(*places, strict=True)
    x[rows, columns] += 1
    return x * 2


def in_a_loop(x: Tensor, places: Tensor) -> Any:
    total = torch.zeros(5)
    for k in range(20):
        total = total + x[[places[0, 0], 1], :].sum(0) * k
    return total


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
@pytest.mark.parametrize("program", [by_columns, beside_numbers, to_an_argument, in_a_loop])
def test_one_graph(program: Callable[..., Any], dtype: torch.dtype) -> None:
    compiled, log = weft.compile(program, fullgraph=True), weft.CompileLog()
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        places = torch.randint(-3, 4, (3, 2), generator=generator, dtype=dtype)
        x = torch.rand(4, 5, generator=generator)
        mine, theirs = x.clone(), x.clone()
        with weft.observe(log):
            torch.testing.assert_close(compiled(mine, places), program(theirs, places))
        torch.testing.assert_close(mine, theirs)
    assert len(log.graphs) == 1


def test_places_out_of_range_raise_as_in_eager() -> None:
    def program(x: Tensor, places: Tensor) -> Tensor:
        return x[[places[0, 0] + 7, 1], :]

    x, places = torch.rand(4, 5), torch.ones(2, 2, dtype=torch.int64)
    compiled = weft.compile(program, fullgraph=True)
    with pytest.raises(IndexError) as expected:
        program(x, places)
    with pytest.raises(IndexError) as error:
        compiled(x, places)
    assert str(error.value) == str(expected.value)
