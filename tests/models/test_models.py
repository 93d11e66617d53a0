"""Real models, compiled whole: equal to eager within rounding, no graph break, two shapes each."""

from __future__ import annotations

import copy
import runpy
from pathlib import Path

import pytest
import torch
import weft

from benchmarks.models import MODELS, ModelCase
from benchmarks.models.comparison import in_double, relative_error, same_strides, tensors
from benchmarks.models.transformer_families import TRANSFORMER_FAMILIES

ALL = {**MODELS, **TRANSFORMER_FAMILIES}
LIKE_OTHERS = frozenset(
    "distilbert roberta electra opt gpt-j gpt-neox mistral qwen2 qwen3 phi3 bart".split()
)
"""Made of parts that other models have, too."""
CASES = [
    pytest.param(case, id=name, marks=pytest.mark.slow if name in LIKE_OTHERS else ())
    for name, case in ALL.items()
]


@pytest.mark.parametrize("case", CASES)
def test_equals_eager_in_one_graph(case: ModelCase) -> None:
    if case.name == "deberta" and torch.__version__ < "2.12":
        pytest.skip("its scripted functions are torch.jit's own objects in this torch")
    torch.manual_seed(0)
    model = case.build(False)
    exact = copy.deepcopy(model).double()
    compiled = weft.compile(model, fullgraph=True)
    log = weft.CompileLog()
    with torch.no_grad(), weft.observe(log):
        for variant in (0, 1, 0):
            inputs = case.inputs(False, variant)
            references = tensors(exact(**in_double(inputs)))
            given, made = model(**inputs), compiled(**inputs)
            assert type(made) is type(given)
            eager, results = tensors(given), tensors(made)
            assert len(results) == len(references) == len(eager) > 0
            for result, plain, reference in zip(results, eager, references, strict=True):
                assert result.shape == plain.shape
                assert result.dtype == plain.dtype
                assert same_strides(result, plain)
                allowed = max(1e-4, relative_error(plain, reference))
                assert relative_error(result, reference) <= allowed
    assert log.graph_breaks == []
    assert len(log.graphs) == 2  # one for each shape; the third call finds the first's code again
    assert all(report.eager_reason is None and report.kernel_count > 0 for report in log.graphs)


@pytest.mark.parametrize("name", ["bert", "unet"])
def test_dumped_graphs_are_programs(name: str, tmp_path: Path) -> None:
    case = MODELS[name]
    compiled = weft.compile(case.build(False), options={"dump_directory": tmp_path})
    with torch.no_grad():
        compiled(**case.inputs(False, 0))
    (folder,) = tmp_path.glob("0*")
    programs = sorted(folder.glob("*.py"))
    assert [path.stem for path in programs] == ["1_captured", "2_functional", "3_forward"]
    for path in programs:
        runpy.run_path(str(path), run_name="__main__")
