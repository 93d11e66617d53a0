"""Runs a program's partitioned graphs in autograd beside eager, operators unfused."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx
import weft_aot_autograd
import weft_functionalize
from torch import Tensor, nn
from weft_aot_autograd import PartitionedGraph, PartitionOptions


def train(
    program: Callable[..., Any] | nn.Module,
    inputs: Sequence[Any],
    options: PartitionOptions | None = None,
    segment_bytes: int | None = None,
) -> tuple[Callable[..., Any], PartitionedGraph]:
    """``program`` as autograd sees it compiled, and its graphs; takes and gives what ``program`` does."""
    module = program
    if not isinstance(program, torch.fx.GraphModule):
        module = torch.fx.symbolic_trace(program)
    assert isinstance(module, torch.fx.GraphModule)
    functional = weft_functionalize.functionalize(module, inputs)
    joint = weft_aot_autograd.trace_joint(functional)
    assert joint is not None, "no output that is computed needs gradients"
    partitioned = weft_aot_autograd.partition(joint, options=options)
    backward: Any = partitioned.backward
    if segment_bytes is not None:
        segments = weft_aot_autograd.segment_backward(partitioned, segment_bytes)
        backward = [(segment, segment.graph_module) for segment in segments]
    compiled = weft_aot_autograd.TrainingProgram(
        functional,
        partitioned,
        weft_functionalize.bind(functional, partitioned.forward),
        backward,
    )
    return weft_functionalize.wrap(functional, compiled), partitioned


def check_gradients(
    program: Callable[..., Any] | nn.Module,
    *inputs: Any,
    options: PartitionOptions | None = None,
    loss: Callable[[Sequence[Tensor]], Tensor] | None = None,
) -> PartitionedGraph:
    """Outputs, gradients, inputs and buffers after one step are eager's; float64 is expected."""
    plain = program
    other = copy.deepcopy(program) if isinstance(program, nn.Module) else program
    plain_inputs, other_inputs = copies(inputs), copies(inputs)
    compiled, partitioned = train(other, other_inputs, options)
    results = []
    for run, values, module in ((plain, plain_inputs, plain), (compiled, other_inputs, other)):
        torch.manual_seed(0)
        outputs = run(*values)
        outputs = outputs if isinstance(outputs, (tuple, list)) else (outputs,)
        (loss or weighted_sum)(outputs).backward()
        results.append([*outputs, *_gradients(values, module), *values, *_buffers(module)])
    for want, got in zip(*results, strict=True):
        assert isinstance(want, Tensor) == isinstance(got, Tensor)
        if isinstance(want, Tensor):
            assert want.requires_grad == got.requires_grad
            assert want.stride() == got.stride() or want.numel() == 0
            torch.testing.assert_close(got, want, equal_nan=True, rtol=1e-9, atol=1e-9)
    return partitioned


def weighted_sum(outputs: Sequence[Any]) -> Tensor:
    """A loss whose gradient differs from element to element."""
    total = torch.zeros((), dtype=torch.float64)
    for output in outputs:
        if isinstance(output, Tensor) and output.requires_grad:
            weights = torch.linspace(0.5, 1.5, output.numel(), dtype=output.dtype)
            product = output * weights.view(output.shape)
            total = total + (product.abs() if product.is_complex() else product).sum()
    return total


def copies(inputs: Sequence[Any]) -> list[Any]:
    return [
        value.detach().clone().requires_grad_(value.requires_grad)
        if isinstance(value, Tensor)
        else value
        for value in inputs
    ]


def _gradients(values: Sequence[Any], module: Any) -> list[Any]:
    leaves = [v for v in values if isinstance(v, Tensor) and v.is_leaf]
    if isinstance(module, nn.Module):
        leaves += list(module.parameters())
    return [leaf.grad for leaf in leaves]


def _buffers(module: Any) -> list[Tensor]:
    return list(module.buffers()) if isinstance(module, nn.Module) else []
