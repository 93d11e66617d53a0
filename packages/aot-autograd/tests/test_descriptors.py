"""What each input and output of a training program's graphs stands for, as its descriptors say."""

from __future__ import annotations

import torch
import torch.fx
import weft_aot_autograd
import weft_functionalize
from torch import Tensor, nn
from weft_aot_autograd import GradientDescriptor, TangentDescriptor
from weft_functionalize import (
    FunctionalGraph,
    InputKind,
    OutputKind,
    SameAsInput,
    ViewOfInput,
    ViewOfOutput,
    WholeOutput,
)


class Module(nn.Module):
    """Has a parameter and a buffer that it writes; results are an input, a view of one, and share memory."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 3, dtype=torch.float64))
        self.calls: Tensor
        self.register_buffer("calls", torch.zeros((), dtype=torch.float64))

    def forward(self, x: Tensor, state: Tensor) -> tuple[Tensor, ...]:
        self.calls.add_(1)
        state.mul_(2)
        product = (x @ self.weight).tanh()
        return product, product[0], x, state[1:], self.calls * 2


class Tracer(torch.fx.Tracer):
    proxy_buffer_attributes = True


def graphs() -> tuple[FunctionalGraph, weft_aot_autograd.JointGraph]:
    x = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    state = torch.randn(3, dtype=torch.float64)
    module = Module()
    traced = torch.fx.GraphModule(module, Tracer().trace(module))
    functional = weft_functionalize.functionalize(traced, [x, state])
    joint = weft_aot_autograd.trace_joint(functional)
    assert joint is not None
    return functional, joint


def test_inputs() -> None:
    functional, _ = graphs()
    described = {d.name: d for d in functional.inputs}
    kinds = {name: (d.kind, d.target or d.position) for name, d in described.items()}
    assert set(kinds.values()) == {
        (InputKind.PARAMETER, "weight"),
        (InputKind.BUFFER, "calls"),
        (InputKind.USER_INPUT, 0),
        (InputKind.USER_INPUT, 1),
    }
    assert {name for name, d in described.items() if d.mutated} == {"calls", "state"}
    assert {name for name, d in described.items() if d.requires_grad} == {"weight", "x"}


def test_outputs() -> None:
    functional, _ = graphs()
    index = {d.name: k for k, d in enumerate(functional.inputs)}
    written = [d for d in functional.outputs if d.kind is OutputKind.MUTATED_INPUT]
    assert {d.input_index for d in written} == {index["calls"], index["state"]}
    (base,) = (d for d in functional.outputs if d.kind is OutputKind.ALIAS_BASE)
    users = sorted(
        (d for d in functional.outputs if d.kind is OutputKind.USER_OUTPUT),
        key=lambda d: d.position or 0,
    )
    assert base.graph_index is not None
    assert [d.alias for d in users] == [
        WholeOutput(base.graph_index),
        ViewOfOutput(base.graph_index, (3,), (1,), 0),
        SameAsInput(index["x"]),
        ViewOfInput(index["state"], (2,), (1,), 1),
        None,
    ]
    assert [d.requires_grad for d in users] == [True, True, True, False, False]


def test_tangents_gradients_and_what_is_saved() -> None:
    functional, joint = graphs()
    index = {d.name: k for k, d in enumerate(functional.inputs)}
    (base,) = (d for d in functional.outputs if d.kind is OutputKind.ALIAS_BASE)
    assert base.graph_index is not None
    assert joint.tangents == (TangentDescriptor(base.graph_index),)
    wanted = sorted([index["weight"], index["x"]])
    assert joint.gradients == tuple(map(GradientDescriptor, wanted))
    parts = weft_aot_autograd.partition(joint)
    placeholders = parts.backward.graph.find_nodes(op="placeholder")
    assert len(placeholders) == len(parts.saved) + len(parts.tangents)
    for saved, node in zip(parts.saved, placeholders, strict=False):
        assert (saved.input_index is None) != (saved.output_index is None)
        assert saved.nbytes == node.meta["val"].numel() * node.meta["val"].element_size()
    assert {s.input_index for s in parts.saved} >= {index["weight"], index["x"]}
