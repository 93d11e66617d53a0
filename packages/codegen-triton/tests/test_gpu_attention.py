"""Attention with changed scores, and numbers of 8 bits, on a GPU: beside float64 and eager."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from compiled_beside_eager import schedule_of
from test_attention import SCORES, attention, operands, wide
from test_float8 import FLOAT8, numbers
from weft_codegen_triton import TritonCodegen, TritonOptions

pytestmark = pytest.mark.gpu

ERROR = {torch.float16: 2e-3, torch.bfloat16: 1.5e-2, torch.float32: 1e-5}


@pytest.mark.parametrize("dtype", ERROR, ids=str)
@pytest.mark.parametrize("name", SCORES)
def test_scores_that_are_changed(tmp_path: Path, name: str, dtype: torch.dtype) -> None:
    change, others = SCORES[name]
    inputs = tuple(t.cuda() for t in (*operands(dtype), *others(dtype)))
    tunes = name in ("soft cap", "plain")
    codegen = TritonCodegen(
        TritonOptions(cache_directory=tmp_path, fuse_attention=True, autotune=tunes)
    )
    program = codegen.compile(schedule_of(attention(change), inputs, codegen), {})
    assert program.extern_count == 0
    exact = attention(change)(*wide(inputs))
    for _ in range(3):
        error = (program(*inputs)[0].double() - exact).norm() / exact.norm()
        assert error <= ERROR[dtype]


@pytest.mark.parametrize("kind", FLOAT8, ids=str)
def test_rounding_to_8_bits(tmp_path: Path, kind: torch.dtype) -> None:
    codegen = TritonCodegen(TritonOptions(cache_directory=tmp_path))
    x = numbers().cuda()
    program = codegen.compile(schedule_of(lambda x: x.to(kind), (x,), codegen), {})
    assert torch.equal(program(x)[0].view(torch.uint8), x.to(kind).view(torch.uint8))
