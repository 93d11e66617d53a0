"""Functions of ``torch.jit.script`` and ``torch.jit.trace`` in captured code."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from weft_bytecode_capture import capture, compile_frames

with warnings.catch_warnings():
    warnings.simplefilter("ignore")

    @torch.jit.script
    def scaled(x, factor: float, times: int = 2):
        for _ in range(times):
            x = x * factor
        return x

    @torch.jit.script
    def positions(size: int, x: torch.Tensor):
        if size > 2:
            return torch.arange(size) + scaled(x, 2.0)
        return x

    @torch.jit.script
    def asking(x):
        if torch.jit.is_scripting():
            return x + 1
        return x

    @torch.jit.script
    def plus_one(x):
        return x + 1

    def doubled(x: Any) -> Any:
        return x * 2 if x.sum() > 0 else x

    traced = torch.jit.trace(doubled, (torch.ones(3),), check_trace=False)


def run_graph(graph: Any, inputs: Any) -> Any:
    return graph.forward


def test_scripted_functions_are_captured() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return positions(x.shape[0], scaled(x.sin(), 3, times=1)) + scaled(x, factor=0.5)

    captured = capture(function)
    for size in (3, 2, 5):
        x = torch.randn(size)
        found = captured(x)
        torch.testing.assert_close(found.result, function(x))
        assert not found.breaks


@pytest.mark.parametrize("scripted", [asking, traced])
def test_what_no_python_does_is_called_as_it_is(scripted: Any) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return scripted(x + 1) * 2

    for x in (torch.ones(3), -5 * torch.ones(3)):
        found = capture(function)(x)
        torch.testing.assert_close(found.result, function(x))
        assert found.breaks[0].kind == "call of a scripted function"


def test_errors_of_arguments_are_torchs_own() -> None:
    for arguments in ((2.0,), (torch.ones(2), 3)):

        def function(x: torch.Tensor, arguments: Any = arguments) -> Any:
            return plus_one(*arguments)

        for called in (function, compile_frames(function, run_graph)):
            with pytest.raises(RuntimeError, match=r"plus_one\(\)"):
                called(torch.ones(2))


def test_another_function_at_the_place() -> None:
    def function(x: torch.Tensor, scripted: Any) -> torch.Tensor:
        return scripted(x) * 2

    compiled = compile_frames(function, run_graph)
    for scripted in (plus_one, asking, plus_one, torch.relu):
        x = torch.randn(3)
        torch.testing.assert_close(compiled(x, scripted), function(x, scripted))
