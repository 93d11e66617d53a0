"""Loads and stores at computed places: gathers, scatters, windows, concatenations."""

from __future__ import annotations

import pytest
import torch
from compiled_beside_eager import check
from kernel_cases import INDEX, INDEXING, MATRIX
from weft_codegen_triton import TritonCodegen


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


def test_an_index_out_of_range_is_an_error(codegen: TritonCodegen) -> None:
    program = check(codegen, lambda x, i: x[i], MATRIX, INDEX)
    assert "tl.device_assert" in program.source
    with pytest.raises(Exception, match="out of bounds"):
        program(MATRIX, INDEX + 9)
