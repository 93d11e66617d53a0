"""Matrix products in one kernel with the loops that read them, beside eager."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from compiled_beside_eager import assert_equals_eager, schedule_of
from torch.nn import functional as F
from weft_codegen_triton import TritonCodegen, TritonOptions, TritonProgram
from weft_codegen_triton.products.find_products import fuse_products
from weft_codegen_triton.products.print_product import print_product
from weft_codegen_triton.runtime.autotuning import variants
from weft_loop_ir import ExternCall

T = torch.Tensor
Case = tuple[Callable[..., Any], tuple[T, ...]]


def randn(*size: int) -> T:
    return torch.randn(size) / 4


FUSED: dict[str, Case] = {
    "relu": (lambda x, w: (x @ w).relu(), (randn(64, 64), randn(64, 64))),
    "odd sizes": (lambda x, w: (x @ w).relu(), (randn(67, 35), randn(35, 131))),
    "a weight as it lies": (
        lambda x, w, b: F.gelu(F.linear(x, w, b)),
        (randn(3, 20, 48), randn(70, 48), randn(70)),
    ),
    "another row": (lambda x, w, b: x @ w.t() + b, (randn(33, 40), randn(50, 40), randn(50))),
    "a transposed left operand": (lambda x, w: (x.t() @ w) * 2, (randn(40, 33), randn(40, 50))),
    "a residual": (
        lambda x, w, r: torch.tanh(x @ w) + r,
        (randn(30, 40), randn(40, 50), randn(30, 50)),
    ),
    "a transposed residual": (
        lambda x, w, r: (x @ w) + r.t(),
        (randn(30, 40), randn(40, 50), randn(50, 30)),
    ),
    "heads": (
        lambda x, w: (x @ w.t()).view(2, 20, 4, 16).transpose(1, 2).contiguous() * 0.5,
        (randn(40, 32), randn(64, 32)),
    ),
    "a transposed result": (lambda x, w: (x @ w).t().contiguous() + 1, (randn(33, 40), randn(40, 50))),
    "rows apart": (lambda x, w: (x[:, :40] @ w[::2]).exp(), (randn(33, 50), randn(80, 50))),
    "expanded": (lambda x, w: (x.expand(20, 40) @ w) + 1, (randn(1, 40), randn(40, 50))),
    "two results": (lambda x, w: ((y := (x @ w).relu()) * 2, y + 1), (randn(20, 32), randn(32, 48))),
    "another dtype": (lambda x, w: (x @ w).to(torch.int32), (randn(20, 32) * 9, randn(32, 48) * 9)),
    "NaN and infinity": (
        lambda x, w: (x @ w).relu(),
        (randn(20, 32).index_fill(0, torch.tensor([3]), torch.inf), randn(32, 48)),
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def fusing(cache: Path) -> TritonCodegen:
    return TritonCodegen(TritonOptions(cache_directory=cache, fuse_products=True))


def run(fusing: TritonCodegen, function: Callable[..., Any], *inputs: T) -> TritonProgram:
    program = fusing.compile(schedule_of(function, inputs, fusing), {})
    assert_equals_eager(program(*inputs), function, inputs)
    return program


@pytest.mark.parametrize("name", FUSED)
def test_products_with_what_follows(fusing: TritonCodegen, name: str) -> None:
    function, inputs = FUSED[name]
    program = run(fusing, function, *inputs)
    assert program.extern_count == 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["odd sizes", "a weight as it lies", "a residual", "heads"])
def test_half_precision(fusing: TritonCodegen, name: str, dtype: torch.dtype) -> None:
    function, inputs = FUSED[name]
    assert run(fusing, function, *(t.to(dtype) for t in inputs)).extern_count == 0


OTHERS: dict[str, Case] = {
    "a result of the graph": (lambda x, w: ((y := x @ w), y + 1), (randn(20, 32), randn(32, 48))),
    "a softmax": (lambda x, w: (x @ w).softmax(-1), (randn(20, 32), randn(32, 48))),
    "a residual that is multiplied": (lambda x, w: x @ w + x, (randn(32, 32), randn(32, 32))),
    "float64": (lambda x, w: (x @ w).relu(), (randn(20, 32).double(), randn(32, 48).double())),
    "few rows": (lambda x, w: (x @ w).relu(), (randn(4, 32), randn(32, 48))),
    "half of it is read": (lambda x, w: (x @ w)[:, :20].relu(), (randn(20, 32), randn(32, 48))),
    "a matrix is added": (
        lambda c, x, w: torch.addmm(c, x, w).relu(),
        (randn(20, 48), randn(20, 32), randn(32, 48)),
    ),
    "scaled": (
        lambda c, x, w: torch.addmm(c, x, w, alpha=2).relu(),
        (randn(48), randn(20, 32), randn(32, 48)),
    ),
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

    assert run(fusing, function, randn(160, 160), randn(160, 160)).extern_count == 1


def test_several_tiles_are_timed(codegen: TritonCodegen) -> None:
    """Each with its steps in flight; none needs more memory than a block has."""
    found = []
    inputs = torch.empty(256, 512), torch.empty(512, 256)
    schedule = schedule_of(lambda x, w: (x @ w).relu(), inputs, codegen)
    fuse_products(schedule, lambda product: bool(found.append(product)))
    (product,) = found
    functions = variants(print_product(product, schedule.buffers).function)
    assert len(functions) > 3
    assert len({(f.constants, f.warps) for f in functions}) == len(functions)
    for function in functions:
        sizes = dict(function.constants)
        elements = (sizes["XBLOCK"] + sizes["YBLOCK"]) * sizes["KBLOCK"] * function.stages
        assert 4 * elements <= 200 << 10


def test_the_library_multiplies_by_default(codegen: TritonCodegen) -> None:
    inputs = randn(64, 64), randn(64, 64)
    schedule = schedule_of(lambda x, w: (x @ w).relu(), inputs, codegen)
    assert sum(isinstance(s, ExternCall) for s in schedule.steps) == 1
    assert codegen.compile(schedule, {}).extern_count == 1
