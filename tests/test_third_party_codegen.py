"""A code generator of a third party conforms, runs models, and takes the CPU's place by being installed."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import weft
from torch.nn import functional as F
from weft.registry import codegens, stage_folders
from weft_loop_ir.testing import Case, check, conformance_cases

EXAMPLE = Path(__file__).parent.parent / "examples" / "third_party_codegen"
sys.path.insert(0, str(EXAMPLE / "src"))

from c_codegen import CCodegen  # noqa: E402  the example, where it lies

REFUSED = {"random"}
"""What the example says that it refuses."""

PROGRAM = """
import torch, weft
def f(x, y):
    return torch.softmax(x @ y, dim=-1) * 2
x, y = torch.randn(4, 8), torch.randn(8, 3)
log = weft.CompileLog()
with weft.observe(log):
    torch.testing.assert_close(torch.compile(f, backend="weft", fullgraph=True)(x, y), f(x, y))
print([graph.codegen for graph in log.graphs])
"""


@pytest.fixture
def registered() -> Iterator[weft.CompileLog]:
    """The example is the CPU's code generator; the log says what has been compiled."""
    weft.register_codegen("cpu", CCodegen)
    log = weft.CompileLog()
    with weft.observe(log):
        yield log
    del codegens["cpu"]
    stage_folders.cache_clear()


@pytest.mark.parametrize("case", conformance_cases(sample=True), ids=str)
def test_conformance(case: Case) -> None:
    check(CCodegen(), case, may_refuse=REFUSED)


@pytest.mark.slow
def test_the_whole_suite() -> None:
    for case in conformance_cases():
        check(CCodegen(), case, may_refuse=REFUSED)


def test_bert(registered: weft.CompileLog) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = transformers.BertConfig(vocab_size=99, intermediate_size=64, **sizes)
    model = transformers.BertForSequenceClassification(config).eval()
    tokens = torch.randint(0, 99, (2, 11))
    with torch.no_grad():
        result = weft.compile(model, fullgraph=True)(tokens).logits
        torch.testing.assert_close(result, model(tokens).logits)
    (graph,) = registered.graphs
    assert graph.codegen == "c_codegen.CCodegen"
    assert graph.kernel_count > 0


@pytest.mark.parametrize("whole", [False, True])
def test_a_training_step(registered: weft.CompileLog, whole: bool) -> None:
    """``whole``: backward runs inside the compiled call, where the program's own Python is left alone."""
    torch.manual_seed(0)
    layers = [torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.LayerNorm(16)]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(16, 3))
    other = copy.deepcopy(model)
    x, target = torch.randn(5, 8), torch.tensor([0, 1, 2, 1, 0])

    def loss_of(model: torch.nn.Module) -> torch.Tensor:
        return F.cross_entropy(model(x), target)

    def step(
        model: torch.nn.Module, optimizer: torch.optim.Optimizer, loss_of: object
    ) -> torch.Tensor:
        loss = loss_of(model)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    first = torch.optim.AdamW(model.parameters(), 1e-2)
    second = torch.optim.AdamW(other.parameters(), 1e-2)
    compiled = weft.compile(step) if whole else step
    for _ in range(3):
        loss = compiled(model, first, loss_of if whole else weft.compile(loss_of))
        torch.testing.assert_close(loss, step(other, second, loss_of))
    for ours, theirs in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)
    assert all(graph.codegen == "c_codegen.CCodegen" for graph in registered.graphs)
    own = [graph for graph in registered.graphs if "loop_ir" in graph.location]
    assert not own


def test_the_example_is_short() -> None:
    lines = [line for f in EXAMPLE.rglob("*.py") for line in f.read_text().splitlines()]
    assert sum(bool(line.strip()) for line in lines) < 300


def test_an_installed_package_takes_the_devices_place(tmp_path: Path) -> None:
    pytest.importorskip("hatchling", reason="the build backend of the package is not installed")
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
    install += ["--no-build-isolation", "--target", str(tmp_path), str(EXAMPLE)]
    subprocess.run(install, check=True)
    paths = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    assert "c_codegen.CCodegen" in run.stdout
