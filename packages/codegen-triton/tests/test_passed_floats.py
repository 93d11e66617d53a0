"""Floats that are passed: one program for all of them, equal to eager."""

from __future__ import annotations

import operator

import torch
import torch.fx
import weft_loop_ir
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv
from weft_codegen_triton import TritonCodegen
from weft_codegen_triton.program import NOT_RECORDED

aten = torch.ops.aten


def graph_with_float(x: torch.Tensor) -> torch.fx.GraphModule:
    """``x * (rate * 0.9) + rate``: torch's tracers make no placeholder for a float."""
    environment = ShapeEnv()
    mode = FakeTensorMode(shape_env=environment)
    graph = torch.fx.Graph()

    def symbol(name: str, value: float) -> torch.SymFloat:
        made = environment.create_symbol(
            value, ConstantSource(name), DimDynamic.DYNAMIC, None, None, True
        )
        return environment.create_symfloatnode(made, hint=value)

    tensor, rate = graph.placeholder("x"), graph.placeholder("rate")
    factor = graph.call_function(operator.mul, (rate, 0.9))
    scaled = graph.call_function(aten.mul.Tensor, (tensor, factor))
    result = graph.call_function(aten.add.Tensor, (scaled, rate))
    tensor.meta["val"] = mode.from_tensor(x, static_shapes=True)
    rate.meta["val"], factor.meta["val"] = symbol("rate", 0.5), symbol("factor", 0.45)
    scaled.meta["val"] = result.meta["val"] = tensor.meta["val"].clone()
    graph.output((result,))
    return torch.fx.GraphModule(torch.nn.Module(), graph)


def test_one_program_serves_every_float(codegen: TritonCodegen) -> None:
    for dtype in (torch.float32, torch.float64):
        x = torch.tensor([0.5, -2.0, 0.0, -0.0, 3.0], dtype=dtype)
        graph = graph_with_float(x)
        schedule = weft_loop_ir.schedule(weft_loop_ir.lower(graph), codegen.schedule_options)
        program = codegen.compile(schedule, {})
        for rate in (0.5, 1 / 3, -2.0, 1e-30, 5e-324):
            torch.testing.assert_close(program(x, rate), graph(x, rate), rtol=1e-15, atol=0)
        assert program.not_recorded == NOT_RECORDED
