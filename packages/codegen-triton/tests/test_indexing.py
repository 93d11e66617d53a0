"""Loads and stores at computed places: gathers, scatters, windows, concatenations."""

from __future__ import annotations

import math

import pytest
import sympy
import torch
from compiled_beside_eager import check, schedule_of
from kernel_cases import INDEX, INDEXING, LAYOUTS, MATRIX, ROWS
from torch._subclasses.fake_tensor import FakeTensorMode
from weft_codegen_triton import TritonCodegen
from weft_codegen_triton.kernel import index_bounds
from weft_codegen_triton.kernel.index_bounds import magnitude
from weft_loop_ir import FloorDiv, Mod


@pytest.mark.parametrize("name", INDEXING)
def test_against_eager(codegen: TritonCodegen, name: str) -> None:
    function, inputs = INDEXING[name]
    check(codegen, function, *inputs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64], ids=str)
def test_scatters_accumulate(codegen: TritonCodegen, dtype: torch.dtype) -> None:
    target, source = torch.zeros(4, 3, dtype=dtype), torch.ones(2, 3, dtype=dtype) * 2
    index = torch.tensor([[1, 1, 0], [1, 3, 0]])
    check(codegen, lambda t, i, s: t.scatter_add(0, i, s), target, index, source)
    check(codegen, lambda t, i, s: t.index_add(0, i[:, 0], s), target, index, source)
    check(
        codegen, lambda t, i, s: t.index_put((i[:, 1],), s, accumulate=True), target, index, source
    )


@pytest.mark.parametrize("include_self", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64], ids=str)
def test_scatters_average(codegen: TritonCodegen, dtype: torch.dtype, include_self: bool) -> None:
    target, source = (torch.randn(6, 3) * 9).to(dtype), (torch.randn(9, 3) * 9).to(dtype)
    index = torch.randint(0, 6, (9, 3))

    def mean(t: torch.Tensor, i: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        return t.scatter_reduce(0, i, s, "mean", include_self=include_self)

    check(codegen, mean, target, index, source)


def test_no_places_of_other_dims(codegen: TritonCodegen) -> None:
    """Eager takes an index of any rank that has no elements."""
    index = torch.empty(2, 0, 10, dtype=torch.int64)

    def program(x: torch.Tensor, i: torch.Tensor) -> tuple[torch.Tensor, ...]:
        source = i.to(x.dtype)
        return x.scatter(0, i, source) + 1, x.scatter_add(0, i, source), x.gather(0, i[0]) * 2

    check(codegen, program, torch.randn(2, 5), index)


def test_one_number_is_added_at_many_places(codegen: TritonCodegen) -> None:
    index = torch.tensor([[1, 1, 0], [1, 3, 0]])
    for dtype in (torch.float32, torch.int32, torch.int64):
        check(
            codegen,
            lambda t, i: t.scatter_add(0, i, torch.ones_like(t)),
            torch.zeros(4, 3, dtype=dtype),
            index,
        )


def test_an_index_out_of_range_is_an_error(codegen: TritonCodegen) -> None:
    program = check(codegen, lambda x, i: x[i], MATRIX, INDEX)
    assert "tl.device_assert" in program.source
    with pytest.raises(Exception, match="out of bounds"):
        program(MATRIX, INDEX + 9)


@pytest.mark.parametrize("name", [*LAYOUTS, *ROWS, *INDEXING])
def test_in_64_bits(codegen: TritonCodegen, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a place may be beyond what 32 bits hold, here because little is said to be held."""
    monkeypatch.setattr(index_bounds, "INT32_SAFE", 1)
    function, inputs = {**LAYOUTS, **ROWS, **INDEXING}[name]
    program = check(codegen, function, *inputs)
    assert "tl.program_id(0)" not in program.source.replace("tl.program_id(0).to(tl.int64)", "")


def test_64_bits_where_places_pass_31(codegen: TritonCodegen) -> None:
    def source(rows: int) -> str:
        x = torch.empty(rows, 1 << 20, device="meta")
        with FakeTensorMode() as mode:
            schedule = schedule_of(lambda x: x[:, :8] * 2, (mode.from_tensor(x),), codegen)
        return codegen.print(schedule).source

    assert "program_id(0).to(tl.int64)" not in source(1 << 10)
    assert "program_id(0).to(tl.int64)" in source(1 << 12)


def test_quotients_and_remainders_are_bounded_by_themselves() -> None:
    i, j, n = sympy.symbols("i j n", integer=True)
    sizes = {i: sympy.Integer(1 << 28), j: sympy.Integer(100)}
    assert magnitude(FloorDiv(i, sympy.Integer(1 << 10)) * (1 << 12), sizes) == 1 << 30
    assert magnitude(FloorDiv(i - j, sympy.Integer(3)), {**sizes, i: sympy.Integer(1)}) == 101
    assert magnitude(Mod(i * 16, sympy.Integer(7)), sizes) == 1 << 32  # what is divided counts too
    assert magnitude(Mod(i, sympy.Integer(7)) * 1000, sizes) == 1 << 28
    assert math.isinf(magnitude(FloorDiv(n, sympy.Integer(2)), sizes))
    assert math.isinf(magnitude(FloorDiv(i, n), sizes))
