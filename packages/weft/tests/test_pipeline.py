"""The stages after capture, on graphs that torch.fx traced."""

import gc
import runpy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import weft
import weft_functionalize
from weft.graph_compiler import GraphCompiler
from weft.pipeline import Pipeline
from weft_codegen_cpp import CppCodegen


def traced(function: Callable[..., tuple[torch.Tensor, ...]]) -> torch.fx.GraphModule:
    return torch.fx.symbolic_trace(function)


def softmax(x):
    return (torch.softmax(x * 2, -1),)


def strict_pipeline(**options: object) -> Pipeline:
    return Pipeline(weft.CompileOptions(verify=True, **options), raise_errors=True)


def test_result_and_report() -> None:
    log = weft.CompileLog()
    pipeline = Pipeline(weft.CompileOptions(), raise_errors=True, observers=lambda: (log,))
    x = torch.randn(4, 8)
    (result,) = pipeline(traced(softmax), [x])(x)
    torch.testing.assert_close(result, softmax(x)[0])
    (report,) = log.graphs
    assert report.kernel_count == 1
    assert report.extern_count == 0
    assert set(report.seconds) == {"functionalize", "aot-autograd", "loop-ir", "codegen"}


class StartingCodegen(CppCodegen):
    """The CPU's code generator, which notes when it is told to start."""

    events: list[str]

    def start(self) -> None:
        self.events.append("start")


def test_a_code_generator_starts_beside_the_other_stages(monkeypatch) -> None:
    events: list[str] = []

    class Observer:
        def stage_started(self, location: str, stage_name: str) -> None:
            events.append(stage_name)

        def graph_finished(self, report: weft.GraphReport) -> None:
            events.append("finished")

    monkeypatch.setitem(weft.registry.codegens, "cpu", StartingCodegen)
    monkeypatch.setattr(StartingCodegen, "events", events, raising=False)
    observer = Observer()
    pipeline = Pipeline(weft.CompileOptions(), raise_errors=True, observers=lambda: (observer,))
    x = torch.randn(4, 8)
    (result,) = pipeline(traced(softmax), [x])(x)
    torch.testing.assert_close(result, softmax(x)[0])
    assert events == ["start", "functionalize", "aot-autograd", "loop-ir", "codegen", "finished"]


def test_a_mutated_input_is_written_back() -> None:
    def program(x, y):
        x[0].add_(y)
        return (x * 2,)

    x, y = torch.randn(3, 4), torch.randn(4)
    expected = x.clone()
    (wanted,) = program(expected, y)
    (result,) = strict_pipeline()(traced(program), [x.clone(), y])(x, y)
    torch.testing.assert_close(result, wanted)
    torch.testing.assert_close(x, expected)


def test_dump_is_readable_and_runs(tmp_path: Path) -> None:
    x = torch.randn(4, 8)
    strict_pipeline(dump_directory=tmp_path)(traced(softmax), [x])(x)
    (folder,) = tmp_path.iterdir()
    names = sorted(path.name for path in folder.iterdir())
    assert names == [
        "1_captured.py",
        "2_functional.py",
        "2_functionalize_steps.txt",
        "3_forward.py",
        "4_loop_ir.txt",
        "5_schedule.txt",
        "6_generated.cpp",
        "report.json",
    ]
    assert "softmax" in (folder / "1_captured.py").read_text()
    steps = (folder / "2_functionalize_steps.txt").read_text()
    assert [line for line in steps.splitlines() if line.startswith("#")] == [
        "# recorded",
        "# rewritten",
        "# renamed",
        "# converted",
    ]
    for name in ("2_functional.py", "3_forward.py"):
        runpy.run_path(str(folder / name), run_name="__main__")


def test_a_failing_stage_is_named(monkeypatch) -> None:
    def fail(*arguments, **keywords):
        raise RuntimeError("planted")

    monkeypatch.setattr(weft_functionalize, "functionalize", fail)
    x = torch.randn(4, 8)
    with pytest.raises(weft.StageError, match=r"functionalize failed .*planted"):
        strict_pipeline()(traced(softmax), [x])
    lenient = Pipeline(weft.CompileOptions(), raise_errors=False)
    with pytest.warns(weft.WeftWarning, match=r"functionalize failed.*runs eagerly") as caught:
        (result,) = lenient(traced(softmax), [x])(x)
    assert len(caught) == 1
    assert torch.equal(result, softmax(x)[0])


def test_a_graph_that_needs_gradients_is_compiled_with_its_backward(tmp_path: Path) -> None:
    x = torch.randn(4, 8, requires_grad=True)
    other = x.detach().clone().requires_grad_()
    compiled = strict_pipeline(dump_directory=tmp_path)(traced(softmax), [x])
    (result,) = compiled(x)
    (want,) = softmax(other)
    weights = torch.randn(want.shape)
    for output in (result, want):
        (output * weights).sum().backward()
    torch.testing.assert_close(result, want)
    torch.testing.assert_close(x.grad, other.grad)
    (folder,) = tmp_path.iterdir()
    names = {path.name for path in folder.iterdir()}
    assert {"3_joint.py", "3_forward.py", "3_backward.py", "6_generated_backward.cpp"} <= names


def test_the_collector_rests_while_a_backward_is_compiled_later(monkeypatch) -> None:
    collects = []
    compile_backward = GraphCompiler.compile_backward

    def noted(self: GraphCompiler, *arguments: object) -> object:
        collects.append(gc.isenabled())
        return compile_backward(self, *arguments)

    monkeypatch.setattr(GraphCompiler, "compile_backward", noted)
    x = torch.randn(5, requires_grad=True)
    first, _ = weft.compile(lambda x: (x.sin(), x.exp()))(x)
    collects.clear()
    assert gc.isenabled()
    first.sum().backward()  # of one result
    torch.testing.assert_close(x.grad, x.cos())
    assert collects == [False]
    assert gc.isenabled()
