"""Whole kernels: reductions over rows and columns, accesses of every kind, fused rows, index checks."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import sympy
import torch
from building import Builder, i, r
from weft_codegen_cpp import CppCodegen
from weft_loop_ir import BufferKind, FloorDiv, Mod, SymbolInput

F32 = torch.float32
ZERO = sympy.S.Zero
SIZES = (0, 1, 7, 8, 15, 16, 17, 31, 100, 1000)
REFERENCE: dict[str, Any] = {
    "sum": lambda x, d: x.sum(d, dtype=x.dtype),
    "prod": lambda x, d: x.prod(d, dtype=x.dtype),
    "max": lambda x, d: x.amax(d),
    "min": lambda x, d: x.amin(d),
    "argmax": lambda x, d: x.argmax(d),
    "argmin": lambda x, d: x.argmin(d),
    "welford_mean": lambda x, d: x.mean(d),
    "welford_m2": lambda x, d: x.var(d, correction=0) * x.shape[d],
    "any": lambda x, d: x.bool().any(d),
    "all": lambda x, d: x.bool().all(d),
}


def reductions_of(dtype: torch.dtype) -> list[str]:
    if dtype == torch.bool:
        return ["any", "all", "max", "min"]
    names = [n for n in REFERENCE if n not in ("any", "all")]
    return names if dtype.is_floating_point else [n for n in names if "welford" not in n]


def result_dtype(kind: str, dtype: torch.dtype) -> torch.dtype:
    if kind in ("argmax", "argmin"):
        return torch.int64
    return torch.bool if kind in ("any", "all") else dtype


def data(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    if dtype == torch.bool:
        return torch.randint(0, 9, shape, generator=generator) > 7
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator).to(dtype)
    return torch.randint(-4, 5, shape, generator=generator).to(dtype)


def compile_reductions(codegen: CppCodegen, dtype: torch.dtype, rows: bool) -> Any:
    """Every reduction of a matrix of any size, over its rows or down its columns."""
    height = sympy.Symbol("h", integer=True, nonnegative=True)
    width = sympy.Symbol("w", integer=True, nonnegative=True)
    b = Builder()
    b.buffer("x", BufferKind.INPUT, [height, width], dtype)
    kept, reduced = (height, width) if rows else (width, height)
    index = [i(0), r(0)] if rows else [r(0), i(0)]
    kinds = reductions_of(dtype)
    for kind in kinds:
        b.buffer(f"y_{kind}", BufferKind.OUTPUT, [kept], result_dtype(kind, dtype))

        def program(o: Any, kind: str = kind) -> None:
            o.store(f"y_{kind}", i(0), o.reduction(kind, dtype, o.load("x", b.at("x", index))))

        b.kernel([kept], [([reduced], program)])
    b.symbols += [SymbolInput(height, "x", 0, 0), SymbolInput(width, "x", 1, 0)]
    compiled = codegen.compile(b.schedule(), {})
    return lambda x: dict(zip(kinds, compiled(x), strict=True))


@pytest.mark.parametrize("rows", [True, False])
@pytest.mark.parametrize(
    "dtype", [F32, torch.float64, torch.int64, torch.int32, torch.uint8, torch.bool]
)
def test_reductions(codegen: CppCodegen, dtype: torch.dtype, rows: bool) -> None:
    run = compile_reductions(codegen, dtype, rows)
    for size in SIZES:
        for other in (1, 5, 33):
            x = data((other, size) if rows else (size, other), dtype)
            for kind, got in run(x).items():
                if size == 0 and kind not in ("sum", "prod", "any", "all"):
                    continue
                want = REFERENCE[kind](x, 1 if rows else 0)
                tolerance = 2e-5 if dtype == F32 else 1e-10
                torch.testing.assert_close(
                    got, want, rtol=tolerance, atol=tolerance, msg=f"{kind} {x.shape}"
                )


@pytest.mark.parametrize("rows", [True, False])
def test_reductions_propagate_nan(codegen: CppCodegen, rows: bool) -> None:
    run = compile_reductions(codegen, F32, rows)
    x = torch.randn(40, 40)
    x[3, 5] = x[3, 30] = x[7, 39] = x[39, 0] = math.nan
    x[11, 3] = x[12, 12] = math.inf
    x[11, 9] = -math.inf
    got = run(x)
    for kind in ("sum", "max", "min", "argmax", "argmin"):
        torch.testing.assert_close(
            got[kind], REFERENCE[kind](x, 1 if rows else 0), rtol=1e-5, atol=1e-5, equal_nan=True
        )


def test_argmax_takes_the_first_of_equals(codegen: CppCodegen) -> None:
    x = torch.randint(0, 3, (37, 100)).float()
    for rows in (True, False):
        got = compile_reductions(codegen, F32, rows)(x)
        for kind in ("argmax", "argmin"):
            values = torch.gather(x, 1, got[kind][:, None]) if rows else None
            want = REFERENCE[kind](x, 1 if rows else 0)
            assert torch.equal(got[kind], want), (kind, values)


def test_a_long_sum_is_accurate(codegen: CppCodegen) -> None:
    x = torch.rand(3_000_000)
    b = Builder()
    b.like("x", x)
    b.buffer("y", BufferKind.OUTPUT, [], F32)
    b.kernel(
        [],
        [([x.numel()], lambda o: o.store("y", ZERO, o.reduction("sum", F32, o.load("x", r(0)))))],
    )
    (got,) = codegen.compile(b.schedule(), {})(x)
    assert got.shape == ()
    assert abs(got.double() / x.double().sum() - 1) < 1e-6


def test_two_reduced_dimensions(codegen: CppCodegen) -> None:
    x = torch.randn(6, 5, 9, 19)
    for dims, index in (((1, 3), [i(0), r(0), i(1), r(1)]), ((0, 2), [r(0), i(0), r(1), i(1)])):
        kept = [x.shape[d] for d in range(4) if d not in dims]
        b = Builder()
        b.like("x", x)
        b.buffer("y", BufferKind.OUTPUT, kept, F32)
        b.buffer("p", BufferKind.OUTPUT, kept, torch.int64)

        def program(o: Any, b: Builder = b, index: Any = index) -> None:
            value = o.load("x", b.at("x", index))
            o.store("y", b.at("y", [i(0), i(1)]), o.reduction("sum", F32, value))
            o.store("p", b.at("p", [i(0), i(1)]), o.reduction("argmax", F32, value))

        b.kernel(kept, [([x.shape[d] for d in dims], program)])
        y, p = codegen.compile(b.schedule(), {})(x)
        torch.testing.assert_close(y, x.sum(dims), rtol=1e-5, atol=1e-5)
        other = [d for d in range(4) if d not in dims]
        assert torch.equal(p, x.permute(*other, *dims).flatten(2).argmax(2))


@pytest.mark.parametrize("shape", [(3, 9, 20, 24), (2, 3, 300, 400), (1, 2, 1000, 1004)])
def test_rows_apart_are_reduced_together(codegen: CppCodegen, shape: tuple[int, ...]) -> None:
    """Two inner loops that cannot be merged: the outer of them stays a loop around the lanes."""
    whole = data(shape, F32)
    x = whole[..., :-4]
    b = Builder()
    b.like("x", x)
    kept, reduced = shape[:2], (shape[2], shape[3] - 4)
    for name, dtype in (("s", F32), ("p", torch.int64), ("m", F32)):
        b.buffer(name, BufferKind.OUTPUT, kept, dtype)

    def program(o: Any) -> None:
        value = o.load("x", b.at("x", [i(0), i(1), r(0), r(1)]))
        at = [i(0), i(1)]
        o.store("s", b.at("s", at), o.reduction("sum", F32, value))
        o.store("p", b.at("p", at), o.reduction("argmin", F32, value))
        o.store("m", b.at("m", at), o.reduction("welford_mean", F32, value))

    b.kernel(kept, [(reduced, program)])
    s, p, m = codegen.compile(b.schedule(), {})(x)
    torch.testing.assert_close(s, x.double().sum((2, 3)).float(), rtol=1e-5, atol=1e-3)
    assert torch.equal(p, x.flatten(2).argmin(2))
    torch.testing.assert_close(m, x.double().mean((2, 3)).float(), rtol=1e-5, atol=1e-6)


def test_kernels_that_are_alike_are_one_function(codegen: CppCodegen) -> None:
    b = Builder()
    b.buffer("x0", BufferKind.INPUT, [40], F32)
    for k in range(3):
        if k < 2:
            b.intermediate(f"x{k + 1}", [40], F32)
        else:
            b.buffer(f"x{k + 1}", BufferKind.OUTPUT, [40], F32)

        def program(o: Any, k: int = k) -> None:
            o.store(f"x{k + 1}", i(0), o.record("sin", o.load(f"x{k}", i(0))))

        b.kernel([40], [([], program)])
    compiled = codegen.compile(b.schedule(), {})
    assert compiled.kernel_count == 3
    assert compiled.source.count("struct kernel") == 1
    x = torch.randn(40)
    torch.testing.assert_close(compiled(x)[0], x.sin().sin().sin())


@pytest.mark.parametrize("width", [1, 7, 16, 33, 100, 1000, 9000])
def test_softmax(codegen: CppCodegen, width: int) -> None:
    """Three stages over a row that is kept in a local buffer."""
    x = data((5, width), F32) * 4
    b = Builder()
    b.like("x", x)
    b.buffer("y", BufferKind.OUTPUT, x.shape, F32)

    def load(o: Any) -> Any:
        return o.load("x", b.at("x", [i(0), r(0)]))

    def greatest(o: Any) -> None:
        o.store("m", ZERO, o.reduction("max", F32, load(o)))

    def exponentials(o: Any) -> None:
        e = o.record("exp", o.record("sub", load(o), o.load("m", ZERO)))
        o.store("e", r(0), e)
        o.store("s", ZERO, o.reduction("sum", F32, e))

    def quotient(o: Any) -> None:
        q = o.record("truediv", o.load("e", r(0)), o.load("s", ZERO))
        o.store("y", b.at("y", [i(0), r(0)]), q)

    local = {"m": (F32, 1), "s": (F32, 1), "e": (F32, width)}
    b.kernel([5], [([width], greatest), ([width], exponentials), ([width], quotient)], local)
    (got,) = codegen.compile(b.schedule(), {})(x)
    torch.testing.assert_close(got, x.double().softmax(1).float(), rtol=2e-6, atol=1e-8)


@pytest.mark.parametrize("across", [True, False])
@pytest.mark.parametrize("dtype", [F32, torch.bfloat16, torch.float16])
def test_layer_norm(codegen: CppCodegen, dtype: torch.dtype, across: bool) -> None:
    """Welford, a scalar stage and a row stage; along rows, and down columns with a local row a lane."""
    shape = (6, 83) if across else (83, 37)
    x = (torch.randn(shape) * 2 + 100).to(dtype)
    count = 83
    index = [i(0), r(0)] if across else [r(0), i(0)]
    b = Builder()
    b.like("x", x)
    b.buffer("y", BufferKind.OUTPUT, shape, dtype)

    def moments(o: Any) -> None:
        v = o.to_dtype(o.load("x", b.at("x", index)), F32)
        o.store("row", r(0), v)
        o.store("mean", ZERO, o.reduction("welford_mean", F32, v))
        o.store("m2", ZERO, o.reduction("welford_m2", F32, v))

    def scale(o: Any) -> None:
        variance = o.record("truediv", o.load("m2", ZERO), o.constant(float(count), F32))
        o.store("rstd", ZERO, o.record("rsqrt", o.record("add", variance, o.constant(1e-5, F32))))

    def normal(o: Any) -> None:
        centred = o.record("sub", o.load("row", r(0)), o.load("mean", ZERO))
        value = o.record("mul", centred, o.load("rstd", ZERO))
        o.store("y", b.at("y", index), o.to_dtype(value, dtype))

    local = {"mean": (F32, 1), "m2": (F32, 1), "rstd": (F32, 1), "row": (F32, count)}
    b.kernel(
        [shape[0 if across else 1]], [([count], moments), ([], scale), ([count], normal)], local
    )
    (got,) = codegen.compile(b.schedule(), {})(x)
    rows = x if across else x.t()
    want = torch.nn.functional.layer_norm(rows.double(), [count])
    want = (want if across else want.t()).to(dtype)
    torch.testing.assert_close(got, want, rtol=2e-2 if dtype != F32 else 1e-4, atol=1e-4)


LAYOUTS: dict[str, Callable[[], torch.Tensor]] = {
    "contiguous": lambda: torch.randn(5, 37),
    "transposed": lambda: torch.randn(37, 5).t(),
    "rows apart": lambda: torch.randn(5, 50)[:, 3:40],
    "columns apart": lambda: torch.randn(5, 111)[:, ::3],
    "expanded row": lambda: torch.randn(37).expand(5, 37),
    "expanded column": lambda: torch.randn(5, 1).expand(5, 37),
    "scalar": lambda: torch.randn(()).expand(5, 37),
}


@pytest.mark.parametrize("dtype", [F32, torch.int64, torch.bfloat16, torch.bool])
def test_layouts(codegen: CppCodegen, dtype: torch.dtype) -> None:
    """The sum of every pair of layouts, into contiguous and transposed outputs."""
    tensors = {name: make() for name, make in LAYOUTS.items()}
    if dtype in (torch.int64, torch.bool):
        tensors = {
            n: torch.empty_strided(t.shape, t.stride(), dtype=dtype).copy_((t * 9).to(dtype))
            if 0 not in t.stride()
            else (t * 9).to(dtype)
            for n, t in tensors.items()
        }
    else:
        tensors = {n: t.to(dtype) for n, t in tensors.items()}
    compute = F32 if dtype == torch.bfloat16 else dtype
    operation = "bitwise_or" if dtype == torch.bool else "add"
    b = Builder()
    names = [f"x{k}" for k in range(len(tensors))]
    for name, tensor in zip(names, tensors.values(), strict=True):
        b.like(name, tensor)
    wanted = []
    values = list(tensors.values())
    for j, left in enumerate(names):
        for k, right in enumerate(names):
            out = f"y{j}_{k}"
            b.buffer(out, BufferKind.OUTPUT, [5, 37], dtype, (37, 1) if (j + k) % 2 else (1, 5))

            def program(o: Any, a: str = left, c: str = right, out: str = out) -> None:
                at = [i(0), i(1)]
                p = o.to_dtype(o.load(a, b.at(a, at)), compute)
                q = o.to_dtype(o.load(c, b.at(c, at)), compute)
                o.store(out, b.at(out, at), o.to_dtype(o.record(operation, p, q), dtype))

            b.kernel([5, 37], [([], program)])
            wanted.append(values[j] | values[k] if dtype == torch.bool else values[j] + values[k])
    for got, want in zip(codegen.compile(b.schedule(), {})(*values), wanted, strict=True):
        assert torch.equal(got, want)


@pytest.mark.parametrize("shape", [(3, 17, 33), (2, 64, 64), (1, 530, 70), (4, 1, 16), (2, 16, 1)])
@pytest.mark.parametrize("dtype", [F32, torch.bfloat16, torch.int64, torch.bool])
def test_transposed(codegen: CppCodegen, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    x = data(shape, torch.float32).to(dtype) if dtype.is_floating_point else data(shape, dtype)
    y = data((shape[0], shape[2], shape[1]), torch.float32)
    b = Builder()
    b.like("x", x)
    b.like("y", y)
    b.buffer("z", BufferKind.OUTPUT, y.shape, F32)

    def program(o: Any) -> None:
        value = o.to_dtype(o.load("x", b.at("x", [i(0), i(2), i(1)])), F32)
        at = [i(0), i(1), i(2)]
        o.store("z", b.at("z", at), o.record("add", value, o.load("y", b.at("y", at))))

    b.kernel(y.shape, [([], program)])
    (got,) = codegen.compile(b.schedule(), {})(x, y)
    assert torch.equal(got, x.transpose(1, 2).float() + y)


def test_padding_reads_only_inside(codegen: CppCodegen) -> None:
    """A masked load whose index leaves the buffer where the mask does not hold."""
    for size in (1, 5, 16, 40):
        x = torch.randn(3, size)
        b = Builder()
        b.like("x", x)
        b.buffer("y", BufferKind.OUTPUT, [3, size + 5], F32)

        def program(o: Any, b: Builder = b, size: int = size) -> None:
            inside = o.logical_and(
                o.ge(o.index_expr(i(1) - 2, torch.int64), o.constant(0, torch.int64)),
                o.lt(o.index_expr(i(1) - 2, torch.int64), o.constant(size, torch.int64)),
            )
            value = o.masked(inside, lambda n: n.load("x", b.at("x", [i(0), i(1) - 2])), 7.0)
            o.store("y", b.at("y", [i(0), i(1)]), value)

        b.kernel([3, size + 5], [([], program)])
        (got,) = codegen.compile(b.schedule(), {})(x)
        assert torch.equal(got, torch.nn.functional.pad(x, (2, 3), value=7.0))


def test_floor_division_in_indices(codegen: CppCodegen) -> None:
    x = torch.randn(7, 11)
    b = Builder()
    b.like("x", x)
    b.buffer("y", BufferKind.OUTPUT, [14, 44], F32)
    b.buffer("z", BufferKind.OUTPUT, [77], F32)

    def upsample(o: Any) -> None:
        index = b.at("x", [FloorDiv(i(0), sympy.Integer(2)), FloorDiv(i(1), sympy.Integer(4))])
        o.store("y", b.at("y", [i(0), i(1)]), o.load("x", index))

    def rolled(o: Any) -> None:
        o.store("z", i(0), o.load("x", Mod(i(0) + 70, sympy.Integer(77))))

    b.kernel([14, 44], [([], upsample)])
    b.kernel([77], [([], rolled)])
    y, z = codegen.compile(b.schedule(), {})(x)
    assert torch.equal(y, x.repeat_interleave(2, 0).repeat_interleave(4, 1))
    assert torch.equal(z, x.flatten().roll(7))


@pytest.mark.parametrize("index_dtype", [torch.int64, torch.int32])
def test_embedding(codegen: CppCodegen, index_dtype: torch.dtype) -> None:
    table, index = torch.randn(10, 19), torch.tensor([3, -1, 0, 9, -10, 5], dtype=index_dtype)
    b = Builder()
    b.like("t", table)
    b.like("x", index)
    b.buffer("y", BufferKind.OUTPUT, [6, 19], F32)
    b.buffer("z", BufferKind.OUTPUT, [19, 6], F32)

    def rows(o: Any) -> None:
        s = o.indirect_symbol(o.load("x", i(0)), sympy.Integer(10), True)
        o.store("y", b.at("y", [i(0), i(1)]), o.load("t", b.at("t", [s, i(1)])))

    def columns(o: Any) -> None:
        s = o.indirect_symbol(o.load("x", i(1)), sympy.Integer(10), True)
        o.store("z", b.at("z", [i(0), i(1)]), o.load("t", b.at("t", [s, i(0)])))

    b.kernel([6, 19], [([], rows)])
    b.kernel([19, 6], [([], columns)])
    program = codegen.compile(b.schedule(), {})
    y, z = program(table, index)
    assert torch.equal(y, table[index])
    assert torch.equal(z, table[index].t())
    for bad in (10, -11):
        wrong = index.clone()
        wrong[4] = bad
        with pytest.raises(IndexError, match=f"index {bad} is out of bounds .* size 10"):
            program(table, wrong)
    assert torch.equal(program(table, index)[0], table[index])


def test_scatter(codegen: CppCodegen) -> None:
    """Scattered stores and atomic additions, over a copy of the destination."""
    index = torch.randint(0, 50, (1000,))
    source, base = torch.randn(1000), torch.randn(50)
    b = Builder()
    b.like("x", source)
    b.like("p", index)
    b.like("d", base)
    b.buffer("y", BufferKind.OUTPUT, [50], F32)
    b.buffer("n", BufferKind.OUTPUT, [50], torch.int64)

    def start(o: Any) -> None:
        o.store("y", i(0), o.load("d", i(0)))
        o.store("n", i(0), o.constant(0, torch.int64))

    def add(o: Any) -> None:
        s = o.indirect_symbol(o.load("p", i(0)), sympy.Integer(50), True)
        o.store("y", s, o.load("x", i(0)), "atomic_add")
        o.store("n", s, o.constant(1, torch.int64), "atomic_add")

    b.kernel([50], [([], start)])
    b.kernel([1000], [([], add)])
    y, n = codegen.compile(b.schedule(), {})(source, index, base)
    torch.testing.assert_close(y, base.scatter_add(0, index, source), rtol=1e-5, atol=1e-5)
    assert torch.equal(n, torch.bincount(index, minlength=50))


def test_zero_dimensional_and_empty(codegen: CppCodegen) -> None:
    for shape in ((), (0,), (3, 0), (1, 1)):
        x = torch.randn(shape)
        b = Builder()
        b.like("x", x)
        b.buffer("y", BufferKind.OUTPUT, shape, F32)

        def program(o: Any, b: Builder = b, rank: int = len(shape)) -> None:
            at = [i(k) for k in range(rank)]
            o.store("y", b.at("y", at), o.record("exp", o.load("x", b.at("x", at))))

        b.kernel(shape, [([], program)])
        (got,) = codegen.compile(b.schedule(), {})(x)
        assert got.shape == x.shape
        torch.testing.assert_close(got, x.exp())
