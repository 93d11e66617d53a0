"""Kernels with products beside the loop nests that they stand for: verified and evaluated."""

from __future__ import annotations

import pytest
import torch
import weft_loop_ir
from compiled_beside_eager import schedule_of
from matmul_cases import ALL
from weft_codegen_triton import TritonCodegen
from weft_codegen_triton.gpu import REFERENCE
from weft_codegen_triton.matmuls.fuse_matmuls import fuse_matmuls
from weft_loop_ir import FusedKernel, all_items


@pytest.mark.parametrize("name", ALL)
def test_a_product_is_what_its_nests_compute(codegen: TritonCodegen, name: str) -> None:
    function, inputs, _ = ALL[name]
    schedule = schedule_of(function, inputs, codegen)
    schedule = fuse_matmuls(schedule, lambda forms: forms[0], codegen.schedule_options, REFERENCE)
    assert any(isinstance(step, FusedKernel) for step in all_items(schedule.steps))
    weft_loop_ir.verify(schedule)
    assert "temporary" in weft_loop_ir.format_schedule(schedule)
    results = weft_loop_ir.evaluate(schedule, inputs)
    expected = function(*inputs)
    expected = expected if isinstance(expected, tuple) else (expected,)
    for result, want in zip(results, expected, strict=True):
        torch.testing.assert_close(result, want, rtol=1e-4, atol=1e-4, equal_nan=True)


def test_groups_of_rows(codegen: TritonCodegen) -> None:
    x, w = torch.randn(41, 32).bfloat16(), torch.randn(3, 32, 48).bfloat16()
    ends = torch.tensor([7, 7, 41], dtype=torch.int32)
    inputs = (x, w, ends)
    schedule = schedule_of(lambda x, w, e: torch._grouped_mm(x, w, e).relu(), inputs, codegen)
    schedule = fuse_matmuls(schedule, lambda forms: forms[0], codegen.schedule_options, REFERENCE)
    weft_loop_ir.verify(schedule)
    (result,) = weft_loop_ir.evaluate(schedule, inputs)
    parts = [x[:7].double() @ w[0].double(), x[7:].double() @ w[2].double()]
    torch.testing.assert_close(result.double(), torch.cat(parts).relu(), rtol=2e-2, atol=2e-2)
