"""A stage's refusal asks for another capture; its fault is shown, whatever the graph has in it."""

from __future__ import annotations

import types
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import weft
import weft_aot_autograd
import weft_functionalize
import weft_loop_ir
from weft_bytecode_capture.symbolic.graph import graph_builder
from weft_bytecode_capture.symbolic.graph.recovery import RunsAsWritten
from weft_codegen_cpp import CppCodegen


def sized(x: torch.Tensor) -> torch.Tensor:
    return (x * 2).sum(0)


def reads_a_number(x: torch.Tensor) -> torch.Tensor:
    return x * x.sum().item()


def branches(x: torch.Tensor) -> torch.Tensor:
    if x.sum() > 0:
        x = x + 1
    else:
        x = x - 1
    return x * 3


def loops(x: torch.Tensor) -> torch.Tensor:
    for _ in range(50):
        x = x * 0.5 + 1
    return x


PROGRAMS = {
    "sizes": (sized, {"dynamic": True}),
    "numbers": (reads_a_number, {}),
    "a branch": (branches, {}),
    "a loop": (loops, {"dynamic": True}),
}
STAGES: dict[str, tuple[Any, str, str, type[Exception]]] = {
    "functionalize": (
        weft_functionalize,
        "functionalize",
        "functionalize",
        weft_functionalize.Unsupported,
    ),
    "aot-autograd": (
        weft_aot_autograd,
        "trace_inference",
        "aot-autograd",
        weft_aot_autograd.Unsupported,
    ),
    "loop-ir": (weft_loop_ir, "lower", "loop-ir", weft_loop_ir.Unsupported),
    "codegen": (CppCodegen, "compile", "codegen", weft_loop_ir.Unsupported),
}
each_stage = pytest.mark.parametrize("stage", STAGES)
each_program = pytest.mark.parametrize("program", PROGRAMS)


def fresh(program: str) -> tuple[Any, dict[str, Any]]:
    """The program as a function that nothing was compiled for yet."""
    function, keywords = PROGRAMS[program]
    return types.FunctionType(function.__code__, globals()), keywords


def plant(monkeypatch: pytest.MonkeyPatch, stage: str, error: Exception, times: int | None) -> None:
    """Have ``stage`` raise at its first ``times`` calls, or at each."""
    module, name, _, _ = STAGES[stage]
    original: Callable[..., Any] = getattr(module, name)
    calls = 0

    def planted(*arguments: Any, **keywords: Any) -> Any:
        nonlocal calls
        calls += 1
        if times is None or calls <= times:
            raise error
        return original(*arguments, **keywords)

    monkeypatch.setattr(module, name, planted)


@pytest.fixture(autouse=True)
def no_kept_programs(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path))


@each_program
@each_stage
def test_a_fault_is_raised_in_strict_mode(monkeypatch, stage: str, program: str) -> None:
    function, keywords = fresh(program)
    plant(monkeypatch, stage, KeyError("planted"), 1)
    with pytest.raises(weft.StageError, match=rf"{STAGES[stage][2]} failed .*KeyError: 'planted'"):
        weft.compile(function, **keywords)(torch.randn(4, 5))


@each_program
@each_stage
def test_a_fault_is_a_warning_otherwise(monkeypatch, stage: str, program: str) -> None:
    monkeypatch.setenv("WEFT_STRICT", "0")
    function, keywords = fresh(program)
    plant(monkeypatch, stage, KeyError("planted"), 1)
    compiled = weft.compile(function, **keywords)
    x = torch.randn(4, 5)
    with pytest.warns(weft.WeftWarning, match=rf"{STAGES[stage][2]} failed .*planted"):
        torch.testing.assert_close(compiled(x), function(x))
    torch.testing.assert_close(compiled(-x), function(-x))


@each_program
@each_stage
def test_a_refusal_is_tried_without(monkeypatch, stage: str, program: str) -> None:
    function, keywords = fresh(program)
    plant(monkeypatch, stage, STAGES[stage][3]("planted", "here", "none"), 1)
    x = torch.randn(4, 5)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.testing.assert_close(weft.compile(function, **keywords)(x), function(x))
    assert not [w for w in caught if issubclass(w.category, weft.WeftWarning)]


class FailingProgram:
    """A program of which each call raises."""

    def __init__(self, program: Any, error: Exception) -> None:
        self._program = program
        self._error = error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._program, name)

    def __call__(self, *arguments: Any) -> Any:
        raise self._error


def plant_in_programs(monkeypatch: pytest.MonkeyPatch, error: Exception | None = None) -> None:
    compiles = CppCodegen.compile

    def failing(*given: Any, **named: Any) -> FailingProgram:
        return FailingProgram(compiles(*given, **named), error or KeyError("planted"))

    monkeypatch.setattr(CppCodegen, "compile", failing)


def plant_in_fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    """In what capture itself does where an operator may refuse fake tensors."""
    scope: dict[str, Any] = {"__name__": "weft_bytecode_capture.planted"}
    exec("def planted(*_):\n    raise KeyError('planted')", scope)
    monkeypatch.setattr(graph_builder, "as_kernel_lies", scope["planted"])


@pytest.mark.parametrize("plants", [plant_in_programs, plant_in_fakes])
@pytest.mark.parametrize("program", ["sizes", "numbers"])
def test_faults_that_eager_would_hide(monkeypatch, plants, program: str) -> None:
    """Where a graph or an operator raises eager usually shows the program's own error."""
    x = torch.randn(4, 5)
    plants(monkeypatch)
    function, keywords = fresh(program)
    with pytest.raises(weft.StageError, match=r"bytecode-capture failed .*planted"):
        weft.compile(function, **keywords)(x)
    monkeypatch.setenv("WEFT_STRICT", "0")
    function, keywords = fresh(program)
    with pytest.warns(weft.WeftWarning, match=r"bytecode-capture failed .*planted"):
        torch.testing.assert_close(weft.compile(function, **keywords)(x), function(x))


def test_a_call_that_a_graph_is_not_for_is_no_fault(monkeypatch) -> None:
    x = torch.randn(4, 5)
    plant_in_programs(monkeypatch, RunsAsWritten())
    function, keywords = fresh("sizes")
    torch.testing.assert_close(weft.compile(function, **keywords)(x), function(x))


@each_stage
def test_behind_torch_compile(monkeypatch, stage: str) -> None:
    from weft.torch_compile_backend import weft_backend

    x = torch.randn(4, 5)
    for error in (KeyError("planted"), STAGES[stage][3]("planted", "here", "none")):
        with monkeypatch.context() as planted:
            plant(planted, stage, error, None)
            torch._dynamo.reset()
            planted.setenv("WEFT_STRICT", "1")
            compiled = torch.compile(sized, backend=weft_backend, dynamic=True)
            with pytest.raises(Exception, match=r"failed on the graph.*planted"):
                compiled(x)
            planted.setenv("WEFT_STRICT", "0")
            torch._dynamo.reset()
            with pytest.warns(weft.WeftWarning, match=r"failed on the graph.*planted"):
                torch.testing.assert_close(compiled(x), sized(x))
