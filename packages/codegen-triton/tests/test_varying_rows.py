"""Reductions of rows whose length varies: in registers where they fit a block, split where they are long."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import weft_loop_ir
from compiled_beside_eager import assert_equals_eager, schedule_of
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import (
    DimDynamic,
    ShapeEnv,
    StatelessSymbolicContext,
)
from torch.nn import functional as F
from weft_codegen_triton import TritonCodegen, TritonOptions, TritonProgram
from weft_codegen_triton.kernel.blocks import MIN_VARYING_BLOCK
from weft_loop_ir import evaluate

T = torch.Tensor

ROWS: dict[str, Callable[[T], Any]] = {
    "softmax": lambda x: x.softmax(-1),
    "several results": lambda x: (x.sum(-1), x.amax(-1), x.argmax(-1), x.var(-1)),
    "layer norm": lambda x: F.layer_norm(x * 2, x.shape[-1:]),
    "row that is kept": lambda x: x.softmax(-1).sort(-1).values.cumsum(-1) + x.exp().sum(-1, True),
    "two lengths": lambda x: x / x.sum(-1, True) + torch.cat([x, x], -1).amax(-1, True),
    "two dimensions": lambda x: x.reshape(2, x.shape[0] // 2, -1).softmax(-1).sum((1, 2)),
    "columns": lambda x: (x.sum(0), x.softmax(0)),
}


def compiled(
    cache: Path, function: Callable[..., Any], *inputs: T, **options: Any
) -> TritonProgram:
    codegen = TritonCodegen(TritonOptions(cache_directory=cache, **options))
    program = codegen.compile(schedule_of(function, inputs, codegen, dynamic=True), {})
    assert isinstance(program, TritonProgram)
    return program


@pytest.mark.parametrize("name", ROWS)
def test_rows_of_any_length(name: str, cache: Path) -> None:
    function = ROWS[name]
    program = compiled(cache, function, torch.randn(6, 40))
    block = MIN_VARYING_BLOCK
    for rows, length in (
        (6, 40),
        (2, 1 + (name == "several results")),
        (4, block),
        (4, block + 1),
        (8, 3 * block + 5),
        (6, 40),
    ):
        x = torch.randn(rows, length)
        assert_equals_eager(program(x), function, (x,))


def test_both_forms_are_in_a_kernel(cache: Path) -> None:
    program = compiled(cache, ROWS["softmax"], torch.randn(6, 300))
    assert "if (s96 <= RBLOCK):" in program.source or "<= RBLOCK):" in program.source
    (function,) = program.generated.printed.functions.values()
    assert dict(function.constants)["RBLOCK"] == 512
    looped = compiled(cache, ROWS["softmax"], torch.randn(6, 300), persistent_elements=128)
    assert "_held" not in looped.source


def test_memory_of_long_rows_alone(cache: Path) -> None:
    """What a kernel keeps of rows that it holds in registers has no memory."""

    def function(x: T) -> T:
        y = x.softmax(-1)
        return y.flip(-1) + y

    program = compiled(cache, function, torch.randn(6, 40))
    for length in (40, 64, 65, 200):
        x = torch.randn(6, length)
        assert_equals_eager(program(x), function, (x,))


@pytest.mark.parametrize("name", ROWS)
def test_rows_that_are_long_where_a_graph_is_made_and_short_later(name: str, cache: Path) -> None:
    """Their unrolled loops have no step then."""
    program = compiled(cache, ROWS[name], torch.randn(4, 400), persistent_elements=64)
    for rows, length in ((4, 400), (6, 33), (4, 2), (2, 64), (2, 65), (4, 400)):
        x = torch.rand(rows, length) + 0.1
        assert_equals_eager(program(x), ROWS[name], (x,))


# -- splits ----------------------------------------------------------------------------------------------

KINDS: dict[str, tuple[Callable[[T, int], T], tuple[torch.dtype, ...]]] = {
    "sum": (lambda x, d: x.sum(d), (torch.float32, torch.float16, torch.int32, torch.bool)),
    "prod": (lambda x, d: x.prod(d), (torch.float64, torch.int64)),
    "amax": (lambda x, d: x.amax(d), (torch.float32, torch.uint8, torch.int64)),
    "amin": (lambda x, d: x.amin(d), (torch.bfloat16, torch.int8)),
    "any": (lambda x, d: x.any(d), (torch.bool, torch.float32)),
    "all": (lambda x, d: x.all(d), (torch.bool, torch.int32)),
    "sum of logarithms": (lambda x, d: (x.abs() + 1).log().sum(d), (torch.float32,)),
}
SPLIT_CASES = [(k, d, t) for k, (_, dtypes) in KINDS.items() for d in (0, 1) for t in dtypes]


def data(rows: int, columns: int, dtype: torch.dtype) -> T:
    if dtype is torch.bool:
        return torch.rand(rows, columns) < 0.01
    if dtype.is_floating_point:
        return torch.randn(rows, columns).to(dtype) * 0.5 + 0.5
    return torch.randint(0, 5, (rows, columns)).to(dtype)


class SplitsSooner(TritonCodegen):
    schedule_options = dataclasses.replace(
        TritonCodegen().schedule_options, split_reduction_elements=256, split_column_elements=256
    )


def sized(dimension: int, length: int) -> tuple[int, int]:
    return (3, length) if dimension else (length, 3)


@pytest.mark.parametrize(("kind", "dimension", "dtype"), SPLIT_CASES)
def test_splits_of_any_length(kind: str, dimension: int, dtype: torch.dtype, cache: Path) -> None:
    reduce = KINDS[kind][0]

    def function(x: T) -> T:
        return reduce(x, dimension)

    codegen = SplitsSooner(TritonOptions(cache_directory=cache))
    schedule = schedule_of(function, (data(*sized(dimension, 500), dtype),), codegen, dynamic=True)
    program = codegen.compile(schedule, {})
    assert program.kernel_count == 2
    lengths = [500, 1, 64, 65, 448, 1031]
    if kind not in ("amax", "amin"):
        lengths.append(0)
    for length in lengths:
        x = data(*sized(dimension, length), dtype)
        assert_equals_eager(program(x), function, (x,))


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    st.integers(1, 900),
    st.integers(1, 5),
    st.sampled_from([0, 1]),
    st.sampled_from(["sum", "amax"]),
)
def test_split_schedules_of_any_size(length: int, others: int, dimension: int, kind: str) -> None:
    """The schedule itself, as the loop-level IR's evaluator runs it."""
    reduce = KINDS[kind][0]
    first = torch.randn(*sized(dimension, 700))
    with torch.no_grad():
        graph = make_fx(lambda x: reduce(x, dimension), tracing_mode="symbolic")(first)
    schedule = weft_loop_ir.schedule(
        weft_loop_ir.lower(graph), dataclasses.replace(SplitsSooner.schedule_options, verify=True)
    )
    assert len(schedule.steps) == 2
    x = torch.randn(others, length) if dimension else torch.randn(length, others)
    (result,) = evaluate(schedule, [x])
    torch.testing.assert_close(result, reduce(x, dimension))


def test_moments_that_vary_stay_whole(cache: Path) -> None:
    codegen = SplitsSooner(TritonOptions(cache_directory=cache))
    x = torch.randn(3, 500)
    program = codegen.compile(schedule_of(lambda x: x.var(1), (x,), codegen, dynamic=True), {})
    assert program.kernel_count == 1
    assert_equals_eager(program(x), lambda x: x.var(1), (x,))


def test_moments_of_images_of_any_size_are_split_by_channels(cache: Path) -> None:
    """Whose channels are fixed: so parts have one length, whatever it is."""

    def function(x: T) -> Any:
        return *torch.var_mean(x, (1, 2, 3)), F.group_norm(x, 2)

    codegen = SplitsSooner(TritonOptions(cache_directory=cache))
    fake = image_of_any_size(torch.randn(3, 6, 20, 9))
    lowered = weft_loop_ir.lower(make_fx(function)(fake), options=codegen.lowering_options)
    program = codegen.compile(weft_loop_ir.schedule(lowered, codegen.schedule_options), {})
    assert program.kernel_count > 2
    for height, width in ((20, 9), (1, 1), (16, 16), (2, 31), (40, 3)):
        x = 100 + torch.randn(3, 6, height, width)
        assert_equals_eager(program(x), function, (x,))


def image_of_any_size(x: T) -> T:
    """A fake tensor like ``x`` of which the last two sizes vary."""
    mode = FakeTensorMode(shape_env=ShapeEnv())
    varies = [DimDynamic.STATIC] * (x.dim() - 2) + [DimDynamic.DYNAMIC] * 2
    return mode.from_tensor(x, symbolic_context=StatelessSymbolicContext(dynamic_sizes=varies))


LONG: dict[str, Callable[[T], Any]] = {
    "softmax": ROWS["softmax"],
    "several results": lambda x: (x.sum(-1), x.amax(-1), x.argmax(-1), x.argmin(-1)),
    "variance": lambda x: x.var(-1),
    "half": lambda x: x.half().log_softmax(-1),
    "rows that are cut out": lambda x: x[1:, 3:].exp().sum(-1),
}


@pytest.mark.parametrize("name", LONG)
def test_long_rows_of_any_length(name: str, cache: Path) -> None:
    """Read by vectors, whatever they begin at."""
    function = LONG[name]
    options = {"persistent_elements": 16, "loop_elements": 32}
    program = compiled(cache, function, torch.randn(5, 150), **options)
    for rows, length in ((5, 150), (3, 160), (7, 33), (1, 5), (2, 301)):
        x = torch.randn(rows, length)
        assert_equals_eager(program(x), function, (x,))


def test_long_rows_of_any_length_are_read_as_fixed_ones(cache: Path) -> None:
    codegen = TritonCodegen(TritonOptions(cache_directory=cache))
    x = torch.empty(512, 50257, dtype=torch.bfloat16)
    fixed, varying = (
        codegen.print(schedule_of(ROWS["softmax"], (x,), codegen, dynamic=dynamic)).source
        for dynamic in (False, True)
    )
    loads = [line.split("(")[0] for line in varying.splitlines() if "tl.load" in line]
    assert loads == [line.split("(")[0] for line in fixed.splitlines() if "tl.load" in line]


MOMENTS: dict[str, Callable[[T], Any]] = {
    "variance and mean": lambda x: torch.var_mean(x, (2, 3)),
    "instance norm": lambda x: F.instance_norm(x).relu(),
    "group norm": lambda x: F.silu(F.group_norm(x, 2)) + x,
    "layer norm of images": lambda x: F.layer_norm(x, x.shape[1:]),
    "half": lambda x: F.group_norm(x.half(), 1),
}


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("name", MOMENTS)
def test_moments_of_whole_vectors_and_others(name: str, wide: bool, cache: Path) -> None:
    function = MOMENTS[name]
    options: dict[str, Any] = {"persistent_elements": 16, "loop_elements": 32}
    if wide:
        options["narrow_below"] = 1
    program = compiled(cache, function, torch.randn(2, 4, 6, 12), **options)
    assert "_vectors" in program.source
    for size in (
        (2, 4, 6, 12),
        (1, 2, 7, 5),
        (3, 6, 4, 4),
        (2, 4, 2, 2),
        (1, 2, 9, 16),
        (2, 2, 3, 1),
    ):
        x = torch.randn(size)
        assert_equals_eager(program(x), function, (x,))
    larger = 1000 + torch.randn(2, 2, 8, 8)  # of which the moments are not lost
    if name == "variance and mean":
        assert_equals_eager(program(larger), function, (larger,))


def test_rows_that_are_held_need_no_vectors(cache: Path) -> None:
    codegen = TritonCodegen(TritonOptions(cache_directory=cache))
    for side, word in ((28, "_held("), (112, "_vectors(")):
        x = torch.empty(64, 64, side, side, dtype=torch.bfloat16)
        printed = codegen.print(
            schedule_of(MOMENTS["variance and mean"], (x,), codegen, dynamic=True)
        )
        assert [w for w in ("_held(", "_vectors(") if w in printed.source] == [word]
        assert printed.host.aligned and printed.host.begins_aligned


def test_numbers_that_are_multiples_whatever_the_sizes(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no size has to be one, no call asks."""
    monkeypatch.setattr("weft_codegen_triton.host.host_printer.aligning_products", lambda *_: ())
    monkeypatch.setattr("weft_codegen_triton.kernel.kernel_printer.is_aligned", lambda *_: True)

    def function(x: T) -> T:
        return x[:, :3].exp()

    program = compiled(cache, function, torch.randn(4, 6, 64))
    for n in (6, 16):
        x = torch.randn(4, n, 64)
        assert_equals_eager(program(x), function, (x,))
