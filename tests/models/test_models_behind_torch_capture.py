"""Real models through every stage after capture: torch captures them, weft compiles the graphs."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import weft

from benchmarks.models import MODELS, ModelCase
from benchmarks.models.comparison import in_double, relative_error, tensors

# Every run has decoder, images, convolutions and a recurrence; `test_models.py` has all models.
IN_EVERY_RUN = ("gpt2", "vit", "unet", "lstm")


def case_of(name: str) -> Any:
    marks = () if name in IN_EVERY_RUN else pytest.mark.slow
    return pytest.param(MODELS[name], id=name, marks=marks)


@pytest.mark.parametrize("case", map(case_of, MODELS))
def test_equals_eager(case: ModelCase) -> None:
    if case.name == "t5" and torch.__version__ < "2.13":
        pytest.skip("this torch's own capture refuses copy.deepcopy of a configuration")
    torch.manual_seed(0)
    torch.compiler.reset()
    model = case.build(False)
    exact = copy.deepcopy(model).double()
    compiled = torch.compile(model, backend="weft", fullgraph=True, dynamic=False)
    log = weft.CompileLog()
    with torch.no_grad(), weft.observe(log):
        for variant in (0, 1):
            inputs = case.inputs(False, variant)
            references = tensors(exact(**in_double(inputs)))
            eager = tensors(model(**inputs))
            results = tensors(compiled(**inputs))
            assert len(results) == len(references) == len(eager) > 0
            for result, plain, reference in zip(results, eager, references, strict=True):
                assert result.shape == plain.shape
                assert result.dtype == plain.dtype
                assert result.stride() == plain.stride()
                allowed = max(1e-4, relative_error(plain, reference))
                assert relative_error(result, reference) <= allowed
    assert len(log.graphs) == 2
    assert all(report.eager_reason is None and report.kernel_count > 0 for report in log.graphs)
    assert all(not report.fallbacks for report in log.graphs)
