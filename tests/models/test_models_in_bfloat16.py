"""Real models with bfloat16 parameters: as close to the float64 result as eager is, with eager's strides."""

from __future__ import annotations

import copy

import pytest
import torch
import weft

from benchmarks.models import MODELS, ModelCase
from benchmarks.models.comparison import in_double, relative_error, tensors


def in_bfloat16(inputs: dict[str, object]) -> dict[str, object]:
    """``inputs`` with floating-point tensors in bfloat16."""
    return {
        name: value.bfloat16() if isinstance(value, torch.Tensor) and value.is_floating_point() else value
        for name, value in inputs.items()
    }  # fmt: skip


@pytest.mark.parametrize("case", MODELS.values(), ids=list(MODELS))
def test_is_as_accurate_as_eager(case: ModelCase) -> None:
    torch.manual_seed(0)
    model = case.build(False).bfloat16()
    exact = copy.deepcopy(model).double()
    inputs = in_bfloat16(case.inputs(False, 0))
    with torch.no_grad():
        references = tensors(exact(**in_double(inputs)))
        eager = tensors(model(**inputs))
        results = tensors(weft.compile(model, fullgraph=True)(**inputs))
    assert len(results) == len(references) == len(eager) > 0
    for result, plain, reference in zip(results, eager, references, strict=True):
        assert (result.shape, result.dtype, result.stride()) == (
            plain.shape, plain.dtype, plain.stride(),
        )  # fmt: skip
        assert relative_error(result, reference) <= 2 * relative_error(plain, reference) + 1e-2
