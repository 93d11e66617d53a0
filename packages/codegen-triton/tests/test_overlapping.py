"""Kernels that begin before the one before them ends: where they wait, and what they load before that."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from compiled_beside_eager import assert_equals_eager, compiled, schedule_of
from product_cases import randn
from weft_codegen_triton import TritonCodegen
from weft_codegen_triton.kernel.kernel_printer import Function
from weft_codegen_triton.kernel.overlapping import FIRST_WAIT, WAIT, Overlap
from weft_codegen_triton.products.early_loads import load_early
from weft_codegen_triton.products.fuse_products import fuse_products
from weft_codegen_triton.products.untimed_choice import choose_untimed
from weft_codegen_triton.runtime.cuda_device import compile_job
from weft_loop_ir import Schedule, write_back

T = torch.Tensor


def vector(*size: int) -> T:
    return randn(*size).half()


def normalised(x: T, w: T) -> T:
    return x.softmax(-1) @ w.t()


def three_of_one(x: T, w: T, v: T, u: T) -> tuple[T, T, T]:
    y = x.softmax(-1)
    return (y @ w.t()).sin(), y @ v.t(), y @ u.t() + 1


def first_of_all(x: T, w: T) -> T:
    return x @ w.t()


def of_a_made_weight(x: T, w: T) -> T:
    return x.softmax(-1) @ (w.softmax(-1)).t()


def printed(schedule: Schedule, codegen: TritonCodegen) -> tuple[Function, ...]:
    chosen = load_early(fuse_products(schedule, choose_untimed, codegen.schedule_options))
    return tuple(codegen.print(chosen).functions.values())


def functions_of(
    function: Callable[..., Any], inputs: tuple[T, ...], codegen: TritonCodegen
) -> tuple[Function, ...]:
    return printed(schedule_of(function, inputs, codegen), codegen)


def early(functions: tuple[Function, ...]) -> int:
    """How many of the texts load before they wait."""
    return sum(f.template.count(WAIT) for f in functions)


CASES: dict[str, tuple[Callable[..., Any], tuple[T, ...], int]] = {
    "behind a kernel": (normalised, (vector(1, 96), vector(33, 96)), 1),
    "in one launch": (
        three_of_one,
        (vector(1, 2100), vector(9, 2100), vector(5, 2100), vector(5, 2100)),
        3,
    ),
    "first of a program": (first_of_all, (vector(1, 96), vector(33, 96)), 0),
    "of a weight that the program makes": (of_a_made_weight, (vector(1, 96), vector(33, 96)), 0),
}
each_case = pytest.mark.parametrize("name", CASES)


@each_case
def test_weights_are_loaded_early(codegen: TritonCodegen, name: str) -> None:
    function, inputs, expected = CASES[name]
    assert early(functions_of(function, inputs, codegen)) == expected
    assert_equals_eager(compiled(codegen, function, *inputs)(*inputs), function, inputs)


def test_a_weight_that_the_program_writes_is_not(codegen: TritonCodegen) -> None:
    def function(x: T, w: T) -> tuple[T, T]:
        return x.softmax(-1) @ w.t(), w * 2

    import weft_loop_ir
    from torch.fx.experimental.proxy_tensor import make_fx

    graph = make_fx(function, tracing_mode="fake")(vector(1, 96), vector(33, 96))
    lowered = weft_loop_ir.lower(graph)
    for targets, expected in (({}, 1), ({1: 1}, 0)):
        schedule = weft_loop_ir.schedule(write_back(lowered, targets), codegen.schedule_options)
        assert early(printed(schedule, codegen)) == expected


@each_case
def test_every_kernel_waits_once_in_each_program(codegen: TritonCodegen, name: str) -> None:
    """In its first function, or in each that this one calls, and nowhere on older devices."""
    function, inputs, _ = CASES[name]
    for one in functions_of(function, inputs, codegen):
        text = compile_job(one, 90).module
        parts = re.split(r"^@triton.jit$", text, flags=re.MULTILINE)[1:]
        waits = [part.count(WAIT) + part.count(FIRST_WAIT) for part in parts]
        assert waits[-1] == 1 or (waits[-1] == 0 and all(n == 1 for n in waits[:-1]) and waits[:-1])
        assert compile_job(one, 90).overlaps
        assert (FIRST_WAIT in text) == (one.overlap is Overlap.FIRST)
        for job in (compile_job(one, 80), compile_job(one, 90, overlaps=False)):
            assert WAIT not in job.module and FIRST_WAIT not in job.module and not job.overlaps


def test_kernels_of_many_programs_do_not(codegen: TritonCodegen) -> None:
    for size, expected in (((64, 64), Overlap.FIRST), ((4096, 4096), Overlap.NONE)):
        (one,) = functions_of(lambda x: x.sin(), (torch.empty(size),), codegen)
        assert one.overlap is expected


def test_only_the_first_waits_for_what_ran_before(codegen: TritonCodegen) -> None:
    functions = functions_of(normalised, (vector(1, 96), vector(33, 96)), codegen)
    assert [one.overlap for one in functions] == [Overlap.FIRST, Overlap.LATER]
