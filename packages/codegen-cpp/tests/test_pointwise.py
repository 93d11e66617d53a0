"""Each elementwise operation against torch: dtypes, special values, sizes that end within a vector."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import sympy
import torch
from building import Builder, i
from weft_codegen_cpp import CppCodegen
from weft_codegen_cpp.kernel.body_printer import UNSUPPORTED, BodyPrinter, Scope
from weft_loop_ir import BufferKind, SymbolInput, Unsupported, ops
from weft_loop_ir.bodies import OPERATIONS

SIZES = (0, 1, 7, 8, 15, 16, 17, 31, 100, 1000)
FLOATS = (torch.float32, torch.float64)
SIGNED = (torch.int8, torch.int16, torch.int32, torch.int64)
INTEGERS = (*SIGNED, torch.uint8)

REFERENCE: dict[str, Callable[..., torch.Tensor]] = {
    "truediv": torch.true_divide,
    "floordiv": torch.floor_divide,
    "truncdiv": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "left_shift": torch.bitwise_left_shift,
    "right_shift": torch.bitwise_right_shift,
    "isnan": torch.isnan,
    "erfinv": torch.special.erfinv,
}
# The most units in the last place by which a float32 result may miss the float64 one.
ULP = {
    "exp": 1.0,
    "exp2": 1.0,
    "expm1": 2,
    "log": 1.0,
    "log2": 1.0,
    "log10": 1.0,
    "log1p": 2,
    "sin": 2,
    "cos": 2,
    "tan": 2,
    "tanh": 2,
    "erf": 2,
    "erfc": 4,
    "lgamma": 16,
    "digamma": 4,
}
INDEX_ONLY = sympy.Symbol("n", integer=True, nonnegative=True)


def reference(name: str) -> Callable[..., torch.Tensor]:
    if name in REFERENCE:
        return REFERENCE[name]
    function: Callable[..., torch.Tensor] = getattr(torch, name)
    return function


def specials(dtype: torch.dtype) -> torch.Tensor:
    if dtype == torch.bool:
        return torch.tensor([False, True, True, False])
    if dtype.is_floating_point:
        info = torch.finfo(dtype)
        values = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, math.inf, -math.inf, math.nan]
        values += [info.max, info.min, info.tiny, info.tiny / 4, 3.7, -3.7, 88.5, -100.0, 1e4, 2e4]
        return torch.tensor(values, dtype=dtype)
    low = torch.iinfo(dtype).min
    values_int = [0, 1, 2, 3, 5, 7, 100, torch.iinfo(dtype).max, low]
    if low < 0:
        values_int += [-1, -2, -3, -7, -100]
    return torch.tensor(values_int, dtype=dtype)


def sample(dtype: torch.dtype, count: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(count)
    if dtype == torch.bool:
        rest = torch.randint(0, 2, (count,), generator=generator).bool()
    elif dtype.is_floating_point:
        rest = (torch.randn(count, generator=generator) * 3).to(dtype)
    else:
        rest = torch.randint(0, 120, (count,), generator=generator).to(dtype)
    return torch.cat([specials(dtype), rest])[:count] if count else rest


def pairs(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Every pair of special values, and random ones."""
    s = specials(dtype)
    a, b = torch.cartesian_prod(s, s).unbind(1)
    x, y = sample(dtype, 301), sample(dtype, 302)[1:]
    return torch.cat([a, x]), torch.cat([b, y.flip(0)])


def assert_same(got: torch.Tensor, want: torch.Tensor, what: str, ulp: float = 0.0) -> None:
    """Equal with NaN and signed zeros as in eager; floats may differ by ``ulp`` units."""
    assert got.dtype == want.dtype, what
    assert got.shape == want.shape, what
    if not want.dtype.is_floating_point:
        assert torch.equal(got, want), what
        return
    assert bool((got.isnan() == want.isnan()).all()), f"{what}: NaN"
    finite = want.isfinite() & got.isfinite()
    rest = ~finite & ~want.isnan()
    assert torch.equal(got[rest], want[rest]), f"{what}: infinities"
    g, w = got[finite], want[finite]
    assert torch.equal(torch.signbit(g[w == 0]), torch.signbit(w[w == 0])), f"{what}: signed zero"
    unit = torch.nextafter(w.abs(), torch.tensor(math.inf, dtype=w.dtype)) - w.abs()
    error = (g.double() - w.double()).abs() / unit.double()
    assert error.numel() == 0 or error.max() <= ulp, f"{what}: {error.max()} ulp"


class Family:
    """One translation unit: many operations, each with an output of its own, over inputs of any size."""

    def __init__(self) -> None:
        self.builder = Builder()
        self.size = INDEX_ONLY
        self.names: list[str] = []

    def input(self, name: str, dtype: torch.dtype) -> str:
        return self.builder.buffer(name, BufferKind.INPUT, [self.size], dtype)

    def operation(self, name: str, dtype: torch.dtype, program: Callable[[Any], Any]) -> None:
        self.builder.buffer(f"y_{name}", BufferKind.OUTPUT, [self.size], dtype)
        self.builder.kernel([self.size], [([], lambda o: o.store(f"y_{name}", i(0), program(o)))])
        self.names.append(name)

    def compile(self, codegen: CppCodegen) -> Callable[..., dict[str, torch.Tensor]]:
        first = self.builder.inputs[0]
        self.builder.symbols.append(SymbolInput(self.size, first, 0, 0))
        program = codegen.compile(self.builder.schedule(), {})
        return lambda *inputs: dict(zip(self.names, program(*inputs), strict=True))


def of_arity(arity: int, dtype: torch.dtype) -> list[str]:
    """The operations on values of ``dtype``: all of them have a C++ form."""
    found = (OPERATIONS[name] for name in ops.ELEMENTWISE)
    return [o.name for o in found if o.arity == arity and o.takes(dtype)]


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int8, torch.int32, torch.int64, torch.uint8])
def test_unary(codegen: CppCodegen, dtype: torch.dtype) -> None:
    family = Family()
    family.input("x", dtype)
    for name in of_arity(1, dtype):
        result = torch.bool if OPERATIONS[name].gives_bool else dtype
        family.operation(name, result, lambda o, n=name: o.record(n, o.load("x", i(0))))
    run = family.compile(codegen)
    x = sample(dtype, 1000)
    for size in SIZES:
        for name, got in run(x[:size]).items():
            check_unary(name, got, x[:size])


def check_unary(name: str, got: torch.Tensor, x: torch.Tensor) -> None:
    function = reference(name)
    to_bool = OPERATIONS[name].gives_bool
    if x.dtype != torch.float32 or to_bool:
        close = 4.0 if x.dtype.is_floating_point and not to_bool else 0.0
        if name in ("lgamma", "digamma", "erfinv"):
            torch.testing.assert_close(got, function(x), rtol=1e-9, atol=1e-12, equal_nan=True)
            return
        want = (
            x.clone() if name in ("floor", "ceil", "trunc", "round") and not close else function(x)
        )
        assert_same(got, want, f"{name} {x.dtype}", close)
        return
    if name == "sigmoid":  # 1 / (1 + exp(-x)) overflows where eager's does
        torch.testing.assert_close(got, function(x), rtol=3e-7, atol=1e-37, equal_nan=True)
        return
    assert_same(got, function(x.double()).float(), f"{name} {x.dtype}", ULP.get(name, 2.0) + 0.5)


@pytest.mark.parametrize("step", [10007, pytest.param(1009, marks=pytest.mark.slow)])
def test_float32_over_the_full_range(codegen: CppCodegen, step: int) -> None:
    """A sweep over all exponents: error in units of the last place of the float64 result."""
    family = Family()
    family.input("x", torch.float32)
    for name in ULP:
        family.operation(name, torch.float32, lambda o, n=name: o.record(n, o.load("x", i(0))))
    bits = torch.arange(-(2**31), 2**31, step, dtype=torch.int64).to(torch.int32)
    near = torch.linspace(-20, 20, 100_000)
    x = torch.cat([bits.view(torch.float32), near])
    for name, got in family.compile(codegen)(x).items():
        want = reference(name)(x.double())
        assert torch.equal(got.isnan(), want.isnan()), name
        finite = want.float().isfinite() & got.isfinite()
        single = want.float()
        assert torch.equal(got[~finite & ~got.isnan()], single[~finite & ~got.isnan()]), name
        unit = torch.nextafter(single.abs(), torch.tensor(math.inf)) - single.abs()
        error = (got.double() - want).abs() / unit.double().clamp_min(1e-45)
        assert error[finite].max() <= ULP[name], f"{name}: {error[finite].max()} ulp"


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS])
def test_binary(codegen: CppCodegen, dtype: torch.dtype) -> None:
    family = Family()
    family.input("x", dtype)
    family.input("y", dtype)

    def both(o: Any) -> tuple[Any, Any]:
        return o.load("x", i(0)), o.load("y", i(0))

    for name in of_arity(2, dtype):
        result = torch.bool if OPERATIONS[name].gives_bool else dtype
        family.operation(name, result, lambda o, n=name: o.record(n, *both(o)))
    x, y = pairs(dtype)
    for name, got in family.compile(codegen)(x, y).items():
        check_binary(name, got, x, y)


def check_binary(name: str, got: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> None:
    dtype = x.dtype
    if not dtype.is_floating_point:
        if name in ("floordiv", "truncdiv", "fmod", "remainder"):
            # x // 0 is an error in eager, INT_MIN // -1 is undefined in C
            keep = (y != 0) & ~((x == torch.iinfo(dtype).min) & (y == -1))
        elif name == "pow":
            keep = y >= 0
        elif "shift" in name:
            keep = (y >= 0) & (y < torch.iinfo(dtype).bits - 1)
        else:
            keep = torch.ones_like(x, dtype=torch.bool)
        got, x, y = got[keep], x[keep], y[keep]
    elif name in ("fmod", "remainder", "floordiv"):  # eager's fmod is NaN where a / b overflows
        keep = ~((x / y).abs() > 1e30) | (y == 0)
        got, x, y = got[keep], x[keep], y[keep]
    want = reference(name)(x, y)
    exact = {"add", "sub", "mul", "truediv", "maximum", "minimum", "copysign", "nextafter", "fmod"}
    zero_sign = name not in ("maximum", "minimum", "remainder", "floordiv", "truncdiv", "fmod")
    if not zero_sign and dtype.is_floating_point:
        got, want = got + 0.0, want + 0.0
    units = 0.0 if name in exact or OPERATIONS[name].gives_bool else 2.0
    assert_same(got, want, f"{name} {dtype}", units)


@pytest.mark.parametrize(
    "name", ["bitwise_and", "bitwise_or", "bitwise_xor", "maximum", "eq", "lt"]
)
def test_bool(codegen: CppCodegen, name: str) -> None:
    family = Family()
    family.input("x", torch.bool)
    family.input("y", torch.bool)

    def program(o: Any) -> Any:
        return o.record(name, o.load("x", i(0)), o.load("y", i(0)))

    family.operation(name, torch.bool, program)
    x, y = torch.tensor([0, 0, 1, 1] * 7).bool(), torch.tensor([0, 1, 0, 1] * 7).bool()
    assert torch.equal(family.compile(codegen)(x, y)[name], reference(name)(x, y))


CONVERTED = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint8,
    torch.bool,
)


@pytest.mark.parametrize("source", CONVERTED)
def test_conversion(codegen: CppCodegen, source: torch.dtype) -> None:
    family = Family()
    family.input("x", source)
    for target in CONVERTED:
        family.operation(
            str(target)[6:], target, lambda o, t=target: o.to_dtype(o.load("x", i(0)), t)
        )
    if source.is_floating_point:
        x = torch.cat([sample(torch.float32, 300), torch.randn(300) * 1e-6, torch.randn(99) * 50])
        x = torch.cat([x, torch.rand(300) * 6e-5, torch.tensor([65503.9, 65519.9, 65520.0, 7e4])])
        x = x.to(source)
    else:
        x = sample(source, 200)
    for name, got in family.compile(codegen)(x).items():
        target = getattr(torch, name)
        defined = torch.ones_like(x, dtype=torch.bool)
        if source.is_floating_point and not target.is_floating_point and target != torch.bool:
            info = torch.iinfo(target)  # a float out of the target's range is undefined
            wide = x.double()
            defined = (wide > info.min) & (wide < min(info.max, 2**53))
        assert_same(got[defined], x[defined].to(target), f"{source} to {target}")


def test_every_half_and_bfloat16(codegen: CppCodegen) -> None:
    """All 65536 bit patterns to float32 and back."""
    for dtype in (torch.float16, torch.bfloat16):
        family = Family()
        family.input("x", dtype)
        family.operation(
            "wide", torch.float32, lambda o: o.to_dtype(o.load("x", i(0)), torch.float32)
        )
        x = torch.arange(-(2**15), 2**15).to(torch.int16).view(dtype)
        wide = family.compile(codegen)(x)["wide"]
        assert_same(wide, x.float(), str(dtype))


def test_rounding_to_bfloat16_in_place(codegen: CppCodegen) -> None:
    """There and back over all exponents, ties, NaN payloads and denormals; with a full vector and a tail."""
    family = Family()
    family.input("x", torch.float32)

    def rounded(o: Any) -> Any:
        value = o.to_dtype(o.record("neg", o.load("x", i(0))), torch.bfloat16)
        return o.record("neg", o.to_dtype(value, torch.float32))

    family.operation("rounded", torch.float32, rounded)
    every = torch.arange(-(2**31), 2**31, 65521, dtype=torch.int64)
    ties = torch.arange(-(2**31), 2**31, 2**16 * 37, dtype=torch.int64) + 2**15
    x = torch.cat([every, ties, torch.tensor([2**31 - 1, -1])]).to(torch.int32).view(torch.float32)
    got = family.compile(codegen)(x)["rounded"]
    assert_same(got, -(-x).bfloat16().float(), "rounded")


def test_where_masked_and_bitcast(codegen: CppCodegen) -> None:
    family = Family()
    family.input("x", torch.float32)
    family.input("y", torch.int32)
    f32, i32 = torch.float32, torch.int32

    def positive(o: Any) -> Any:
        return o.gt(o.load("x", i(0)), o.constant(0.0, f32))

    family.operation(
        "where", f32, lambda o: o.where(positive(o), o.load("x", i(0)), o.constant(-1.0, f32))
    )
    family.operation("masked", i32, lambda o: o.masked(positive(o), lambda n: n.load("y", i(0)), 5))
    family.operation("bits", i32, lambda o: o.to_dtype_bitcast(o.load("x", i(0)), i32))
    family.operation("position", torch.int64, lambda o: o.index_expr(3 * i(0) + 1, torch.int64))
    run = family.compile(codegen)
    for size in SIZES:
        x, y = torch.randn(size), torch.randint(-9, 9, (size,), dtype=i32)
        got = run(x, y)
        assert torch.equal(got["where"], torch.where(x > 0, x, -1.0))
        assert torch.equal(got["masked"], torch.where(x > 0, y, 5))
        assert torch.equal(got["bits"], x.view(i32))
        assert torch.equal(got["position"], 3 * torch.arange(size) + 1)


def test_random_numbers(codegen: CppCodegen) -> None:
    family = Family()
    family.input("x", torch.float32)
    for name in ("rand", "randn"):
        family.operation(
            name,
            torch.float32,
            lambda o, n=name: getattr(o, n)(
                o.constant(7, torch.int64), o.index_expr(i(0), torch.int64)
            ),
        )
    run = family.compile(codegen)
    got, again = run(torch.empty(100_003)), run(torch.empty(100_003))
    assert torch.equal(got["rand"], again["rand"])
    assert got["rand"].min() >= 0
    assert got["rand"].max() < 1
    assert abs(got["rand"].mean() - 0.5) < 0.01
    assert abs(got["randn"].mean()) < 0.02
    assert abs(got["randn"].std() - 1) < 0.02


def test_erf_is_exactly_one_where_it_rounds_to_one(codegen: CppCodegen) -> None:
    """`1 + erf(x)` is 0 then, so that gelu of a large negative number is."""
    family = Family()
    family.input("x", torch.float32)
    family.operation("erf", torch.float32, lambda o: o.record("erf", o.load("x", i(0))))
    x = torch.cat([torch.linspace(3.95, 9, 500), torch.tensor([1e3, 1e38, math.inf])])
    assert torch.equal(
        family.compile(codegen)(torch.cat([x, -x]))["erf"], torch.cat([x, -x]).sign()
    )


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_operation_has_a_form_or_is_said_to_have_none(name: str) -> None:
    printer = BodyPrinter(Scope({}, {}, None, "One{}"))
    if name in UNSUPPORTED:
        with pytest.raises(Unsupported, match=name):
            getattr(printer, name)
    else:
        assert callable(getattr(printer, name))
