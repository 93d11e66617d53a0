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
from weft_codegen_triton.kernel.aligned_sizes import SIZE_MULTIPLE, aligned_sizes
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
    program = compiled(cache, function, inputs_of(*first), fuse_products=True)
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
    assert set(jobs[True].aligned) - set(jobs[False].aligned) == set(printed.host.aligned)
    CompileServer(cache / "compiled", 2).compile(jobs.values())
    texts = {kind: ptx_of(cache / "compiled" / "work", job.key()) for kind, job in jobs.items()}
    assert "ld.global.v4" in texts[True] and "st.global.v4" in texts[True]
    assert "ld.global.v4" not in texts[False]


def ptx_of(folder: Path, key: str) -> str:
    """The PTX that Triton keeps of the module ``key``."""
    texts = [path.read_text() for path in folder.rglob("*.ptx")]
    (found,) = [text for text in texts if key in text]
    return found


# -- the choice of sizes ---------------------------------------------------------------------------------

SIZES = [sympy.Symbol(name, integer=True) for name in "abcd"]
products = st.frozensets(st.sampled_from(SIZES), min_size=1, max_size=3)
hints = st.dictionaries(st.sampled_from(SIZES), st.integers(1, 64).map(sympy.Integer))


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.frozensets(products, max_size=6), hints)
def test_each_product_has_a_chosen_size(
    wanted: frozenset[frozenset[sympy.Symbol]], hints: dict[sympy.Symbol, sympy.Integer]
) -> None:
    chosen = aligned_sizes(wanted, hints)
    assert chosen == aligned_sizes(sorted(wanted, key=str, reverse=True), hints)
    multiples = {s for s in chosen if hints.get(s, 0) % SIZE_MULTIPLE == 0}
    assert multiples in (set(), set(chosen))
    if not multiples:
        assert all(not factors.isdisjoint(chosen) for factors in wanted)
    for factors in wanted:
        if len(factors) == 1 and hints.get(next(iter(factors)), 0) % SIZE_MULTIPLE == 0:
            assert factors <= set(chosen)
