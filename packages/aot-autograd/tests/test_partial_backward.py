"""Backward where only some outputs have a gradient: what the others' gradients go through does not run."""

from __future__ import annotations

from typing import Any

import torch
import torch.fx
from gradients_beside_eager import train
from torch import Tensor
from weft_aot_autograd.partial_backward import partial_backward

aten = torch.ops.aten


def leaf(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, requires_grad=True)


def targets(stage: Any) -> list[Any]:
    return [n.target for n in stage.graph_module.graph.nodes if n.op == "call_function"]


def two_heads(x: Tensor, left: Tensor, right: Tensor) -> Any:
    hidden = x.tanh()
    return hidden @ left, hidden @ right


def test_a_head_that_is_not_used_is_not_computed() -> None:
    inputs = [leaf(4, 3), leaf(3, 5), leaf(3, 6)]
    _, partitioned = train(two_heads, inputs)
    stage = partial_backward(partitioned, [1], dropped=[2])
    assert stage is not None
    assert targets(stage).count(aten.mm.default) == 2
    assert stage.gradients == (0, 1)
    placeholders = partitioned.backward.graph.find_nodes(op="placeholder")
    assert {tuple(placeholders[k].meta["val"].shape) for k in stage.inputs}.isdisjoint({(3, 6)})


def test_zeros_do_where_gradients_are_only_added() -> None:
    def program(x: Tensor, weight: Tensor) -> Any:
        logits = x @ weight
        return logits.softmax(-1), logits.view(-1)

    _, partitioned = train(program, [leaf(4, 3), leaf(3, 5)])
    assert partial_backward(partitioned, [1]) is None
    assert partial_backward(partitioned, [0]) is not None


def test_values_that_meet_otherwise_meet_zeros() -> None:
    def program(x: Tensor) -> Any:
        first, second = x.exp().split(2)
        return first.sin(), second.cos()

    x = leaf(4, 3)
    compiled, partitioned = train(program, [x])
    for absent, position in ((0, 1), (1, 0)):
        stage = partial_backward(partitioned, [absent])
        assert stage is not None
        assert aten.full.default in targets(stage)
        want = torch.autograd.grad(program(x)[position].sum(), x)
        torch.testing.assert_close(torch.autograd.grad(compiled(x)[position].sum(), x), want)


def test_a_gradient_given_is_never_handed_on() -> None:
    """The engine may write to what it gets: it is in no memory that somebody else has."""

    def program(x: Tensor, y: Tensor) -> Any:
        return x + y, y.sqrt()

    x, y = leaf(3), leaf(3)
    compiled, _ = train(program, [x, y])
    tangent = torch.ones(3, dtype=torch.float64)
    found = torch.autograd.grad(compiled(x, y)[0], [x, y], tangent)
    assert len({tensor.data_ptr() for tensor in (tangent, *found)}) == 3
    torch.testing.assert_close(found, (tangent, tangent))
