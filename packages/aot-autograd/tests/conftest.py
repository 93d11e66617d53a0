"""What the tests stand on: a program's forward graph, run beside eager."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.fx
import weft_aot_autograd
import weft_functionalize

sys.path.insert(0, str(Path(__file__).parent))  # the tests' own helper modules


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.default_generator.manual_seed(0)  # those of devices that are not there take longer


@pytest.fixture
def forward() -> Callable[..., weft_aot_autograd.ForwardGraph]:
    """``forward(program, *inputs)``: the forward graph; checks values, strides and inputs beside eager."""

    def run(program: Any, *inputs: Any) -> weft_aot_autograd.ForwardGraph:
        module = program
        if not isinstance(program, torch.fx.GraphModule):
            module = torch.fx.symbolic_trace(program)
        functional = weft_functionalize.functionalize(module, inputs)
        traced = weft_aot_autograd.trace_inference(functional)
        bound = weft_functionalize.bind(functional, traced.graph_module)
        want_inputs, got_inputs = _copies(inputs), _copies(inputs)
        with torch.no_grad():
            want = torch.fx.Interpreter(module).run(*want_inputs)
            got = weft_functionalize.wrap(functional, bound)(*got_inputs)
        want = want if isinstance(want, tuple) else (want,)
        for x, y in zip((*want, *want_inputs), (*got, *got_inputs), strict=True):
            torch.testing.assert_close(y, x, equal_nan=True, rtol=1e-11, atol=1e-11)
        _check_fake_values(traced.graph_module)
        return traced

    return run


def _copies(inputs: Any) -> list[Any]:
    return [value.clone() if isinstance(value, torch.Tensor) else value for value in inputs]


def _check_fake_values(module: torch.fx.GraphModule) -> None:
    for node in module.graph.nodes:
        assert "val" in node.meta, node
