"""Random numbers that a GPU's kernels draw: backward computes them again from seeds, and keeps no mask."""

from __future__ import annotations

import torch
import weft_aot_autograd
import weft_functionalize
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from weft_codegen_triton import TritonCodegen


def function(x: Tensor) -> Tensor:
    kept, _ = torch.native_dropout(x.sin(), 0.25, True)
    return (kept * torch.rand_like(x)).sum(0) + torch.native_dropout(x, 0.5, True)[0].amax(0)


def test_gradients_see_the_numbers_of_forward() -> None:
    x = torch.randn(64, 32, requires_grad=True)
    captured = torch.fx.symbolic_trace(function)
    functional = weft_functionalize.functionalize(captured, [x])
    joint = weft_aot_autograd.trace_joint(functional)
    assert joint is not None
    TritonCodegen().rewrite(joint.graph_module)
    parts = weft_aot_autograd.partition(joint)

    (output,) = parts.forward.graph.find_nodes(op="output")
    kept = output.args[0][parts.output_count :]
    values = [node.meta["val"] for node in kept if isinstance(node, torch.fx.Node)]
    assert [v.numel() for v in values if v.dtype is torch.int64] == [3]  # the seeds
    assert not any(v.dtype is torch.bool for v in values)

    program = weft_functionalize.wrap(
        functional,
        weft_aot_autograd.TrainingProgram(functional, parts, parts.forward, parts.backward),
    )
    reference = make_fx(function, tracing_mode="fake")(x.detach())
    TritonCodegen().rewrite(reference)
    tangent, results = torch.randn(32), []
    for run in (program, reference):
        torch.manual_seed(7)
        result = run(x)
        result = result[0] if isinstance(result, tuple | list) else result
        results.append((result, *torch.autograd.grad(result, [x], tangent)))
    torch.testing.assert_close(results[0], results[1])
