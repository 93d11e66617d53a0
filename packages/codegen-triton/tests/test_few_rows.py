"""Sums at indexed places of few rows as reductions: gradients of small tables, beside eager in float64."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import weft_loop_ir
from hypothesis import given, seed, settings
from hypothesis import strategies as st
from torch.fx.experimental.proxy_tensor import make_fx
from weft_codegen_triton import TritonCodegen, TritonProgram
from weft_codegen_triton.gpu import REFERENCE
from weft_codegen_triton.rewriting.few_rows import sum_few_rows

aten = torch.ops.aten
T = torch.Tensor
Function = Callable[..., T]
TOLERANCE = {torch.float16: 2e-3, torch.bfloat16: 1e-2, torch.float32: 1e-6}


def put(table: T, values: T, places: T) -> T:
    return aten.index_put(table, [places], values, True)  # type: ignore[no-any-return]


def bias(table: T, values: T, places: T) -> T:
    """The gradient of a table of biases: that of each head lies together."""
    return put(torch.zeros_like(table), values.permute(1, 2, 0), places)


def rewritten(function: Function, *inputs: T) -> torch.fx.GraphModule:
    """The graph of ``function`` after the pass."""
    with torch.no_grad():
        graph = make_fx(function, tracing_mode="fake")(*inputs)
    sum_few_rows(graph.graph, REFERENCE)
    graph.graph.lint()
    graph.recompile()
    return graph


def is_left(graph: torch.fx.GraphModule) -> bool:
    return any(node.target is aten.index_put.default for node in graph.graph.nodes)


def wide(inputs: tuple[T, ...]) -> tuple[T, ...]:
    return tuple(t.double() if t.is_floating_point() else t for t in inputs)


extents = st.integers(1, 7)


@given(
    rows=st.integers(1, 9),
    positions=st.lists(st.sampled_from([1, 2, 5, 32, 96, 257]), min_size=1, max_size=2),
    columns=st.lists(extents, max_size=2),
    dtype=st.sampled_from([torch.float16, torch.bfloat16, torch.float32]),
    apart=st.booleans(),
    number=st.integers(0, 1 << 20),
)
@seed(5)
@settings(max_examples=40, deadline=None)
def test_graphs_give_what_they_gave(
    rows: int,
    positions: list[int],
    columns: list[int],
    dtype: torch.dtype,
    apart: bool,
    number: int,
) -> None:
    """Places that are views, values in any order of dimensions, tables of any rank."""
    torch.manual_seed(number)
    table = torch.randn(rows, *columns).to(dtype)
    places = torch.randint(-rows, rows, positions)
    if apart:
        places = torch.stack([places, places], -1)[..., 0]  # not side by side
    values = torch.randn(*columns, *places.shape).to(dtype)
    values = values.permute(*range(len(columns), values.dim()), *range(len(columns)))
    inputs = (table, values, places)
    with_rules = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(dtype.itemsize > 2)
    try:
        graph = rewritten(put, *inputs)
    finally:
        torch.use_deterministic_algorithms(with_rules)
    assert not is_left(graph)
    got, want = graph(*inputs), put(*wide(inputs))
    assert (got.dtype, got.stride()) == (dtype, want.stride())
    tolerance = TOLERANCE[dtype] * math.sqrt(places.numel())
    torch.testing.assert_close(got.double(), want, rtol=TOLERANCE[dtype], atol=tolerance)


def program_of(codegen: TritonCodegen, function: Function, *inputs: T) -> TritonProgram:
    with torch.no_grad():
        graph = make_fx(function, tracing_mode="fake")(*inputs)
    codegen.rewrite(graph)
    schedule = weft_loop_ir.schedule(weft_loop_ir.lower(graph), codegen.schedule_options)
    program = codegen.compile(schedule, {})
    assert isinstance(program, TritonProgram)
    return program


@pytest.mark.parametrize("function", [put, bias], ids=lambda f: f.__name__)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_kernels(codegen: TritonCodegen, function: Function, dtype: torch.dtype) -> None:
    """In parts of 256 positions, without atomic additions; rows with infinities and NaN are their own."""
    places = torch.randint(-6, 6, (32, 40))
    values = torch.randn(3, 32, 40) if function is bias else torch.randn(32, 40, 3)
    flat = values[0] if function is bias else values[..., 0]
    flat[5, 7], flat[9, 9] = math.inf, math.nan
    inputs = (torch.randn(6, 3).to(dtype), values.to(dtype), places)
    program = program_of(codegen, function, *inputs)
    assert program.extern_count == 0 and "atomic" not in program.source
    got, want = program(*inputs)[0], function(*wide(inputs))
    assert want.isnan().any() and want.isfinite().any()
    torch.testing.assert_close(
        got.double(), want, rtol=TOLERANCE[dtype], atol=10 * TOLERANCE[dtype], equal_nan=True
    )


def test_places_have_to_be_there(codegen: TritonCodegen) -> None:
    inputs = (torch.randn(6, 3).half(), torch.randn(40, 3).half(), torch.randint(0, 6, (40,)))
    program = program_of(codegen, put, *inputs)
    inputs[2][7] = 6
    with pytest.raises(Exception, match="out of bounds"):
        program(*inputs)


TABLE, VALUES, PLACES = torch.randn(6, 3), torch.randn(40, 3), torch.randint(0, 6, (40,))


def test_what_stays() -> None:
    """Floats that are added atomically, integers, rows so many that sorting takes less, other strides."""
    assert is_left(rewritten(put, TABLE, VALUES, PLACES))
    assert is_left(rewritten(put, TABLE.long(), VALUES.long(), PLACES))
    replace = lambda t, v, p: aten.index_put(t, [p], v, False)  # noqa: E731
    assert is_left(rewritten(replace, TABLE.half(), VALUES.half(), PLACES))
    many = torch.randint(0, 5000, (4096,))
    assert is_left(rewritten(put, torch.randn(5000, 64).half(), torch.randn(4096, 64).half(), many))


@pytest.mark.usefixtures("deterministic")
def test_sums_in_an_order() -> None:
    """Which reductions have, whatever the dtype."""
    graph = rewritten(put, TABLE, VALUES, PLACES)
    assert not is_left(graph)
    torch.testing.assert_close(graph(TABLE, VALUES, PLACES), put(TABLE, VALUES, PLACES))


def test_what_nobody_reads_stays() -> None:
    def unread(table: T, values: T, places: T) -> T:
        put(table, values, places)
        return table + 1

    inputs = (TABLE.half(), VALUES.half(), PLACES)
    assert torch.equal(rewritten(unread, *inputs)(*inputs), inputs[0] + 1)
