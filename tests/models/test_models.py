"""Real models, compiled whole: equal to eager within rounding, no graph break, two shapes each."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import weft
from torch.utils import _pytree as pytree

from benchmarks.models import MODELS, ModelCase


def tensors(output: Any) -> list[torch.Tensor]:
    """The floating-point tensors of a model's output, caches and output classes included."""
    found: list[torch.Tensor] = []

    def collect(value: Any) -> None:
        if isinstance(value, torch.Tensor):
            if value.is_floating_point():
                found.append(value)
        elif isinstance(value, (list, tuple)):
            for item in value:
                collect(item)
        elif hasattr(value, "items"):
            for _, item in value.items():
                collect(item)
        elif hasattr(value, "layers"):  # a key-value cache of transformers
            for layer in value.layers:
                collect([getattr(layer, "keys", None), getattr(layer, "values", None)])

    collect(output)
    return found


def relative_error(value: torch.Tensor, reference: torch.Tensor) -> float:
    """Norm of the difference over the norm of the float64 reference."""
    return ((value.double() - reference).norm() / reference.norm().clamp_min(1e-30)).item()


def in_double(inputs: dict[str, Any]) -> dict[str, Any]:
    return pytree.tree_map_only(
        torch.Tensor, lambda t: t.double() if t.is_floating_point() else t, inputs
    )


@pytest.mark.parametrize("case", MODELS.values(), ids=lambda case: case.name)
def test_equals_eager_in_one_graph(case: ModelCase) -> None:
    torch.manual_seed(0)
    model = case.build(False)
    exact = copy.deepcopy(model).double()
    compiled = weft.compile(model, fullgraph=True)
    log = weft.CompileLog()
    with torch.no_grad(), weft.observe(log):
        for variant in (0, 1, 0):
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
    assert log.graph_breaks == []
    assert len(log.graphs) == 2  # one for each shape; the third call finds the first's code again
    assert all(report.eager_reason is None and report.kernel_count > 0 for report in log.graphs)


@pytest.mark.parametrize("case", MODELS.values(), ids=lambda case: case.name)
def test_output_class_is_eagers(case: ModelCase) -> None:
    model = case.build(False)
    inputs = case.inputs(False, 0)
    with torch.no_grad():
        assert type(weft.compile(model)(**inputs)) is type(model(**inputs))
