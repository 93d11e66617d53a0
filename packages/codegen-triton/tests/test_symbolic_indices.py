"""Indices that only the sizes of a call bound: of 32 bits where these are small enough, else of 64."""

from __future__ import annotations

import dataclasses
import math
import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import sympy
import torch
from compiled_beside_eager import assert_equals_eager, schedule_of
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F
from weft_codegen_triton import TritonCodegen, TritonOptions, TritonProgram
from weft_codegen_triton.host.expressions import print_bound, print_magnitude
from weft_codegen_triton.kernel.index_bounds import (
    Bound,
    SymbolicIndices,
    index_bounds,
    largest,
)
from weft_codegen_triton.options import INT32_SAFE
from weft_codegen_triton.runtime.interpreter import InterpretedDevice
from weft_loop_ir import FloorDiv, Mod

T = torch.Tensor
Sized = Callable[[int], tuple[Any, ...]]
"""The inputs of a call, larger for larger numbers."""
LIMIT = 1000
"""Indices that have to be below this in narrow kernels, here."""
SMALL, LARGE = 5, 61


def scan(x: T) -> Any:
    return torch.ops.higher_order.associative_scan(lambda a, b: (a * b,), (x,), ())


CASES: dict[str, tuple[Callable[..., Any], Sized, dict[str, Any]]] = {
    "pointwise": (lambda x, y: x.exp() + y, lambda n: (torch.randn(n, 40), torch.randn(40)), {}),
    "transposed": (  # in tiles, which the grid bounds: indices are small
        lambda x, y: x.t() + y,
        lambda n: (torch.randn(40, n), torch.randn(n, 40)),
        {"narrow_below": 1_000_000},
    ),
    "strided": (lambda x: x + 1, lambda n: (torch.randn(2 * n, 80)[::2, 1::2],), {}),
    "expanded": (lambda x, y: x * y, lambda n: (torch.randn(1, 40).expand(n, 40), torch.randn(n, 1)), {}),
    "flipped": (lambda x: x.flip(0).reshape(-1, 2), lambda n: (torch.randn(n, 40),), {}),
    "rows": (
        lambda x: (x.softmax(-1), x.var(-1), x.argmax(-1), x.argmin(0)),
        lambda n: (torch.randn(n, 40),),
        {},
    ),
    "long rows": (
        lambda x: (x.softmax(-1), x.argmax(-1), x.sum()),
        lambda n: (torch.randn(3, 20 * n),),
        {"persistent_elements": 4, "loop_elements": 16},
    ),
    "rows of several dimensions": (
        lambda x, w: F.silu(F.group_norm(x, 2, w)),
        lambda n: (torch.randn(3, 4, 5, n), torch.randn(4)),
        {},
    ),
    "numbers of places": (
        lambda x: x + torch.arange(x.shape[0])[:, None] * 7,
        lambda n: (torch.randn(n, 40),),
        {},
    ),
    "embedding": (
        lambda i, w: F.embedding(i, w) * 2,
        lambda n: (torch.randint(0, n, (4, 3)), torch.randn(n, 40)),
        {},
    ),
    "indices of 32 bits": (
        lambda i, w: w[i] + 1,
        lambda n: (torch.randint(-n, n, (4, 3), dtype=torch.int32), torch.randn(n, 40)),
        {},
    ),
    "scatter": (
        lambda t, i, s: t.scatter_add(0, i, s),
        lambda n: (torch.randn(n, 40), torch.randint(0, n, (9, 40)), torch.randn(9, 40)),
        {},
    ),
    "index put": (
        lambda t, i, s: t.index_put((i,), s, accumulate=True),
        lambda n: (torch.randn(n, 40), torch.randint(0, n, (9,)), torch.randn(9, 40)),
        {},
    ),
    "concatenation": (
        lambda x, y: torch.cat([x, y], 1),
        lambda n: (torch.randn(n, 40), torch.randn(n, 3)),
        {},
    ),
    "windows": (lambda x: F.avg_pool2d(x, 3, 2, 1), lambda n: (torch.randn(2, 2, n, 20),), {}),
    "scan": (scan, lambda n: (torch.rand(n, 40) + 0.5,), {}),
    "product": (
        lambda x, w: torch.relu(x @ w + 1),
        lambda n: (torch.randn(n, 20).half(), torch.randn(20, 40).half()),
        {"fuse_matmuls": True},
    ),
    "products of batches": (
        lambda x, w: (x * 2) @ w,
        lambda n: (torch.randn(2, n, 8).half(), torch.randn(2, 8, 30).half()),
        {"fuse_matmuls": True},
    ),
    "attention": (
        lambda q, k, v: torch.softmax(torch.tanh(q @ k.transpose(-1, -2)) * 5, -1) @ v,
        lambda n: tuple(torch.randn(2, n, 24) for _ in range(3)),
        {"fuse_attention": True},
    ),
}  # fmt: skip


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether programs that have been loaded have sizes of 64 bits, once where several did alike."""
    found: list[bool] = []
    load = InterpretedDevice.load

    def loading(self: InterpretedDevice, functions: Mapping[str, Any]) -> Any:
        kinds = [kind for function in functions.values() for _, kind in function.parameters]
        assert ("i64" in kinds) is not ("i32" in kinds)
        if found[-1:] != [
            "i64" in kinds
        ]:  # sizes that are multiples of 16 have kernels of their own
            found.append("i64" in kinds)
        return load(self, functions)

    monkeypatch.setattr(InterpretedDevice, "load", loading)
    return found


def compiled(
    cache: Path, function: Callable[..., Any], inputs: tuple[Any, ...], **options: Any
) -> TritonProgram:
    options = {"cache_directory": cache, "narrow_below": LIMIT, **options}
    codegen = TritonCodegen(TritonOptions(**options))
    program = codegen.compile(schedule_of(function, inputs, codegen, dynamic=True), {})
    assert isinstance(program, TritonProgram)
    return program


@pytest.mark.parametrize("name", CASES)
def test_sizes_choose_the_kernels(name: str, cache: Path, loads: list[bool]) -> None:
    function, sized, options = CASES[name]
    program = compiled(cache, function, sized(LARGE), **options)
    for size, wanted in ((SMALL, [False]), (LARGE, [False, True]), (SMALL, [False, True])):
        inputs = sized(size)
        assert_equals_eager(program(*inputs), function, inputs)
        assert loads == wanted
    wider = program.generated.for_larger_sizes
    assert wider is not None and wider.wide is None
    assert "tl.program_id(0).to(tl.int64)" not in program.source
    assert "tl.program_id(0).to(tl.int64)" in wider.printed.source


def test_what_was_generated_has_both(cache: Path, loads: list[bool]) -> None:
    function, sized, _ = CASES["pointwise"]
    generated = compiled(cache, function, sized(LARGE)).generated
    again = TritonCodegen(TritonOptions(cache_directory=cache)).load(
        pickle.loads(pickle.dumps(generated))
    )
    for size in (LARGE, SMALL, 0):
        inputs = sized(size)
        assert_equals_eager(again(*inputs), function, inputs)
    assert loads == [False, True]


def test_inputs_of_larger_sizes_are_donated_too(cache: Path) -> None:
    program = compiled(cache, lambda x, y: x.sum(0) + y, (torch.randn(9, 4), torch.randn(4)))
    for rows in (9, 900):
        x, y = torch.randn(rows, 4), torch.randn(4)
        inputs = [x, y]
        torch.testing.assert_close(program.call_donated(inputs)[0], x.sum(0) + y)
        assert inputs[0] is x and inputs[1] is None


def test_numbers_that_are_passed_count_too(cache: Path, loads: list[bool]) -> None:
    def function(x: T, n: int) -> T:
        return x * n + torch.arange(x.shape[0]) * n

    x = torch.randint(0, 9, (9,))
    program = compiled(cache, function, (x, 7), narrow_below=INT32_SAFE)
    for number, wanted in ((7, [False]), (-5, [False]), (0, [False]), (-(1 << 33), [False, True])):
        assert_equals_eager(program(x, number), function, (x, number))
        assert loads == wanted


def test_no_size_no_choice(cache: Path) -> None:
    options = TritonOptions(cache_directory=cache, narrow_below=1)
    codegen = TritonCodegen(options)
    x = torch.randn(9, 40)
    program = codegen.compile(schedule_of(lambda x: x.exp(), (x,), codegen), {})
    assert isinstance(program, TritonProgram)
    assert program.generated.wide is None and "IndicesTooLarge" not in program.source
    assert_equals_eager(program(x), lambda x: x.exp(), (x,))


def test_places_beyond_31_bits(cache: Path, loads: list[bool]) -> None:
    """Two gigabytes of which few pages are ever touched."""
    stride = 1 << 29
    storage = torch.empty(4 * stride + 16, dtype=torch.uint8)
    storage[::stride] = torch.arange(1, 6)

    def view(rows: int) -> T:
        return storage.as_strided((rows, 3), (stride, 1))

    def function(x: T) -> T:
        return x[:, :1] * 2 + 1

    program = compiled(cache, function, (view(3),), narrow_below=INT32_SAFE)
    for rows, wide in ((3, False), (5, True), (2, True)):
        (result,) = program(view(rows))
        assert result.tolist() == [[2 * k + 3] for k in range(rows)]
        assert (True in loads) is wide


def test_tiles_have_no_more_rows_than_a_grid(cache: Path, loads: list[bool]) -> None:
    """A grid's second axis, along which tiles of a transposition lie, has 65535 programs at most."""

    def function(x: T) -> T:
        return x.t().contiguous()

    program = compiled(cache, function, (torch.randn(40, 30),), narrow_below=INT32_SAFE)
    assert "YBLOCK" in program.source
    wider = program.generated.for_larger_sizes
    assert wider is not None and "YBLOCK" not in wider.printed.source
    for rows, columns in ((40, 30), (1, 7), (33, 5), (48, 65), (65_000, 2), (0, 1)):
        x = torch.randn(rows, columns)
        torch.testing.assert_close(program(x)[0], x.t())
        assert loads == [False]
    x = torch.randn(65_540, 2)
    assert_equals_eager(program(x), function, (x,))
    assert loads == [False, True]


# -- bounds ----------------------------------------------------------------------------------------------

LOOPS = {
    sympy.Symbol("i", integer=True, nonnegative=True): "n * m",
    sympy.Symbol("j", integer=True, nonnegative=True): "n + 3",
    sympy.Symbol("k", integer=True): "40",
}
CALL = [sympy.Symbol(name, integer=True) for name in "nm"]
SIZES = {symbol: sympy.sympify(text, {s.name: s for s in CALL}) for symbol, text in LOOPS.items()}

expressions = st.recursive(
    st.one_of(
        st.sampled_from([*LOOPS, *CALL]),
        st.integers(-9, 9).map(sympy.Integer),
    ),
    lambda parts: st.one_of(
        st.builds(lambda a, b: a + b, parts, parts),
        st.builds(lambda a, b: a * b, parts, parts),
        st.builds(lambda a, b: FloorDiv(a, sympy.Integer(b)), parts, st.integers(1, 9)),
        st.builds(lambda a, b: Mod(a, sympy.Integer(b)), parts, st.integers(1, 9)),
        st.builds(lambda a, b: FloorDiv(a, b), parts, st.sampled_from(CALL)),
        st.builds(lambda a, b: Mod(a, b), parts, st.sampled_from(CALL)),
        st.builds(lambda a: a**2, parts),
        st.builds(sympy.Min, parts, parts),
        st.builds(sympy.Max, parts, parts),
    ),
    max_leaves=6,
)


def values_within(expression: sympy.Expr, at: Mapping[sympy.Symbol, int]) -> list[int]:
    """The values of ``expression`` and of all that it is computed of; the first is its own."""
    if expression.is_Integer:
        return [int(expression)]
    if expression.is_Symbol:
        return [at[expression]]
    if expression.is_Pow:  # the exponent is not computed
        base = values_within(expression.args[0], at)
        return [base[0] ** int(expression.args[1]), *base]
    operands = [values_within(a, at) for a in expression.args]
    return [int(expression.func(*(o[0] for o in operands))), *(v for o in operands for v in o)]


def value_of(bound: Bound, sizes: Mapping[sympy.Symbol, int]) -> float:
    """As the host program computes it."""
    factors = {factor for product in bound for factor in product}
    at = {symbol.name: size for symbol, size in sizes.items()}
    known = {factor: str(eval(print_magnitude(factor), at)) for factor in factors}
    return float(eval(print_bound(bound, known)))


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    expressions,
    st.integers(1, 50),
    st.integers(1, 50),
    st.booleans(),
    st.tuples(*[st.floats(0, 1)] * len(LOOPS)),
)
def test_no_value_passes_its_bound(
    expression: sympy.Expr, n: int, m: int, negative: bool, places: tuple[float, ...]
) -> None:
    sizes = dict(zip(CALL, (-n if negative else n, m), strict=True))
    at = dict(sizes)
    for (symbol, size), place in zip(SIZES.items(), places, strict=True):
        extent = max(1, abs(int(size.subs(sizes))))
        at[symbol] = min(extent - 1, math.floor(place * extent))
    found = max(value_of(bound, sizes) for bound in index_bounds(expression, SIZES))
    assert max(map(abs, values_within(expression, at))) <= found


NAMES = [sympy.Symbol(name, integer=True) for name in "abc"]
bounds = st.dictionaries(
    st.lists(st.sampled_from(NAMES), max_size=3).map(lambda names: tuple(sorted(names, key=str))),
    st.integers(0, 5),
    min_size=1,
    max_size=4,
)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.lists(bounds, max_size=5), st.tuples(*[st.integers(1, 9)] * 3))
def test_the_largest_bounds_stand_for_all(found: list[Bound], sizes: tuple[int, ...]) -> None:
    at = dict(zip(NAMES, sizes, strict=True))
    kept = largest(found)
    assert len(kept) <= len(found) and all(bound in found for bound in kept)
    limits = [max((value_of(b, at) for b in some), default=0) for some in (found, kept)]
    assert limits[0] == limits[1]


def test_a_bound_that_no_call_keeps_makes_a_kernel_wide() -> None:
    indices = SymbolicIndices(wide=False)
    n = sympy.Symbol("n", integer=True)
    assert indices.width(index_bounds(n * 40, {})) == dataclasses.replace(
        indices.width([]), bounds=({(n,): 40},)
    )
    assert indices.width(index_bounds(n * (1 << 31), {})).wide
    assert indices.width(index_bounds(n, {n: sympy.oo})).wide
    assert not indices.width(index_bounds(n * 40, {n: sympy.Integer(9)})).bounds
    assert SymbolicIndices(wide=True).width(index_bounds(n * 40, {})).wide
