"""``torch.autograd.Function``, checkpoints, custom operators: in the graph."""

from __future__ import annotations

import pytest
import torch
from differential import check, run_graph
from torch.utils.checkpoint import checkpoint, checkpoint_sequential
from weft_bytecode_capture import CaptureOptions, capture, compile_frames

CALLS = [(torch.arange(6.0).reshape(2, 3) - 2,), (torch.ones(4, 3),)]


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        ctx.exponent = 2
        return x**ctx.exponent

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return ctx.exponent * x * gradient


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(x, factor=3):
        return x * factor

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.factor = inputs[1]

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.factor, None


class SumAndDifference(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.mark_non_differentiable(y)
        ctx.set_materialize_grads(False)
        return x + y, x - y, ctx.needs_input_grad, len(ctx.needs_input_grad)


class Passes(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        return x, y * 2


class ChangesInPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.add_(1)


class Fails(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        raise ValueError(ctx.missing if hasattr(ctx, "missing") else "inside")


def comes_back_as_a_view(x):
    first, second = Passes.apply(x, x + 1)
    return first is x, first, second


def comes_back_itself(x):
    y = x + 1
    return ChangesInPlace.apply(y) is y, y


def fails(x):
    try:
        return Fails.apply(x)
    except ValueError as error:
        return str(error), torch.is_grad_enabled(), x + 1


FUNCTIONS = {
    "context": lambda x: Square.apply(x) + 1,
    "separate context": lambda x: Scale.apply(x, 2) + 1,
    "default argument": lambda x: Scale.apply(x) + 1,
    "several results": lambda x: SumAndDifference.apply(x, x * 2),
    "input as output": comes_back_as_a_view,
    "changed in place": comes_back_itself,
    "exception": fails,
    "checkpoint": lambda x: checkpoint(torch.sin, x, use_reentrant=False) + 1,
    "checkpoint with keywords": lambda x: checkpoint(
        torch.add, x, x, use_reentrant=False, preserve_rng_state=False, alpha=2
    ),
    "checkpoint of parts": lambda x: checkpoint_sequential(
        [torch.sin, torch.cos], 2, x, use_reentrant=False
    ),
}
if torch.__version__ >= "2.13":
    FUNCTIONS["keyword argument"] = lambda x: Scale.apply(x, factor=4) + 1


@pytest.mark.parametrize("name", FUNCTIONS)
def test_one_graph(name):
    check(FUNCTIONS[name], CALLS)


@pytest.mark.parametrize("name", ["context", "separate context", "default argument"])
def test_gradients_wanted(name):
    x = torch.arange(3.0, requires_grad=True)
    check(FUNCTIONS[name], [(x,)])
    with torch.no_grad():
        check(FUNCTIONS[name], [(x,)])


@pytest.mark.parametrize("reentrant", [True, False])
def test_gradients_through_a_checkpoint(reentrant):
    weight = torch.full((3,), 2.0, requires_grad=True)

    def function(x):
        return checkpoint(lambda y: (y * weight).sin(), x, use_reentrant=reentrant) + 1

    compiled = compile_frames(function, run_graph, CaptureOptions(fullgraph=True))
    x = torch.arange(3.0, requires_grad=True)
    gradients = []
    for call in (function, compiled):
        call(x).sum().backward()
        gradients.append((x.grad, weight.grad))
        x.grad = weight.grad = None
    torch.testing.assert_close(gradients[0], gradients[1])


def test_reentrant_checkpoint_without_gradients_warns_as_eager():
    def function(x):
        return checkpoint(torch.sin, x, use_reentrant=True) + 1

    compiled = compile_frames(function, run_graph)
    for _ in range(2):
        with pytest.warns(UserWarning, match="None of the inputs have requires_grad=True"):
            assert torch.equal(compiled(torch.ones(3)), function(torch.ones(3)))


@torch.library.custom_op("weft_test::scaled", mutates_args=())
def scaled(x: torch.Tensor, factor: float) -> torch.Tensor:
    return x * factor


@scaled.register_fake
def _(x, factor):
    return torch.empty_like(x)


@torch.library.custom_op("weft_test::unknown", mutates_args=())
def unknown(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@torch.library.custom_op("weft_test::added_to", mutates_args={"x"})
def added_to(x: torch.Tensor, y: torch.Tensor) -> None:
    x.add_(y)


def changes_its_argument(x):
    added_to(x, x + 1)
    return x * 2


def test_custom_operators():
    check(lambda x: scaled(x, 2.0) + 1, CALLS)
    check(lambda x: torch.ops.weft_test.scaled(x, 2.0) + 1, CALLS)
    check(lambda x: torch.ops.weft_test.scaled.default(x, 2.0) + 1, CALLS)
    check(changes_its_argument, CALLS)
    check(lambda x: unknown(x) + 1, CALLS, fullgraph=False)
    (found,) = capture(lambda x: unknown(x) + 1)(torch.ones(3)).breaks
    assert found.kind == "operator that cannot be evaluated on fake tensors"
    assert "register_fake" in found.hints[0]
