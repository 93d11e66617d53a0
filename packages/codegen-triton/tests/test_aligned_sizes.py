"""Sizes that are multiples of 16, for which kernels are compiled by themselves: the choice, and results."""

from __future__ import annotations

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
from weft_codegen_triton.compilation.client import CompileServer
from weft_codegen_triton.kernel.aligned_sizes import (
    SIZE_MULTIPLE,
    aligned_products,
    is_aligned,
    is_multiple,
)
from weft_codegen_triton.runtime.cuda_device import compile_job
from weft_codegen_triton.runtime.interpreter import InterpretedDevice

T = torch.Tensor
HOPPER = 90

CASES: dict[str, Callable[..., Any]] = {
    "pointwise": lambda x, y: x.exp() + y,
    "one dimension": lambda x, y: x.flatten() * 2,
    "permuted": lambda x, y: x.t().contiguous() + 1,
    "rows": lambda x, y: (x.softmax(-1), x.sum(-1), x.sum(0)),
    "layer norm": lambda x, y: F.layer_norm(x, x.shape[-1:], y),
    "products": lambda x, y: torch.relu(x.half() @ x.half().t() + 1),
}


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each kind of a program that has been loaded is for multiples of 16."""
    found: list[bool] = []
    load = InterpretedDevice.load

    def loading(self: InterpretedDevice, functions: Mapping[str, Any]) -> Any:
        if functions:
            found.append(any(function.aligned for function in functions.values()))
        return load(self, functions)

    monkeypatch.setattr(InterpretedDevice, "load", loading)
    return found


def compiled(
    cache: Path, function: Callable[..., Any], inputs: tuple[Any, ...], **options: Any
) -> TritonProgram:
    codegen = TritonCodegen(TritonOptions(cache_directory=cache, **options))
    program = codegen.compile(schedule_of(function, inputs, codegen, dynamic=True), {})
    assert isinstance(program, TritonProgram)
    return program


def inputs_of(rows: int, columns: int) -> tuple[T, T]:
    return torch.randn(rows, columns), torch.randn(columns)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("first", [(32, 48), (33, 50)])
def test_sizes_of_either_kind(name: str, first: tuple[int, int], cache: Path) -> None:
    """A kernel for multiples of 16 refuses other sizes in the interpreter, so the choice is checked too."""
    function = CASES[name]
    program = compiled(cache, function, inputs_of(*first), fuse_matmuls=True)
    sizes = [first, (64, 16), (16, 17), (5, 32), (2, 3), (1, 1)]
    if name in (
        "pointwise",
        "rows",
    ):  # others give empty tensors, whose strides are the caller's business
        sizes.append((0, 16))
    for size in (*sizes, first):
        inputs = inputs_of(*size)
        assert_equals_eager(program(*inputs), function, inputs)


@pytest.fixture(scope="module")
def any_rows(tmp_path_factory: pytest.TempPathFactory) -> TritonProgram:
    cache = tmp_path_factory.mktemp("cache")
    return compiled(cache, CASES["rows"], (torch.randn(32, 64), torch.randn(64)))


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.integers(1, 40), st.integers(1, 70))
def test_any_sizes(any_rows: TritonProgram, rows: int, columns: int) -> None:
    inputs = inputs_of(rows, columns)
    assert_equals_eager(any_rows(*inputs), CASES["rows"], inputs)


@pytest.mark.parametrize("first", [48, 50])
def test_the_other_kind_is_loaded_when_it_is_needed(
    first: int, cache: Path, loads: list[bool]
) -> None:
    function = CASES["pointwise"]
    program = compiled(cache, function, inputs_of(7, first))
    begins = first % SIZE_MULTIPLE == 0
    assert loads == [begins]
    for columns in (first, 32 if begins else 33, 33 if begins else 32, first, 16, 17):
        inputs = inputs_of(5, columns)
        assert_equals_eager(program(*inputs), function, inputs)
    assert loads == [begins, not begins]


def test_what_was_generated_has_both(cache: Path, loads: list[bool]) -> None:
    function = CASES["pointwise"]
    generated = compiled(cache, function, inputs_of(7, 48)).generated
    again = TritonCodegen(TritonOptions(cache_directory=cache)).load(
        pickle.loads(pickle.dumps(generated))
    )
    for columns in (48, 47):
        inputs = inputs_of(7, columns)
        assert_equals_eager(again(*inputs), function, inputs)
    assert loads == [True, True, False]


@pytest.mark.parametrize("function", [lambda x: x * 2, lambda x: x.softmax(-1)])
def test_nothing_depends_on_sizes_around_fixed_rows(function: Any, cache: Path) -> None:
    """Rows of 768 elements are aligned however many there are."""
    codegen = TritonCodegen(TritonOptions(cache_directory=cache))
    x = torch.randn(5, 768)
    schedule = rows_vary(function, x, codegen)
    assert schedule.symbols
    assert codegen.print(schedule).host.aligned == ()


def rows_vary(function: Any, x: T, codegen: TritonCodegen) -> Any:
    import weft_loop_ir
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.fx.experimental.symbolic_shapes import (
        DimDynamic,
        ShapeEnv,
        StatelessSymbolicContext,
    )

    mode = FakeTensorMode(shape_env=ShapeEnv())
    context = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC, DimDynamic.STATIC])
    fake = mode.from_tensor(x, symbolic_context=context)
    graph = make_fx(function)(fake)
    lowered = weft_loop_ir.lower(graph, options=codegen.lowering_options)
    return weft_loop_ir.schedule(lowered, codegen.schedule_options)


def test_fixed_sizes_have_one_kind(cache: Path) -> None:
    codegen = TritonCodegen(TritonOptions(cache_directory=cache))
    printed = codegen.print(schedule_of(CASES["rows"], inputs_of(7, 48), codegen))
    assert printed.host.aligned == () and "is_aligned" not in printed.source


def test_the_compiler_is_told(cache: Path) -> None:
    """The two kinds have binaries of their own, and the kernel for multiples reads 16 bytes at once."""
    codegen = TritonCodegen(TritonOptions(cache_directory=cache))
    x = torch.empty(1 << 22, dtype=torch.bfloat16)
    printed = codegen.print(schedule_of(lambda x, y: x + y, (x, x), codegen, dynamic=True))
    jobs = {
        kind: compile_job(function, HOPPER)
        for kind in (False, True)
        for function in printed.functions_for(kind).values()
    }
    assert jobs[True].key() != jobs[False].key()
    assert {*jobs[True].aligned} - {*jobs[False].aligned} == {s.name for s in printed.host.aligned}
    CompileServer(cache / "compiled", 2).compile(jobs.values())
    texts = {kind: ptx_of(cache / "compiled" / "work", job.key()) for kind, job in jobs.items()}
    assert "ld.global.v4" in texts[True] and "st.global.v4" in texts[True]
    assert "ld.global.v4" not in texts[False]


def ptx_of(folder: Path, key: str) -> str:
    """The PTX that Triton keeps of the module ``key``."""
    texts = [path.read_text() for path in folder.rglob("*.ptx")]
    (found,) = [text for text in texts if key in text]
    return found


# -- products of sizes -----------------------------------------------------------------------------------

IMAGES: dict[str, Callable[..., Any]] = {
    "batch norm": lambda x, y: F.relu(F.batch_norm(x, y, y.exp())),
    "group norm": lambda x, y: F.silu(F.group_norm(x, 2, y)),
    "sums": lambda x, y: (x.sum((2, 3)), x.flatten(2).softmax(-1)),
}


def images_of(count: int, channels: int, height: int, width: int) -> tuple[T, T]:
    return torch.randn(count, channels, height, width), torch.randn(channels)


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("name", IMAGES)
def test_pixels_are_a_multiple_though_rows_are_not(name: str, wide: bool, cache: Path) -> None:
    """A kernel that is told of such a product refuses others in the interpreter."""
    function = IMAGES[name]
    options: dict[str, Any] = {"narrow_below": 1} if wide else {}
    program = compiled(cache, function, images_of(3, 6, 4, 12), **options)
    assert "% 16 == 0" in program.source
    for size in (
        (3, 6, 4, 12),
        (1, 2, 8, 2),
        (2, 4, 3, 5),
        (1, 6, 7, 16),
        (2, 2, 1, 1),
        (3, 6, 4, 12),
    ):
        inputs = images_of(*size)
        assert_equals_eager(program(*inputs), function, inputs)


def test_the_host_multiplies(cache: Path, loads: list[bool]) -> None:
    program = compiled(cache, IMAGES["batch norm"], images_of(3, 6, 4, 12))
    assert loads == [True]
    (function,) = program.generated.printed.functions.values()
    assert [name for name, number in function.numbers if len(number.free_symbols) == 4]
    (product,) = program.generated.printed.host.aligned
    assert product.is_Mul and len(product.args) == 2


# -- the choice of sizes ---------------------------------------------------------------------------------

SIZES = [sympy.Symbol(name, integer=True) for name in "abcd"]
products = st.lists(st.sampled_from(SIZES), min_size=1, max_size=3).map(lambda s: sympy.Mul(*s))
hints = st.dictionaries(st.sampled_from(SIZES), st.integers(1, 64).map(sympy.Integer))


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.frozensets(products, max_size=6), hints)
def test_each_product_has_a_chosen_one(
    wanted: frozenset[sympy.Expr], hints: dict[sympy.Symbol, sympy.Integer]
) -> None:
    chosen = aligned_products(wanted, hints)
    assert chosen == aligned_products(sorted(wanted, key=str, reverse=True), hints)
    multiples = {product for product in chosen if is_multiple(product, hints)}
    assert multiples in (set(), set(chosen))
    for product in wanted:
        if is_multiple(product, hints) or not multiples:
            assert is_aligned(product, chosen)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(products, st.lists(products, max_size=2), st.tuples(*[st.integers(0, 99)] * len(SIZES)))
def test_what_follows_from_products(
    number: sympy.Expr, known: list[sympy.Expr], sizes: tuple[int, ...]
) -> None:
    call = dict(zip(SIZES, map(sympy.Integer, sizes), strict=True))
    for shift in (0, 3, 16):
        if is_aligned(number + shift, known) and all(is_multiple(k, call) for k in known):
            assert is_multiple(number + shift, call)
