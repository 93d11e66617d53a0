"""Clean-ups: what they remove, and what they must not."""

from __future__ import annotations

from typing import Any

import torch
import weft_aot_autograd
import weft_functionalize
from torch import Tensor

aten = torch.ops.aten


def _calls(traced: weft_aot_autograd.ForwardGraph) -> list[Any]:
    return [n.target for n in traced.graph_module.graph.nodes if n.op == "call_function"]


def test_identities_go(forward: Any) -> None:
    def program(x: Tensor) -> Tensor:
        return x.clone().detach().view(3, 4).expand(3, 4).sin()

    assert _calls(forward(program, torch.randn(3, 4))) == [aten.sin.default]


def test_views_back_are_what_they_are_of(forward: Any) -> None:
    def program(x: Tensor) -> Any:
        y = x.sin()
        left, right = y.transpose(0, 1).transpose(0, 1).split(2)
        flat = y.view(12).view(3, 4) + y.t().t() + y.unsqueeze(1).squeeze(1)
        return flat.t().t(), left.cos().t().t(), right.exp(), y.view(6, 2).t()

    x = torch.randn(4, 4)[:, 1:].t()
    assert _calls(forward(program, x.contiguous())).count(aten.t.default) == 1
    assert aten.transpose.int not in _calls(forward(program, x.contiguous()))


def test_returned_views_stay_own_tensors(forward: Any) -> None:
    def program(x: Tensor) -> Any:
        y = x.sin()
        return x.t().t(), y, y.t().t(), x.transpose(0, 1).view(6, 2).view(4, 3)

    forward(program, torch.randn(3, 4)[:, :4].contiguous().t().contiguous().t())


def test_returned_copy_stays(forward: Any) -> None:
    def program(x: Tensor) -> Any:
        y = x.clone()
        return x.clone(), y.t(), x

    assert _calls(forward(program, torch.randn(3, 4))).count(aten.clone.default) == 2


def test_copy_of_a_mutated_input_stays(forward: Any) -> None:
    def program(x: Tensor) -> Any:
        before = x.clone()
        row = before.unbind(0)[1]
        x.mul_(2)
        return row

    forward(program, torch.randn(3, 4))


def test_equal_expressions_are_computed_once(forward: Any) -> None:
    def program(x: Tensor) -> Tensor:
        return (x * 2).sin() + (x * 2).sin()

    targets = _calls(forward(program, torch.randn(3)))
    assert targets == [aten.mul.Tensor, aten.sin.default, aten.add.Tensor]


def test_signed_zeros_and_types_are_not_equal(forward: Any) -> None:
    def program(x: Tensor) -> Any:
        return (x * 0.0).copysign(x * -0.0) + x * 1 + x * True

    assert _calls(forward(program, torch.randn(3))).count(aten.mul.Tensor) == 4


def test_two_outputs_are_two_tensors(forward: Any) -> None:
    def program(x: Tensor) -> Any:
        return x * 2, x * 2, (x * 3)[0], (x * 3)[1]

    x = torch.randn(3)
    functional = weft_functionalize.functionalize(torch.fx.symbolic_trace(program), [x])
    traced = weft_aot_autograd.trace_inference(functional)
    outputs = traced.graph_module(x)
    assert len({value.untyped_storage().data_ptr() for value in outputs}) == 4


def test_random_operators_are_neither_merged_nor_removed(forward: Any) -> None:
    def program(x: Tensor) -> Any:
        torch.rand_like(x)
        return torch.rand_like(x) - torch.rand_like(x)

    functional = weft_functionalize.functionalize(torch.fx.symbolic_trace(program), [torch.ones(3)])
    traced = weft_aot_autograd.trace_inference(functional)
    assert _calls(traced).count(aten.rand_like.default) == 3
    torch.manual_seed(1)
    want = program(torch.ones(3))
    torch.manual_seed(1)
    (got,) = traced.graph_module(torch.ones(3))
    assert torch.equal(want, got)
