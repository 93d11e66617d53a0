"""Matrix products in kernels of our own, with the loops around them, beside eager."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import weft_loop_ir
from compiled_beside_eager import assert_equals_eager, schedule_of
from matmul_cases import ALL, T, randn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F
from weft_codegen_triton import TritonCodegen, TritonOptions, TritonProgram
from weft_codegen_triton.gpu import REFERENCE
from weft_codegen_triton.matmuls.fuse_matmuls import fuse_matmuls
from weft_codegen_triton.matmuls.tiles import CHANNEL_TILES
from weft_loop_ir import ExternCall


@pytest.fixture(scope="module")
def fusing(cache: Path) -> TritonCodegen:
    return TritonCodegen(TritonOptions(cache_directory=cache, fuse_matmuls=True))


def run(
    fusing: TritonCodegen, function: Callable[..., Any], *inputs: T, dynamic: bool = False
) -> TritonProgram:
    program = fusing.compile(schedule_of(function, inputs, fusing, dynamic), {})
    assert_equals_eager(program(*inputs), function, inputs)
    return program


@pytest.mark.parametrize("name", ALL)
def test_matmuls(fusing: TritonCodegen, name: str) -> None:
    function, inputs, kernels = ALL[name]
    program = run(fusing, function, *inputs)
    assert (program.extern_count, program.kernel_count) == (0, kernels)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "name",
    ["odd sizes", "a weight as it lies", "heads", "form, scaled", "form, added to a batch"]
    + ["before, an activation", "before, scales of rows"]
    + ["convolution, 3 x 3", "convolution, each channel by itself"],
)
def test_half_precision(fusing: TritonCodegen, name: str, dtype: torch.dtype) -> None:
    function, inputs, kernels = ALL[name]
    program = run(fusing, function, *(t.to(dtype) for t in inputs))
    assert (program.extern_count, program.kernel_count) == (0, kernels)


@pytest.mark.parametrize(
    "name",
    ["odd sizes", "a weight as it lies", "a residual", "two results", "alone, one row"]
    + ["form, batch", "form, batch of transposed ones", "form, added to a batch"]
    + ["form, matrix and vector", "before, a broadcast batch"],
)
def test_sizes_that_vary(fusing: TritonCodegen, name: str) -> None:
    """One program for several sizes: every size is a symbol."""
    function, inputs, kernels = ALL[name]
    program = run(fusing, function, *inputs, dynamic=True)
    assert (program.extern_count, program.kernel_count) == (0, kernels)


def test_one_program_for_several_sizes(fusing: TritonCodegen) -> None:
    def function(x: T, w: T) -> T:
        return torch.bmm(x, w).relu()

    first = randn(3, 33, 20), randn(3, 20, 40)
    program = fusing.compile(schedule_of(function, first, fusing, dynamic=True), {})
    for batch, rows, inner, columns in (
        (3, 33, 20, 40),
        (2, 70, 65, 3),
        (1, 1, 1, 1),
        (0, 5, 6, 7),
    ):
        inputs = randn(batch, rows, inner), randn(batch, inner, columns)
        assert_equals_eager(program(*inputs), function, inputs)
    assert program.extern_count == 0


OTHERS: dict[str, tuple[Callable[..., Any], tuple[T, ...]]] = {
    "float64": (lambda x, w: (x @ w).relu(), (randn(20, 32).double(), randn(32, 48).double())),
    "integers": (
        lambda x, w: x @ w,
        (torch.arange(32).view(4, 8), torch.arange(40).view(8, 5)),
    ),
    "groups of channels": (
        lambda x, w: F.conv2d(x, w, groups=2),
        (randn(1, 32, 4, 4), randn(32, 16, 3, 3)),
    ),
    "few channels": (lambda x, w: F.conv2d(x, w), (randn(1, 3, 4, 4), randn(32, 3, 3, 3))),
    "a transposed convolution": (
        lambda x, w: F.conv_transpose2d(x, w),
        (randn(1, 16, 4, 4), randn(16, 16, 3, 3)),
    ),
    "no image": (lambda x, w: F.conv2d(x, w), (randn(0, 16, 4, 4), randn(16, 16, 3, 3))),
    "nothing": (lambda x, w: x @ w, (randn(0, 32), randn(32, 48))),
    "nothing in common": (lambda x, w: x @ w + 1, (randn(20, 0), randn(0, 48))),
}


@pytest.mark.parametrize("name", OTHERS)
def test_others_are_the_librarys(fusing: TritonCodegen, name: str) -> None:
    function, inputs = OTHERS[name]
    assert run(fusing, function, *inputs).extern_count == 1


def test_memory_that_tiles_still_read_is_not_given_away(fusing: TritonCodegen) -> None:
    """The left operand is an intermediate of the result's size that dies with the product."""

    def function(x: T, w: T) -> T:
        a = (x @ x).relu()
        return ((a @ w).relu() @ w).softmax(-1)

    assert run(fusing, function, randn(160, 160), randn(160, 160)).extern_count == 0


def test_what_is_written_later_is_read_before(fusing: TritonCodegen) -> None:
    """An operand's producer does not move behind a write to what it reads, nor does it run twice."""

    def function(x: T, w: T) -> tuple[T, T]:
        y = x.relu()
        return y @ w, y

    program = run(fusing, function, randn(33, 40), randn(40, 50))
    assert (program.extern_count, program.kernel_count) == (0, 2)


@pytest.mark.parametrize("operand", range(4), ids=["left", "right", "bias", "scale"])
@pytest.mark.parametrize("is_first", [False, True])
def test_an_operand_that_a_kernel_beside_its_loops_writes(
    fusing: TritonCodegen, operand: int, is_first: bool
) -> None:
    """An optimizer's update of a weight in parallel with an activation: the matmul reads the old one."""

    def function(x: T, w: T, b: T, s: T, k: T) -> tuple[T, T]:
        written = (x, w, b, s)[operand]
        if is_first:
            updated = written * k
        y = torch.addmm(b, x, w * s).relu()
        return y, updated if is_first else written * k

    inputs = randn(48, 48), randn(48, 48), randn(48, 48), randn(48, 1), randn(48, 1)
    graph = make_fx(function, tracing_mode="fake")(*inputs)
    lowered = weft_loop_ir.write_back(
        weft_loop_ir.lower(graph, options=fusing.lowering_options), {1: operand}
    )
    schedule = weft_loop_ir.schedule(lowered, fusing.schedule_options)
    expected = function(*inputs)
    results = fusing.compile(schedule, {})(*inputs)
    torch.testing.assert_close(results, expected)


def test_dear_operands_are_computed_once(fusing: TritonCodegen) -> None:
    """Many columns would have each exponential computed for each tile of them; few rows have few."""
    for function, rows, kernels in (
        (lambda x, w: x.exp() @ w, 300, 2),
        (lambda x, w: x.exp() @ w, 4, 1),
        (lambda x, w: x.float() @ w.float(), 300, 1),
    ):
        dtype = torch.float16 if kernels == 1 and rows > 4 else torch.float32
        program = run(fusing, function, randn(rows, 40).to(dtype), randn(40, 1000))
        assert (program.extern_count, program.kernel_count) == (0, kernels)


@pytest.mark.parametrize("ends", [(5, 20, 41), (0, 41, 41), (41, 41, 41), (1, 2, 40), (5, 64, 64)])
def test_groups_of_rows(fusing: TritonCodegen, ends: tuple[int, ...]) -> None:
    def function(x: T, w: T, offsets: T) -> T:
        return torch._grouped_mm(x, w, offsets).relu()

    x, w = randn(max(ends[-1], 41), 32).bfloat16(), randn(3, 32, 48).bfloat16()
    offsets = torch.tensor(ends, dtype=torch.int32)
    program = fusing.compile(schedule_of(function, (x, w, offsets), fusing), {})
    (result,) = program(x, w, offsets)
    expected = function(x, w, offsets)
    if len(x) == 64:  # groups begin within tiles, so that the last one reaches beyond the rows
        assert "y % 64" in program.source
    last = ends[-1]  # rows behind the last group hold anything
    torch.testing.assert_close(result[:last], expected[:last], rtol=2e-2, atol=2e-2)
    assert (program.extern_count, program.kernel_count) == (0, 1)


def test_quantised_weights(fusing: TritonCodegen) -> None:
    def function(x: T, w: T, s: T) -> T:
        return F.linear(x, w.to(x.dtype) * s)

    w = torch.randint(-127, 128, (50, 40), dtype=torch.int8)
    program = run(fusing, function, randn(4, 40).half(), w, (randn(50, 1) / 127).half())
    assert (program.extern_count, program.kernel_count) == (0, 1)


def of_8_bits(w: T, s: T, dtype: torch.dtype) -> T:
    return w.to(dtype) * s


def of_4_bits(w: T, s: T, dtype: torch.dtype) -> T:
    """Two neighbours along a row lie in a byte, the first in its lower half; a scale for each 32."""
    both = torch.stack((w & 15, w >> 4), -1).view(len(w), -1, 32).to(dtype) - 8
    return (both * s).view(len(w), -1)


def of_4_bits_apart(w: T, s: T, dtype: torch.dtype) -> T:
    """The lower halves of a row's bytes are its first elements, the others its last."""
    return torch.cat((w & 15, w >> 4), -1).to(dtype) * s


def of_2_bits(w: T, s: T, dtype: torch.dtype) -> T:
    parts = torch.stack([(w >> shift) & 3 for shift in (0, 2, 4, 6)][:2], -1)
    return parts.flatten(1).to(dtype) * s


QUANTISED: dict[str, tuple[Callable[..., T], torch.dtype, int, tuple[int, ...]]] = {
    "8 bits": (of_8_bits, torch.int8, 192, (50, 1)),
    "8 bits without a sign": (of_8_bits, torch.uint8, 192, (50, 1)),
    "float8": (of_8_bits, torch.float8_e4m3fn, 192, (50, 1)),
    "4 bits": (of_4_bits, torch.uint8, 96, (50, 6, 1)),
    "4 bits, an odd count": (of_4_bits, torch.uint8, 16, (50, 1, 1)),
    "4 bits apart": (of_4_bits_apart, torch.uint8, 96, (50, 1)),
    "2 bits": (of_2_bits, torch.uint8, 96, (50, 1)),
}
"""How a weight of 50 rows is made of what is stored, the stored dtype and columns, and the scale's size."""


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", QUANTISED)
def test_quantised_weights_of_few_rows(
    fusing: TritonCodegen, name: str, dtype: torch.dtype, rows: int
) -> None:
    """One kernel reads the stored numbers, and nothing of the weight is stored besides."""
    made, stored, columns, scale = QUANTISED[name]

    def function(x: T, w: T, s: T) -> T:
        return F.linear(x, made(w, s, x.dtype))

    torch.manual_seed(0)
    w = torch.randint(0, 256, (50, columns), dtype=torch.uint8)
    w = w.to(torch.int8) if stored is torch.int8 else w // 2 if stored.is_floating_point else w
    w = w.view(stored) if stored.is_floating_point else w
    s = (randn(*scale) / 64).to(dtype)
    x = randn(rows, made(w, s, dtype).shape[1]).to(dtype)
    program = run(fusing, function, x, w, s)
    assert (program.extern_count, program.kernel_count) == (0, 1)


def test_independent_products_are_one_launch(fusing: TritonCodegen) -> None:
    def function(x: T, q: T, k: T, v: T) -> tuple[T, ...]:
        heads = [(x @ w).view(20, 4, -1).transpose(0, 1).contiguous() for w in (q, k)]
        return (*heads, x @ v)

    program = run(fusing, function, randn(20, 32), randn(32, 64), randn(32, 64), randn(32, 48))
    assert (program.extern_count, program.kernel_count) == (0, 1)


def test_products_of_each_other_are_several_launches(fusing: TritonCodegen) -> None:
    def function(x: T, w: T) -> tuple[T, T]:
        y = x @ w
        return y, y @ w

    program = run(fusing, function, randn(20, 32), randn(32, 32))
    assert (program.extern_count, program.kernel_count) == (0, 2)


def test_dropout_of_a_product(fusing: TritonCodegen, codegen: TritonCodegen) -> None:
    """The same elements are dropped as where the library multiplies."""

    def dropped(x: T, w: T) -> T:
        return torch.ops.aten.native_dropout(x @ w, 0.5, True)[0]

    inputs = randn(33, 40), randn(40, 50)
    graph = make_fx(dropped, tracing_mode="fake")(*inputs)
    codegen.rewrite(graph)
    schedule = weft_loop_ir.schedule(weft_loop_ir.lower(graph), codegen.schedule_options)
    results = []
    for chosen, calls in ((fusing, 1), (codegen, 2)):
        program = chosen.compile(schedule, {})
        assert program.extern_count == calls
        torch.manual_seed(3)
        results.append(program(*inputs)[0])
    torch.testing.assert_close(*results)
    assert 0.3 < (results[0] == 0).float().mean() < 0.7


def test_products_obey_the_precision_of_each_call(
    fusing: TritonCodegen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compiled once for each setting that a call is made under."""
    printed = []
    original = TritonCodegen.print

    def noted(self: TritonCodegen, schedule: Any, precision: Any, **options: Any) -> Any:
        printed.append(precision.matmuls)
        return original(self, schedule, precision, **options)

    monkeypatch.setattr(TritonCodegen, "print", noted)
    inputs = randn(20, 32), randn(32, 48)
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("highest")
        program = run(fusing, lambda x, w: (x @ w).relu(), *inputs)
        assert 'input_precision="ieee"' in program.source
        torch.set_float32_matmul_precision("high")
        for _ in range(2):
            torch.testing.assert_close(program(*inputs)[0], (inputs[0] @ inputs[1]).relu())
    finally:
        torch.set_float32_matmul_precision(before)
    program(*inputs)
    assert printed == ["ieee", "tf32"]


def test_the_library_multiplies_by_default(codegen: TritonCodegen) -> None:
    inputs = randn(64, 64), randn(64, 64)
    schedule = schedule_of(lambda x, w: (x @ w).relu(), inputs, codegen)
    assert sum(isinstance(s, ExternCall) for s in schedule.steps) == 1
    assert codegen.compile(schedule, {}).extern_count == 1


@pytest.mark.parametrize("unrolls", [False, True])
@pytest.mark.parametrize(
    "name", [n for n in ALL if n.startswith("convolution, each channel")], ids=str
)
def test_tiles_of_channels(fusing: TritonCodegen, name: str, unrolls: bool) -> None:
    function, inputs, _ = ALL[name]
    schedule = schedule_of(function, inputs, fusing)
    tile = next(t for t in CHANNEL_TILES[::-1] if t.unrolls == unrolls)
    chosen = fuse_matmuls(
        schedule, lambda forms: replace(forms[0], tile=tile), fusing.schedule_options, REFERENCE
    )
    program = fusing.compile(chosen, {})
    assert ("loop_unroll_factor" in program.source) == unrolls and program.extern_count == 0
    assert_equals_eager(program(*inputs), function, inputs)
