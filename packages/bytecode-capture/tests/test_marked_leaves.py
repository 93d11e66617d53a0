"""``h.requires_grad = True`` of what the graph makes: in the graph where nobody can see what it changes."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from weft_bytecode_capture import capture

linear = nn.Linear(3, 3)
frozen = nn.Linear(3, 3).requires_grad_(False)


def by_attribute(x):
    h = x * 2
    h.requires_grad = True
    return linear(h).sum()


def by_method(x):
    h = x.exp().requires_grad_()
    assert h.requires_grad and h.is_leaf and h.grad_fn is None and h.grad is None
    return linear(h + 1), x.sum()


def fresh(x):
    scale = torch.ones(3, requires_grad=True)
    return linear(x * scale).relu()


def whole_numbers(x):
    h = (x * 2).requires_grad_()
    return linear(h), h.argmax(-1), (h > 0), h.detach() + 1


def without_gradients(x):
    h = (x * 2).requires_grad_()
    with torch.no_grad():
        y = h + 1
    return y, linear(h)


def twice(x):
    h = x + 1
    h.requires_grad_().requires_grad_(True)
    return linear(h)


@pytest.mark.parametrize(
    "function", [by_attribute, by_method, fresh, whole_numbers, without_gradients, twice]
)
def test_one_graph(function) -> None:
    check(function, breaks=0)


def returned(x):
    h = x * 2
    h.requires_grad = True
    return h, linear(h)


def of_frozen(x):
    h = x * 2
    h.requires_grad = True
    return frozen(h)


def asked(x):
    h = frozen((x * 2).requires_grad_())
    return linear(h) * (2 if h.requires_grad else 3)


def written(x):
    h = (x * 2).requires_grad_()
    into = torch.zeros_like(x)
    into.copy_(h)
    return into


def written_itself(x):
    h = (x * 2).requires_grad_()
    with torch.no_grad():
        h.add_(1)
    return linear(h)


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 3


def by_function(x):
    return Doubled.apply((x + 1).requires_grad_())


def checkpointed(x):
    h = (x * 2).requires_grad_()
    return checkpoint(frozen, h, use_reentrant=True)


def differentiated(x):
    h = (x * 2).requires_grad_()
    (gradient,) = torch.autograd.grad(frozen(h).square().sum(), h)
    return gradient, linear(h)


def taken_back(x):
    h = x * 2
    h.requires_grad = True
    h.requires_grad = not h.requires_grad
    return h * (0.5 if h.requires_grad else 0.25)


def taken_back_by_method(x):
    h = x.detach() * 2
    h.requires_grad_().requires_grad_(requires_grad=False)
    return h * (0.5 if h.requires_grad else 0.25)


def of_the_caller(x):
    x.requires_grad_()
    return x * 2


@pytest.mark.parametrize(
    "function",
    [
        returned, of_frozen, asked, written, written_itself, by_function, checkpointed, differentiated,
        of_the_caller, taken_back, taken_back_by_method,
    ],
)  # fmt: skip
def test_what_shows_breaks(function) -> None:
    check(function)


def check(function, breaks=None) -> None:
    captured = capture(function)
    for size in (2, 4, 5):
        x = torch.randn(size, 3)
        wanted = outcome(function, x.clone())
        result = []

        def run(x, result=result):
            result.append(captured(x))
            return result[0].result

        found = outcome(run, x.clone())
        assert len(found) == len(wanted)
        for left, right in zip(found, wanted, strict=True):
            assert type(left) is type(right)
            if isinstance(left, torch.Tensor):
                torch.testing.assert_close(left, right)
                assert left.requires_grad == right.requires_grad and left.is_leaf == right.is_leaf
        assert breaks is None or len(result[0].breaks) == breaks, result[0].breaks


def outcome(function, x):
    """Results, gradients of parameters and of the input, and whether it requires some."""
    linear.zero_grad(set_to_none=True)
    results = function(x)
    results = results if isinstance(results, tuple) else (results,)
    roots = [r.sum() for r in results if r.requires_grad]
    if roots:
        sum(roots).backward()
    return *results, linear.weight.grad, linear.bias.grad, x.requires_grad, x.grad
