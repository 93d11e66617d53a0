"""Transformers with batches and lengths that change: two compilations at most, results equal eager's."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import weft

from benchmarks.models import MODELS
from benchmarks.models.comparison import in_double, relative_error, tensors

SIZES = ((2, 9), (3, 16), (5, 7), (4, 33), (6, 6), (8, 3), (2, 9), (7, 12))


def inputs_of(name: str, batch: int, length: int) -> dict[str, Any]:
    tokens = torch.randint(0, 90, (batch, length))
    if name != "bert":
        return {"input_ids": tokens}
    mask = torch.ones_like(tokens)
    mask[0, -2:] = 0
    return {"input_ids": tokens, "attention_mask": mask}


def check(model: torch.nn.Module, exact: torch.nn.Module, compiled: Any, inputs: Any) -> None:
    references = tensors(exact(**in_double(inputs)))
    eager, results = tensors(model(**inputs)), tensors(compiled(**inputs))
    for result, plain, reference in zip(results, eager, references, strict=True):
        assert result.shape == plain.shape
        assert result.stride() == plain.stride()
        assert relative_error(result, reference) <= max(1e-4, 2 * relative_error(plain, reference))


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama"])
def test_two_compilations_serve_every_size(name: str) -> None:
    model = MODELS[name].build(False)
    exact = copy.deepcopy(model).double()
    compiled = weft.compile(model, fullgraph=True)
    log = weft.CompileLog()
    with torch.no_grad(), weft.observe(log):
        for batch, length in SIZES:
            check(model, exact, compiled, inputs_of(name, batch, length))
    assert len(log.graphs) == 2
    assert all(report.eager_reason is None for report in log.graphs)


def test_marked_sizes_need_one_compilation() -> None:
    model = MODELS["bert"].build(False)
    exact = copy.deepcopy(model).double()
    compiled = weft.compile(model, fullgraph=True)
    log = weft.CompileLog()
    with torch.no_grad(), weft.observe(log):
        for batch, length in SIZES[:4]:
            inputs = inputs_of("bert", batch, length)
            for tensor in inputs.values():
                weft.mark_dynamic(tensor, (0, 1), min=2)
            check(model, exact, compiled, inputs)
    assert len(log.graphs) == 1
