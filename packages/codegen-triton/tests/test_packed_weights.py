"""A few rows times weights of few bits, in the layouts that libraries store them in, beside float64."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from compiled_beside_eager import schedule_of
from torch.nn import functional as F
from weft_codegen_triton import TritonCodegen, TritonOptions

T = torch.Tensor
COLUMNS, GROUP = 12, 32


def unpacked(x: T, shift: int, width: int, added: float) -> T:
    return ((x >> shift) & ((1 << width) - 1)).to(torch.float32) + added


def extended(x: T, shift: int, width: int, added: float) -> T:
    return ((x << shift) >> shift).to(torch.float32) - added


def top(x: T, shift: int, width: int, added: float) -> T:
    return added + (x >> shift).to(torch.float16).float()


def difference(x: T, shift: int, width: int, added: float) -> T:
    mask = (1 << width) - 1
    return (((x >> shift) & mask) - ((x >> 1) & mask)).to(torch.float32) * added


@pytest.mark.parametrize("made", [unpacked, extended, top, difference], ids=lambda m: m.__name__)
@pytest.mark.parametrize(
    "dtype", [torch.int32, torch.int16, torch.int8, torch.uint8, torch.int64], ids=str
)
def test_bits_of_numbers(
    codegen: TritonCodegen, made: Callable[..., T], dtype: torch.dtype
) -> None:
    """Masks and shifts of numbers of all signs, as floats."""
    bits = 8 * dtype.itemsize
    x = torch.randint(-(2**31), 2**31, (300,)).to(dtype)
    cases = [
        (s, w, a) for s, w in ((0, 4), (bits - 4, 4), (3, 5), (bits // 2, 7)) for a in (8.0, -0.5)
    ]

    def function(x: T) -> tuple[T, ...]:
        return tuple(made(x, *case) for case in cases)

    results = codegen.compile(schedule_of(function, (x,), codegen), {})(x)
    for result, expected in zip(results, function(x), strict=True):
        torch.testing.assert_close(result, expected, rtol=0, atol=0)


def grouped(q: T, s: T, z: T | float, dtype: torch.dtype) -> T:
    return ((q.reshape(COLUMNS, -1, GROUP).to(dtype) - z) * s).flatten(1)


def interleaved(w: T, s: T, z: T) -> T:
    return grouped(torch.stack((w & 15, w >> 4), -1), s, 8, s.dtype)


def high_first(w: T, s: T, z: T) -> T:
    return grouped(torch.stack((w >> 4, w & 15), -1), s, 8, s.dtype)


def halves(w: T, s: T, z: T) -> T:
    return grouped(torch.cat((w & 15, w >> 4), -1), s, 8, s.dtype)


def halves_of_columns(w: T, s: T, z: T) -> T:
    w = w.view(COLUMNS // 2, -1)
    return grouped(torch.cat((w & 15, w >> 4), 0), s, z, s.dtype)


def zero_points(w: T, s: T, z: T) -> T:
    return grouped(torch.stack((w & 15, w >> 4), -1), s, z, s.dtype)


def added_zero_points(w: T, s: T, z: T) -> T:
    q = torch.stack((w & 15, w >> 4), -1).reshape(COLUMNS, -1, GROUP)
    return (q.to(s.dtype) * s + z).flatten(1)


def with_signs(w: T, s: T, z: T) -> T:
    return grouped(torch.stack(((w << 4) >> 4, w >> 4), -1), s, 0, s.dtype)


def words(w: T, s: T, z: T) -> T:
    shifts = torch.arange(0, 32, 4, dtype=torch.int32)
    return grouped((w[:, :, None] >> shifts) & 15, s, 8, s.dtype)


def words_less_zero_points(w: T, s: T, z: T) -> T:
    shifts = torch.arange(0, 32, 4, dtype=torch.int32)
    q = ((w[:, :, None] >> shifts) & 15).view(COLUMNS, -1, GROUP)
    packed = z.to(torch.int32) | 48
    return ((q - (packed & 15)).to(s.dtype) * s).flatten(1)


def in_float32(w: T, s: T, z: T) -> T:
    q = torch.stack((w & 15, w >> 4), -1).reshape(COLUMNS, -1, GROUP)
    return ((q.float() - 8) * s.float()).to(s.dtype).flatten(1)


def of_2_bits(w: T, s: T, z: T) -> T:
    parts = torch.stack([(w >> shift) & 3 for shift in (0, 2, 4, 6)], -1)
    return grouped(parts, s[:, :1].expand(-1, 2 * s.shape[1], 1), 1, s.dtype)


def of_8_bits(w: T, s: T, z: T) -> T:
    return w.to(s.dtype) * s[:, 0]


def of_8_bits_in_groups(w: T, s: T, z: T) -> T:
    return grouped(w, s[:, ::2], 0, s.dtype)


def of_8_bits_less_zero_points(w: T, s: T, z: T) -> T:
    return grouped(w, s[:, ::2], 128 + z[:, ::2], s.dtype)


STORED = {
    words: torch.int32,
    words_less_zero_points: torch.int32,
    with_signs: torch.int8,
    of_8_bits: torch.int8,
    of_8_bits_in_groups: torch.int8,
}
LAYOUTS: tuple[Callable[[T, T, T], T], ...] = (
    interleaved,
    high_first,
    halves,
    halves_of_columns,
    zero_points,
    added_zero_points,
    with_signs,
    words,
    words_less_zero_points,
    in_float32,
    of_2_bits,
    of_8_bits,
    of_8_bits_in_groups,
    of_8_bits_less_zero_points,
)


@pytest.fixture
def fusing(cache: Path) -> TritonCodegen:
    return TritonCodegen(TritonOptions(cache_directory=cache, fuse_matmuls=True))


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("groups", [16, 6, 66])  # of which the last step has a part
@pytest.mark.parametrize("made", LAYOUTS, ids=lambda made: made.__name__)
def test_beside_float64(
    fusing: TritonCodegen, made: Callable[..., T], groups: int, rows: int
) -> None:
    """A kernel of ours, whose results are from float64 as far as eager's, but for their rounding."""
    dtype = {16: torch.bfloat16, 6: torch.float16, 66: torch.float32}[groups]
    w = torch.randint(0, 256, (COLUMNS, groups * GROUP // 2), dtype=torch.uint8)
    w = w.view(STORED.get(made, torch.uint8))
    s = (torch.rand(COLUMNS, groups, 1) / 64 + 0.01).to(dtype)
    z = torch.randint(0, 16, (COLUMNS, groups, 1)).to(dtype)
    x = torch.randn(rows, made(w, s, z).shape[1]).to(dtype)

    def function(x: T, w: T, s: T, z: T) -> T:
        return F.linear(x, made(w, s, z))

    program = fusing.compile(schedule_of(function, (x, w, s, z), fusing), {})
    assert (program.extern_count, program.kernel_count) == (0, 2 if made is of_2_bits else 1)
    (result,) = program(x, w, s, z)
    exact = F.linear(x.double(), made(w, s.double(), z.double()))
    errors = [(r.double() - exact).norm() / exact.norm() for r in (result, function(x, w, s, z))]
    # sums have another order: Triton's interpreter adds up the 2048 rows of a block one after another
    in_sequence = 8 * torch.finfo(torch.float32).eps
    assert errors[0] <= 2 * errors[1] + torch.finfo(dtype).eps + in_sequence


@pytest.mark.parametrize("rows", [1, 3])
def test_of_what_is_computed_of_a_row(fusing: TritonCodegen, rows: int) -> None:
    """What all elements of the rows are multiplied by stays with them, as what a weight's are does."""
    w = torch.randint(0, 256, (COLUMNS, 256), dtype=torch.uint8)
    s = (torch.rand(COLUMNS, 16, 1) / 64 + 0.01).bfloat16()
    x = torch.randn(rows, 512).bfloat16()

    def function(x: T, w: T, s: T) -> T:
        return F.linear((x + 1) * 0.25, interleaved(w, s, s))

    program = fusing.compile(schedule_of(function, (x, w, s), fusing), {})
    assert (program.extern_count, program.kernel_count) == (0, 1)
    (result,) = program(x, w, s)
    exact = function(x.double(), w, s.double())
    errors = [(r.double() - exact).norm() / exact.norm() for r in (result, function(x, w, s))]
    assert errors[0] <= 2 * errors[1] + torch.finfo(torch.bfloat16).eps
