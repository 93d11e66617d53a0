"""Rows whose place data says, in kernels with long rows."""

from __future__ import annotations

import pytest
import torch
from compiled_beside_eager import check
from weft_codegen_triton import TritonCodegen


@pytest.mark.parametrize("dtype", [torch.int32, torch.int16, torch.float32], ids=str)
def test_rows_that_are_looked_up(looping: TritonCodegen, dtype: torch.dtype) -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rounded = torch.round(x)
        return rounded[torch.arange(3) % 2], rounded.sigmoid().roll(-2, -1).max(1)[0]

    check(looping, program, (torch.randn(3, 5) * 3).to(dtype))


def test_rows_that_are_looked_up_and_read_twice(looping: TritonCodegen) -> None:
    x = torch.arange(3 * 20, dtype=torch.int16).view(3, 20)[:, :10:2]

    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.tanh(x), x[torch.arange(3) % 2].logsumexp(1).sum()

    source = check(looping, program, x).source
    assert "scratch" in source
