"""Maxima and minima, which the runtime takes from the processor, where values are special."""

from __future__ import annotations

import pytest
import torch
import weft_loop_ir
from torch.fx.experimental.proxy_tensor import make_fx
from weft_codegen_cpp import CppCodegen


def maxima(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    reduced = x.amax(1), x.amin(1), x.amax(0), x.amin(0), x.amax(), x.softmax(1)
    return *reduced, torch.maximum(x, y), torch.minimum(x, y)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_special_values_in_any_lane(codegen: CppCodegen, dtype: torch.dtype) -> None:
    """Row and column 0, 3, 6 ... have a NaN, at another place each; those between an infinity."""
    x = torch.randn(37, 37, dtype=dtype)
    x.diagonal().copy_(torch.tensor([torch.nan, torch.inf, -torch.inf]).repeat(13)[:37])
    inputs = x, x.flip(0).contiguous()
    graph = make_fx(maxima, tracing_mode="fake")(*inputs)
    program = codegen.compile(weft_loop_ir.schedule(weft_loop_ir.lower(graph)), {})
    for got, expected in zip(program(*inputs), maxima(*inputs), strict=True):
        torch.testing.assert_close(got, expected, equal_nan=True)
