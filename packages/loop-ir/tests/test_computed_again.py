"""What kernels make of what they read anyway, instead of reading it from memory too."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from scheduling import kernels, scheduled
from torch.nn import functional as F
from weft_loop_ir import ScheduleOptions


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("reads", [True, False])
def test_what_readers_can_make_of_what_they_read_is_computed_again(
    reads: bool, dtype: torch.dtype
) -> None:
    def function(gate: torch.Tensor, up: torch.Tensor, weight: torch.Tensor) -> Any:
        weights = F.silu(gate)
        down = (weights * up) @ weight
        return (down * weights + (gate if reads else 0)).sum(), down.sum()

    inputs = [torch.randn(8, 8, dtype=dtype) for _ in range(3)]
    stored = [len(kernels(scheduled(function, inputs, o))[0].writes) for o in (
        ScheduleOptions(), ScheduleOptions(again_elements=64), ScheduleOptions(again_elements=65)
    )]  # fmt: skip
    assert stored == [2, 1 if reads else 2, 2]


def test_long_formulas_and_results_are_not_computed_again() -> None:
    def function(gate: torch.Tensor, weight: torch.Tensor) -> Any:
        weights, factor = torch.tanh(gate) * 2, gate
        for k in range(9):
            factor = factor.abs() + k
        down = (weights * factor) @ weight
        return down * factor + gate * weights, weights

    options = ScheduleOptions(again_elements=1)
    first, *_ = kernels(scheduled(function, [torch.randn(8, 8), torch.randn(8, 8)], options))
    assert len(first.writes) == 3
