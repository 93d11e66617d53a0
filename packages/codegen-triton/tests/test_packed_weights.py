"""A few rows times weights of few bits, in the layouts that libraries store them in, beside float64."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import packed_layouts
import pytest
import torch
from compiled_beside_eager import schedule_of
from packed_layouts import COLUMNS, LAYOUTS, OF_SEVERAL, T, interleaved, of_2_bits, stored
from torch.nn import functional as F
from weft_codegen_triton import TritonCodegen, TritonOptions
from weft_codegen_triton.matmuls import tiles


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
    w, s, z = stored(made, groups, dtype)
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


def nibbles(w: T, s: T) -> T:
    q = torch.stack((w & 15, w >> 4), -1).view(*s.shape[:2], -1)
    return ((q.to(s.dtype) - 8) * s).flatten(1)


def gated(x: T, w: T, s: T, u: T, v: T) -> tuple[T, ...]:
    y = F.silu(F.linear(x, nibbles(w, s))) * F.linear(x, nibbles(u, v))
    return y, y.float().sum(0)


@pytest.mark.parametrize("rows", [2, 5, 16])
@pytest.mark.parametrize("group", [128, 32])
def test_what_reads_few_rows(
    fusing: TritonCodegen, monkeypatch: pytest.MonkeyPatch, group: int, rows: int
) -> None:
    """Rows by instructions of matrices where blocks of words have a scale, and up to eight one by one."""
    if group == 128:  # as where columns are many
        monkeypatch.setattr(tiles, "MAX_ROWS", 0)
    inputs = [torch.randn(rows, 1024).half()]
    for _ in range(2):
        inputs.append(torch.randint(0, 256, (COLUMNS, 512), dtype=torch.uint8))
        inputs.append((torch.rand(COLUMNS, 1024 // group, 1) / 64 + 0.01).half())
    program = fusing.compile(schedule_of(gated, inputs, fusing), {})
    assert program.extern_count == 0
    assert ("SPLITS" in program.source) == (group == 128)
    assert ("sums_1" in program.source) == (group == 32 and rows <= 8)
    exact = gated(*(t.double() if t.is_floating_point() else t for t in inputs))
    for result, eager, wanted in zip(program(*inputs), gated(*inputs), exact, strict=True):
        own, others = ((r.double() - wanted).norm() / wanted.norm() for r in (result, eager))
        assert own <= 2 * others + torch.finfo(torch.float16).eps


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("made", LAYOUTS, ids=lambda made: made.__name__)
def test_instructions_of_matrices(
    fusing: TritonCodegen,
    monkeypatch: pytest.MonkeyPatch,
    made: Callable[..., T],
    dtype: torch.dtype,
) -> None:
    """Sixteen rows of weights whose groups are whole blocks of words: those that have one word a number."""
    monkeypatch.setattr(packed_layouts, "GROUP", 128)
    weight = stored(made, 8, dtype)
    x = torch.randn(16, made(*weight).shape[1]).to(dtype)

    def function(x: T, w: T, s: T, z: T) -> T:
        return F.linear(x, made(w, s, z))

    program = fusing.compile(schedule_of(function, (x, *weight), fusing), {})
    assert ("SPLITS" in program.source) == (made not in OF_SEVERAL)
    (result,) = program(x, *weight)
    exact = function(*(t.double() if t.is_floating_point() else t for t in (x, *weight)))
    own, others = (
        (r.double() - exact).norm() / exact.norm() for r in (result, function(x, *weight))
    )
    # Triton's interpreter cuts float32 off where it makes bfloat16
    assert own <= 2 * others + torch.finfo(dtype).eps
