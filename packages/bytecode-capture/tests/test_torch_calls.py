"""Calls of torch's functions: which function it is stays guarded; what the graph keeps of it."""

from __future__ import annotations

import pytest
import torch
from differential import check, run_graph
from weft_bytecode_capture import compile_frames

activation = torch.relu


def test_rebound_global_function_is_noticed(monkeypatch):
    def apply(x):
        return activation(x)

    compiled = compile_frames(apply, run_graph)
    x = torch.tensor([-1.0, 2.0])
    assert torch.equal(compiled(x), torch.relu(x))
    monkeypatch.setitem(globals(), "activation", torch.tanh)
    assert torch.equal(compiled(x), torch.tanh(x))


@pytest.mark.parametrize(
    "functions",
    [
        (torch.sin, torch.cos),
        (torch.nn.functional.relu, torch.nn.functional.gelu),
        (torch.Tensor.exp, torch.Tensor.sqrt),
        (torch.is_tensor, torch.is_floating_point, torch.is_complex),
        (torch.numel, torch.is_tensor, torch.sum),
    ],
)
def test_function_passed_as_argument_is_guarded(functions):
    x = torch.tensor([0.5, 2.0])
    check(lambda x, function: function(x), [(x, function) for function in functions])


def test_overload_is_guarded():
    compiled = compile_frames(lambda x, function: function(x), run_graph)
    x = torch.tensor([0.5, 2.0])
    for function in (torch.ops.aten.sin.default, torch.ops.aten.cos.default, torch.ops.aten.exp):
        assert torch.equal(compiled(x, function), function(x))


def test_bound_builtin_methods_are_known_by_receiver_and_name():
    reports = []

    def breaks(x):
        out = []
        for step in range(3):
            out.append((x + step).sum().item())  # the list's method waits on the stack
        return out, x.add(x.sum().item())

    compiled = compile_frames(breaks, run_graph, observer=reports.append)
    for value in range(6):
        x = torch.ones(2)  # numbers that items give are guarded
        assert compiled(x)[0] == breaks(x)[0]
        assert torch.equal(compiled(x)[1], breaks(x)[1])
        if value == 0:
            met = len(reports)
    assert len(reports) == met
    check(lambda x, call: call(x), [(torch.ones(2), torch.ones(2).mul), (torch.ones(2), [].append)])


def test_function_kept_in_a_module_is_guarded():
    module = torch.nn.Module()
    compiled = compile_frames(lambda x: module.activation(x), run_graph)
    x = torch.tensor([-1.0, 2.0])
    for function in (torch.sin, torch.cos, torch.sin):
        module.activation = function
        assert torch.equal(compiled(x), function(x))
