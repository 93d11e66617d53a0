"""Floats that are passed, from the loop IR on: one program for all of them, equal to eager.

Graphs are built by hand: no tracer of torch makes such a placeholder.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.fx
import weft_loop_ir
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv
from weft_codegen_cpp import CppCodegen

aten = torch.ops.aten


class FloatGraph:
    """A graph of a tensor ``x`` and a float ``rate``; each float computed is a symbol of its own."""

    def __init__(self, x: torch.Tensor, rate: float) -> None:
        self._environment = ShapeEnv()
        self._mode = FakeTensorMode(shape_env=self._environment)
        self._graph = torch.fx.Graph()
        self.x = self._placeholder("x", self._mode.from_tensor(x, static_shapes=True))
        self.rate = self._placeholder("rate", self._float("rate", rate))

    def _placeholder(self, name: str, value: Any) -> torch.fx.Node:
        node = self._graph.placeholder(name)
        node.meta["val"] = value
        return node

    def _float(self, name: str, value: float) -> torch.SymFloat:
        symbol = self._environment.create_symbol(
            value, ConstantSource(name), DimDynamic.DYNAMIC, None, None, True
        )
        return self._environment.create_symfloatnode(symbol, hint=value)

    def number(self, function: Callable[..., float], *operands: Any) -> torch.fx.Node:
        """A float computed from others."""
        node = self._graph.call_function(function, operands)
        hints = torch.fx.node.map_arg(operands, lambda n: n.meta["val"].node.hint)
        node.meta["val"] = self._float(node.name, float(function(*hints)))
        return node

    def tensor(self, function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        """A tensor computed by an ATen operator."""
        node = self._graph.call_function(function, arguments, keywords)
        values = torch.fx.node.map_arg((arguments, keywords), lambda n: n.meta["val"])
        with self._mode:
            node.meta["val"] = function(*values[0], **values[1])
        return node

    def finish(self, *results: torch.fx.Node) -> torch.fx.GraphModule:
        self._graph.output(results)
        return torch.fx.GraphModule(torch.nn.Module(), self._graph)


def decay(x: torch.Tensor, rate: float) -> torch.fx.GraphModule:
    """``x * (1 - rate * 0.9) + rate`` and others that take the float in each way that there is."""
    graph = FloatGraph(x, rate)
    factor = graph.number(operator.sub, 1, graph.number(operator.mul, graph.rate, 0.9))
    negative = graph.number(operator.neg, graph.rate)
    root = graph.number(torch.sym_sqrt, graph.number(operator.abs, negative))
    quotient = graph.number(operator.truediv, graph.number(operator.pow, 0.5, graph.rate), root)
    scaled = graph.tensor(aten.mul.Tensor, graph.x, factor)
    return graph.finish(
        graph.tensor(aten.add.Tensor, scaled, graph.rate),
        graph.tensor(aten.add.Tensor, graph.x, graph.x, alpha=negative),
        graph.tensor(aten.clamp.default, graph.x, min=negative, max=root),
        graph.tensor(aten.pow.Tensor_Scalar, graph.x, graph.rate),
        graph.tensor(aten.full.default, [2, 3], quotient, dtype=torch.float64),
        graph.tensor(aten.addcmul.default, graph.x, graph.x, graph.x, value=quotient),
        graph.tensor(aten.mul.Tensor, graph.tensor(aten.sum.default, graph.x), root),
    )


RATES = (0.5, 0.1, 2.0, 1e-30, 370.0)
X = torch.tensor([0.5, -2.0, 0.0, -0.0, math.inf, math.nan, 3.0] * 5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_the_evaluator_takes_every_float(dtype: torch.dtype) -> None:
    x = X.to(dtype)
    graph = decay(x, 0.25)
    loop_graph = weft_loop_ir.lower(graph)
    schedule = weft_loop_ir.schedule(loop_graph, weft_loop_ir.ScheduleOptions(verify=True))
    assert dict(schedule.fallbacks) == {"aten.pow.Tensor_Scalar": 1}
    for rate in RATES:
        wanted = graph(x, rate)
        for program in (loop_graph, schedule):
            found = weft_loop_ir.evaluate(program, [x, rate])
            torch.testing.assert_close(found, wanted, equal_nan=True)


def test_kernels_take_the_numbers_that_the_host_computes() -> None:
    schedule = weft_loop_ir.schedule(weft_loop_ir.lower(decay(X, 0.25)))
    assert "sub(1.0, mul(" in weft_loop_ir.format_schedule(schedule)


def test_constants_of_either_sign_are_told_apart() -> None:
    zeros = [weft_loop_ir.SizeFloat("constant", (zero,)) for zero in (0.0, -0.0)]
    assert zeros[0] != zeros[1]
    assert len(set(zeros)) == 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_native_program_takes_every_float(dtype: torch.dtype) -> None:
    x = X.to(dtype)
    graph = decay(x, 0.25)
    program = CppCodegen().compile(weft_loop_ir.schedule(weft_loop_ir.lower(graph)), {})
    for rate in RATES:
        torch.testing.assert_close(program(x, rate), graph(x, rate), equal_nan=True)


def test_the_host_computes_doubles_to_the_last_bit() -> None:
    graph = decay(X, 0.25)
    program = CppCodegen().compile(weft_loop_ir.schedule(weft_loop_ir.lower(graph)), {})
    for rate in (1 / 3, 0.1, 1e-9, 1e-30, 300.0):
        assert torch.equal(program(X, rate)[4], graph(X, rate)[4])
