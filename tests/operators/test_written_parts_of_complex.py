"""Writes to parts of tensors whose dtype no loop holds: complex numbers and wide unsigned integers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import weft

Program = Callable[[Any, Any], Any]


def rows(x: Any, y: Any) -> Any:
    """Of which the one is written again."""
    made = x.clone()
    made[1:3] = y[:2]
    made[0] = y[2]
    return made


def columns(x: Any, y: Any) -> Any:
    made = x.t().clone()
    made[:, 1] = y[:, 0]
    made[2, ::2] = y[0, ::2]
    return made


def number(x: Any, y: Any) -> Any:
    made = x.clone()
    made[3] = y[3]
    made[0] = 2
    return made


def argument(x: Any, y: Any) -> Any:
    x[1:3] = y[:2]
    x[0] = y[2]
    return x.clone()


def empty(x: Any, y: Any) -> Any:
    made = torch.empty_like(x)
    made[0] = y[2]
    made[1:] = x[:-1]
    return made


def loop(x: Any, y: Any) -> Any:
    made = x.clone()
    for i in range(30):
        made[i % 7] = y[i % 3]
    return made


def part_of_part(x: Any, y: Any) -> Any:
    made = x.clone()
    made[1][2] = y[0, 0]
    made[1][:2] = y[0, :2]
    return made


PROGRAMS: list[Program] = [rows, columns, number, argument, empty, loop, part_of_part]
DTYPES = [torch.complex64, torch.complex128, torch.uint16, torch.uint32, torch.uint64]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_parts_that_are_written(program: Program, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randint(100, (7, 7), generator=generator).to(dtype) for _ in range(2))
    if dtype.is_complex:
        x, y = x + 1j * y, y - 2j * x
    given = x.clone()
    found, expected = weft.compile(program)(given, y), program(x, y)
    assert found.stride() == expected.stride()
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    torch.testing.assert_close(given, x, rtol=0, atol=0)
