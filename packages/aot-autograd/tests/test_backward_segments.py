"""Backward in segments: gradients are eager's, and those of one segment are used before the next runs."""

from __future__ import annotations

import copy
import itertools
import warnings
import weakref
from collections.abc import Sequence
from typing import Any

import pytest
import torch
import weft_aot_autograd
import weft_functionalize
from gradients_beside_eager import train
from torch import Tensor, nn
from weft_aot_autograd.partition.backward_segments import MAX_SEGMENTS


class Layer(nn.Module):
    """What it saves is read by several segments; the bias's gradient is read again for the scale's."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(6, 6), nn.LayerNorm(6)
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.scale * torch.tanh(self.norm(self.linear(x)))


def network() -> nn.Module:
    return nn.Sequential(*(Layer() for _ in range(4))).double()


def staged(model: nn.Module, x: Tensor, nbytes: int = 200) -> Any:
    compiled, partitioned = train(model, [x], segment_bytes=nbytes)
    assert len(weft_aot_autograd.segment_backward(partitioned, nbytes)) > 1
    return lambda *values: compiled(*values)[0]


def inputs() -> Tensor:
    return torch.randn(5, 6, dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize("nbytes", [1, 200, 600])
def test_gradients(nbytes: int) -> None:
    plain, x = network(), inputs()
    model, y = copy.deepcopy(plain), x.detach().clone().requires_grad_()
    compiled = staged(model, y, nbytes)
    for called, value in ((plain, x), (compiled, y)):
        for _ in range(2):
            called(called(value)).pow(2).sum().backward()
    torch.testing.assert_close(y.grad, x.grad)
    for want, got in zip(plain.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(got.grad, want.grad)


def test_gradients_are_used_stage_by_stage() -> None:
    """The last layers' gradients are given away, and written to, before the first layers' are computed."""
    plain, x = network(), inputs()
    model = copy.deepcopy(plain)
    compiled = staged(model, x)
    order: list[int] = []
    ran: list[int] = []
    for owner, called in ((plain, plain), (model, compiled)):
        for number, layer in enumerate(owner):

            def used(parameter: Tensor, number: int = number) -> None:
                order.append(number)
                assert parameter.grad is not None
                parameter.grad.mul_(0.5)

            layer.linear.weight.register_post_accumulate_grad_hook(used)
        order.clear()
        called(x).pow(2).sum().backward()
        assert order == [3, 2, 1, 0]
        ran.append(len(order))
    assert ran == [4, 4]
    for want, got in zip(plain.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(got.grad, want.grad)


def test_a_stage_runs_after_the_hooks_of_the_one_before() -> None:
    model, x = network(), inputs()
    functional = weft_functionalize.functionalize(torch.fx.symbolic_trace(model), [x])
    joint = weft_aot_autograd.trace_joint(functional)
    assert joint is not None
    parts = weft_aot_autograd.partition(joint)
    events: list[Any] = []

    def noted(number: int, segment: Any) -> Any:
        def run(*values: Any) -> Any:
            events.append(number)
            return segment.graph_module(*values)

        return segment, run

    segments = [noted(k, s) for k, s in enumerate(weft_aot_autograd.segment_backward(parts, 300))]
    program = weft_aot_autograd.TrainingProgram(
        functional, parts, weft_functionalize.bind(functional, parts.forward), segments
    )
    model[3].linear.weight.register_post_accumulate_grad_hook(lambda _: events.append("last layer"))
    program(x)[0].sum().backward()
    assert events.index("last layer") < events.index(len(segments) - 1)


def _is_argument(tensor: Tensor) -> bool:
    return tensor.is_leaf and tensor.requires_grad


class Donated:
    """A segment's program that may write to what it is given, and what was given to all of them."""

    def __init__(self, segment: Any, given: list[dict[int, tuple[Any, int]]]) -> None:
        self.segment, self.given = segment, given

    def __call__(self, *values: Tensor) -> Any:
        raise AssertionError("what it is given is not donated")

    def call_donated(self, values: list[Any]) -> Any:
        for earlier in self.given:
            tensors = {k: tensor() for k, (tensor, _) in earlier.items()}
            alive = {k for k, t in tensors.items() if t is not None and not _is_argument(t)}
            tensors.clear()
            assert alive <= {k for s in self.segments for k in s.inputs}
        results = self.segment.graph_module(*values)
        references = [(weakref.ref(value), value.data_ptr()) for value in values]
        self.given.append(dict(zip(self.segment.inputs, references, strict=True)))
        values.clear()
        return results

    segments: Sequence[Any] = ()


def test_each_segment_may_write_to_what_it_reads_last() -> None:
    model, x = network(), inputs()
    functional = weft_functionalize.functionalize(torch.fx.symbolic_trace(model), [x])
    joint = weft_aot_autograd.trace_joint(functional)
    assert joint is not None
    parts = weft_aot_autograd.partition(joint)
    segments = weft_aot_autograd.segment_backward(parts, 300)
    given: list[dict[int, tuple[Any, int]]] = []
    programs = [Donated(segment, given) for segment in segments]
    for number, program in enumerate(programs):
        program.segments = segments[number:]
    program = weft_aot_autograd.TrainingProgram(
        functional,
        parts,
        weft_functionalize.bind(functional, parts.forward),
        list(zip(segments, programs, strict=True)),
    )
    plain = copy.deepcopy(model)
    for owner, called in ((plain, plain), (model, lambda value: program(value)[0])):
        called(x).pow(2).sum().backward()
        assert len(given) == (owner is model) * len(segments)
    for want, got in zip(plain.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(got.grad, want.grad)
    shared = [(a, b) for a, b in itertools.combinations(given, 2) if a.keys() & b.keys()]
    assert shared
    for first, second in shared:
        for position in first.keys() & second.keys():  # memory that two tensors hold is left alone
            assert first[position][1] == second[position][1]
            assert first[position][0] is not second[position][0] or _is_argument(
                first[position][0]()
            )


def test_many_small_gradients_come_in_few_segments() -> None:
    model, x = nn.Sequential(*(Layer() for _ in range(8))).double(), inputs()
    _, partitioned = train(model, [x])
    segments = weft_aot_autograd.segment_backward(partitioned, 1)
    assert len(partitioned.gradients) > 2 * MAX_SEGMENTS
    assert 1 < len(segments) <= MAX_SEGMENTS


def test_some_gradients_only_and_backward_twice() -> None:
    plain, x = network(), inputs()
    model = copy.deepcopy(plain)
    compiled = staged(model, x)
    results = []
    for owner, called in ((plain, plain), (model, compiled)):
        loss = called(x).pow(2).sum()
        wanted = [owner[3].linear.weight, owner[1].linear.bias]
        first = torch.autograd.grad(loss, wanted, retain_graph=True)
        results.append((*first, *torch.autograd.grad(loss, [*owner.parameters(), x])))
        with pytest.raises(RuntimeError, match="backward through the graph a second time"):
            loss.backward()
    torch.testing.assert_close(results[1], results[0])


def test_gradients_of_gradients() -> None:
    plain, x = network(), inputs()
    model = copy.deepcopy(plain)
    compiled = staged(model, x)
    results = []
    for owner, called in ((plain, plain), (model, compiled)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            parameters = list(owner.parameters())
            first = torch.autograd.grad(called(x).pow(2).sum(), parameters, create_graph=True)
            penalty = sum((g**2).sum() for g in first)
            results.append(torch.autograd.grad(penalty, parameters, allow_unused=True))
    torch.testing.assert_close(results[1], results[0])


class TwoHeads(nn.Module):
    """Two results of one trunk."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.first, self.second = (nn.Linear(6, 6) for _ in range(3))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.trunk(x)
        return self.first(hidden), self.second(hidden)


@pytest.mark.parametrize("nbytes", [None, 1])
@pytest.mark.parametrize("used", [0, 1])
def test_a_head_without_a_gradient_leaves_its_parameters_none(
    used: int, nbytes: int | None
) -> None:
    plain = TwoHeads().double()
    model = copy.deepcopy(plain)
    compiled, _ = train(model, [inputs()], segment_bytes=nbytes)
    x = inputs().detach()
    for called in (plain, compiled):
        called(x)[used].sum().backward()
    for want, got in zip(plain.parameters(), model.parameters(), strict=True):
        assert (got.grad is None) == (want.grad is None)
        if want.grad is not None:
            torch.testing.assert_close(got.grad, want.grad)
