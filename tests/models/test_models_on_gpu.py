"""Real models on a GPU: compiled whole, equal to eager within rounding, in inference and in training."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import weft

from benchmarks.models import MODELS, ModelCase
from benchmarks.models.comparison import in_double, relative_error, tensors

pytestmark = pytest.mark.gpu

each_model = pytest.mark.parametrize("case", MODELS.values(), ids=list(MODELS))


@pytest.fixture(autouse=True)
def exact_products() -> Iterator[None]:
    """Products and convolutions in float32, not in TF32."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    # torch's operator database, which other tests import, leaves only this way to set it.
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        yield
    torch.backends.cuda.matmul.allow_tf32 = before


def on_gpu(inputs: dict[str, Any], dtype: torch.dtype) -> dict[str, Any]:
    return {k: v.cuda().to(dtype) if v.is_floating_point() else v.cuda() for k, v in inputs.items()}


@each_model
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_inference(case: ModelCase, dtype: torch.dtype) -> None:
    model = case.build(False).cuda().to(dtype)
    exact = copy.deepcopy(model).double()
    compiled = weft.compile(model, fullgraph=True)
    log = weft.CompileLog()
    with torch.no_grad(), weft.observe(log):
        for variant in (0, 1, 0, 1, 0):
            inputs = on_gpu(case.inputs(False, variant), dtype)
            references = tensors(exact(**in_double(inputs)))
            eager = tensors(model(**inputs))
            results = tensors(compiled(**inputs))
            for result, plain, reference in zip(results, eager, references, strict=True):
                assert result.stride() == plain.stride()
                allowed = max(1e-4, 1.5 * relative_error(plain, reference))
                assert relative_error(result, reference) <= allowed
    assert all(report.eager_reason is None and report.kernel_count > 0 for report in log.graphs)


@each_model
def test_training(case: ModelCase) -> None:
    model = case.build(False).cuda()
    exact = copy.deepcopy(model).double()
    plain = copy.deepcopy(model)
    inputs = on_gpu(case.inputs(False, 0), torch.float32)

    def gradients(run: Any, owner: torch.nn.Module, inputs: dict[str, Any]) -> list[torch.Tensor]:
        owner.zero_grad(set_to_none=True)
        sum(t.square().mean() for t in tensors(run(**inputs))).backward()
        return [p.grad.clone() for p in owner.parameters() if p.grad is not None]

    references = gradients(exact, exact, in_double(inputs))
    eager = gradients(plain, plain, inputs)
    compiled = weft.compile(model)
    for _ in range(3):  # step by step, recorded, replayed
        results = gradients(compiled, model, inputs)
        assert len(results) == len(references)
        for result, other, reference in zip(results, eager, references, strict=True):
            if reference.norm() > 1e-6:
                allowed = max(1e-3, 2 * relative_error(other, reference))
                assert relative_error(result, reference) <= allowed
