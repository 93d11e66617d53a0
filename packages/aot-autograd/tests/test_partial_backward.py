"""Backward where only some outputs have a gradient: what the others' gradients go through does not run."""

from __future__ import annotations

from typing import Any

import torch
import torch.fx
import weft_aot_autograd
import weft_functionalize
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


def with_loss(x: Tensor, weight: Tensor) -> Any:
    logits = x @ weight
    return logits.logsumexp(-1).mean(), logits


def graphs(program: Any, *inputs: Tensor) -> Any:
    functional = weft_functionalize.functionalize(torch.fx.symbolic_trace(program), inputs)
    joint = weft_aot_autograd.trace_joint(functional)
    assert joint is not None
    return functional, weft_aot_autograd.partition(joint)


def test_losses_are_expected_to_have_the_gradients() -> None:
    functional, partitioned = graphs(with_loss, leaf(4, 3), leaf(3, 5))
    expected = weft_aot_autograd.expected_backward(functional, partitioned)
    assert expected is not None
    assert expected.missing == {1}
    assert len(partitioned.saved) + 1 not in expected.segment.inputs


def test_without_a_loss_all_results_are_expected_to_have_gradients() -> None:
    for program in (lambda x: (x.exp(), x.sin()), lambda x: (x.exp().sum(), x.sin().sum())):
        functional, partitioned = graphs(program, leaf(4, 3))
        assert weft_aot_autograd.expected_backward(functional, partitioned) is None


def test_the_whole_backward_is_compiled_where_a_call_needs_it() -> None:
    inputs = [leaf(4, 3), leaf(3, 5)]
    functional, partitioned = graphs(with_loss, *inputs)
    expected = weft_aot_autograd.expected_backward(functional, partitioned)
    assert expected is not None
    compiled_later = []

    def compile_later(graph_module: torch.fx.GraphModule) -> Any:
        compiled_later.append(graph_module)
        return graph_module.forward

    training = weft_aot_autograd.TrainingProgram(
        functional,
        partitioned,
        weft_functionalize.bind(functional, partitioned.forward),
        expected.segment.graph_module.forward,
        compile_later,
        expected=expected,
    )
    compiled = weft_functionalize.wrap(functional, training)
    loss = compiled(*inputs)[0]
    first, second = (torch.autograd.grad(loss, inputs, retain_graph=True) for _ in range(2))
    torch.testing.assert_close(first, second)
    for asked, count in ((slice(0, 1), 0), (slice(0, 2), 1), (slice(0, 1), 1), (slice(1, 2), 2)):
        found, wanted = (
            torch.autograd.grad([y.sum() for y in f(*inputs)[asked]], inputs)
            for f in (compiled, with_loss)
        )
        torch.testing.assert_close(found, wanted)
        assert len(compiled_later) == count
