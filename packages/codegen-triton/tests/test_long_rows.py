"""Rows that a loop reads by vectors: of odd lengths, beginning anywhere, in several blocks."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from compiled_beside_eager import check, compiled, schedule_of
from torch.nn import functional as F
from weft_codegen_triton import TritonCodegen

LENGTHS = (64, 67, 70, 97)
"""Whole vectors and not; several blocks of 16 or 32 elements."""


def statistics(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What a softmax leaves for its gradient."""
    largest = x.amax(-1, keepdim=True)
    return largest, (x - largest).exp().sum(-1, keepdim=True)


PROGRAMS: dict[str, Callable[[torch.Tensor], Any]] = {
    "softmax": lambda x: x.softmax(-1),
    "log softmax": lambda x: x.log_softmax(-1),
    "statistics": lambda x: statistics(x),
    "statistics and weights": lambda x: (*statistics(x), x.softmax(-1)),
    "softmax in float32": lambda x: x.float().softmax(-1).to(x.dtype),
    "sums": lambda x: (x.sum(-1), x.amax(-1), (x > 0).any(-1)),
    "positions": lambda x: (x.argmax(-1), x.argmin(-1)),
    "normalised": lambda x: F.layer_norm(x, (x.shape[-1],)),
    "turned round": lambda x: x.amax(-1, keepdim=True) * x.flip(-1),
    "in place of a row": lambda x: x / x.abs().sum(-1, keepdim=True),
}


def values(dtype: torch.dtype, rows: int, length: int) -> torch.Tensor:
    return (torch.randn(rows, length) * 3).to(dtype)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", PROGRAMS)
def test_against_eager(stepping: TritonCodegen, name: str, dtype: torch.dtype, length: int) -> None:
    check(stepping, PROGRAMS[name], values(dtype, 5, length))


def test_rows_that_begin_anywhere(stepping: TritonCodegen) -> None:
    wide = values(torch.float32, 6, 83)

    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        part = x[:, 3:74]
        return part.softmax(-1), part.argmax(-1), part.exp().sum(-1)

    assert "rshift" in check(stepping, program, wide).source


def test_buffers_that_begin_differently(stepping: TritonCodegen) -> None:
    x, y = values(torch.float32, 5, 67), values(torch.float32, 5, 80)
    check(stepping, lambda x, y: (x * y[:, :67]).softmax(-1) + y[:, 1:68], x, y)


def test_groups_whose_images_are_no_whole_vectors(stepping: TritonCodegen) -> None:
    x, weight = torch.randn(2, 8, 7, 7), torch.randn(8)
    check(stepping, lambda x, w: F.silu(F.group_norm(x, 2, w)), x, weight)
    check(stepping, lambda x, w: F.group_norm(x, 2, w), x.bfloat16(), weight.bfloat16())
    check(stepping, lambda x, w: F.group_norm(x, 2, w), torch.randn(2, 8, 8, 8), weight)


@pytest.mark.parametrize("length", [64, 67])
@pytest.mark.parametrize("special", [math.nan, math.inf, -math.inf], ids=str)
def test_special_values(stepping: TritonCodegen, special: float, length: int) -> None:
    x = values(torch.float32, 9, length)
    for row, column in ((0, 0), (1, length - 1), (2, 33), (3, 17)):
        x[row, column] = special
    x[4] = special
    x[5, 10:40] = special
    for name in ("softmax", "log softmax", "positions", "sums", "statistics"):
        check(stepping, PROGRAMS[name], x)


def test_the_first_of_equals(stepping: TritonCodegen) -> None:
    for length in LENGTHS:
        x = torch.randint(0, 3, (9, length)).float()
        check(stepping, PROGRAMS["positions"], x)
        check(stepping, PROGRAMS["positions"], (x * 0).to(torch.int64))
        check(stepping, PROGRAMS["positions"], torch.full_like(x, -math.inf))


def test_a_softmax_reads_a_row_twice(stepping: TritonCodegen) -> None:
    x = values(torch.float32, 5, 64)
    assert check(stepping, PROGRAMS["softmax"], x).source.count("tl.load(in0_ptr") == 2


def test_statistics_are_found_in_one_pass(stepping: TritonCodegen) -> None:
    for length in LENGTHS:
        source = check(stepping, statistics, values(torch.float32, 5, length)).source
        kernel = source.partition("def compute")[0]
        assert "exponentials_" in kernel
        assert "tl.exp(" not in kernel


def test_large_numbers_keep_a_softmax_exact(stepping: TritonCodegen) -> None:
    x = values(torch.float32, 5, 67) + torch.tensor([0, 1e3, -1e3, 3e4, 1e-3])[:, None]
    check(stepping, PROGRAMS["softmax"], x)
    x[:, 20:] -= 3e4
    check(stepping, PROGRAMS["softmax"], x)


@pytest.mark.parametrize("size", [1e-42, 1e-38, 1e-20, 1.0, 1e20, 3e37])
def test_division_by_a_row(codegen: TritonCodegen, size: float) -> None:
    x = torch.rand(4, 8) * size + size
    x[1, 3], x[2, 0], x[3] = 0.0, -size, math.inf

    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x / x.amax(1, keepdim=True), x / (x.amax(1, keepdim=True) * 0)

    check(codegen, program, x)


def test_moments_of_rows_far_from_zero(stepping: TritonCodegen) -> None:
    x = torch.randn(4, 200) + torch.tensor([0.0, 1e3, -3e4, 1e5])[:, None]
    x[0, 7] = 1e4
    variance, mean = compiled(stepping, lambda x: torch.var_mean(x, -1, correction=0), x)(x)
    exact, middle = torch.var_mean(x.double(), -1, correction=0)
    condition = 1 + middle.abs() / exact.sqrt()
    assert ((variance.double() / exact - 1).abs() < 1e-6 * condition).all()
    torch.testing.assert_close(mean.double(), middle, rtol=1e-6, atol=1e-4)


def test_few_of_the_longest_rows_are_read_at_once(codegen: TritonCodegen) -> None:
    def block(columns: int, function: Callable[[torch.Tensor], Any]) -> int:
        x = torch.empty(2000, columns, dtype=torch.bfloat16)
        (found,) = codegen.print(schedule_of(function, (x,), codegen)).functions.values()
        return dict(found.constants)["RBLOCK"]

    softmax = PROGRAMS["softmax"]
    assert block(32000, softmax) == 2 * block(25088, softmax)
    assert block(32000, lambda x: x.sum(-1)) == block(25088, softmax)  # is read once


@pytest.mark.parametrize("dtype", [torch.int8, torch.int64, torch.bool], ids=str)
def test_positions_of_numbers(stepping: TritonCodegen, dtype: torch.dtype) -> None:
    """The vector that has the best element is read again, and of equal elements the first counts."""
    for length in (64, 67):
        x = torch.randint(0, 100, (5, length)).to(dtype)
        x[1], x[2] = (False, True) if dtype is torch.bool else (torch.iinfo(dtype).min, 7)
        program = PROGRAMS["positions"] if dtype is not torch.bool else lambda x: (x * 2).argmax(-1)
        source = check(stepping, program, x).source
        assert ("VBLOCK: tl.constexpr" in re.sub(r"\d", "", source)) == ("VECTOR" in source)


def test_positions_of_what_is_computed(stepping: TritonCodegen) -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x.softmax(-1)
        return y, y.argmax(-1), (x.flip(-1) * y + 1).argmin(-1)

    for length in (64, 67):
        check(stepping, program, values(torch.float32, 5, length))


def test_positions_of_what_is_not_computed_anew(stepping: TritonCodegen) -> None:
    """Elements that lie at places read from memory are compared one by one."""
    x, places = values(torch.float32, 5, 67), torch.randint(0, 67, (67,))
    source = check(stepping, lambda x, p: x[:, p].argmax(-1), x, places).source
    assert "VECTOR" in source and "VBLOCK" not in re.sub(r"\d", "", source)
