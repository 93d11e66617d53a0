"""Programs with ``torch.autograd.Function`` classes of their own, of the kinds that people write."""

from __future__ import annotations

import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable

WEIGHT = torch.nn.Parameter(torch.linspace(-1, 1, 9).reshape(3, 3))
BIAS = torch.nn.Parameter(torch.linspace(-1, 1, 3))
CALLS: list[str] = []


class Square(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        ctx.exponent = 2
        return x**ctx.exponent

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return ctx.exponent * x * gradient


class Exponential(Function):
    @staticmethod
    def forward(ctx, x):
        result = x.exp()
        ctx.save_for_backward(result)
        return result

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.saved_tensors[0]


class Rectified(Function):
    """Its backward writes in place, as in torch's own tutorial."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clamp(min=0)

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        result = gradient.clone()
        result[x < 0] = 0
        return result


class Reversed(Function):
    @staticmethod
    def forward(ctx, x, strength):
        ctx.strength = strength
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient.neg() * ctx.strength, None


class Tripled(Function):
    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 3


class Linear(Function):
    @staticmethod
    def forward(ctx, x, weight, bias=None):
        ctx.save_for_backward(x, weight, bias)
        result = x.mm(weight.t())
        if bias is not None:
            result += bias.unsqueeze(0).expand_as(result)
        return result

    @staticmethod
    def backward(ctx, gradient):
        x, weight, bias = ctx.saved_tensors
        of_x = of_weight = of_bias = None
        if ctx.needs_input_grad[0]:
            of_x = gradient.mm(weight)
        if ctx.needs_input_grad[1]:
            of_weight = gradient.t().mm(x)
        if bias is not None and ctx.needs_input_grad[2]:
            of_bias = gradient.sum(0)
        return of_x, of_weight, of_bias


class StraightThrough(Function):
    @staticmethod
    def forward(ctx, x):
        return (x > 0).float()

    @staticmethod
    def backward(ctx, gradient):
        return torch.nn.functional.hardtanh(gradient)


class LargerAndProduct(Function):
    """Several results, one without a gradient; a mask kept as an attribute."""

    @staticmethod
    def forward(ctx, x, y):
        mask = x > y
        ctx.mark_non_differentiable(mask)
        ctx.mask = mask
        ctx.save_for_backward(x, y)
        return torch.where(mask, x, y), mask, x * y

    @staticmethod
    def backward(ctx, larger, mask, product):
        x, y = ctx.saved_tensors
        return larger * ctx.mask + product * y, larger * ~ctx.mask + product * x


class OneOfTwo(Function):
    """Only one of its two floating-point results is differentiable; its gradients stay None."""

    @staticmethod
    def forward(ctx, x):
        indices = x.argmax(-1).to(x.dtype)
        ctx.mark_non_differentiable(indices)
        ctx.set_materialize_grads(False)
        ctx.size = x.shape[-1]
        return x * 2, indices

    @staticmethod
    def backward(ctx, gradient, of_indices):
        assert of_indices is None
        return gradient * ctx.size


class Sine(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        return gradient * ctx.saved_tensors[0].cos()


class Scaled(Function):
    @staticmethod
    def forward(x, factor=3):
        return x * factor

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.factor = inputs[1]

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.factor, None


class Clipped(Function):
    """A class method would not do for torch; a helper of the class does."""

    @staticmethod
    def bound(gradient, limit):
        norm = gradient.norm()
        return torch.where(norm > limit, gradient * (limit / norm), gradient)

    @staticmethod
    def forward(ctx, x, limit: float):
        ctx.limit = limit
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return Clipped.bound(gradient, ctx.limit), None


class Noisy(Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient + torch.rand_like(gradient) * 0


class AddedInPlace(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.add_(1)

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 5


class Counted(Function):
    @staticmethod
    def forward(ctx, x):
        CALLS.append("forward")
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        CALLS.append("backward")
        return gradient * 2


class BothMayBeNone(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        return x * 2, x * 3

    @staticmethod
    def backward(ctx, first, second):
        return sum(g * f for g, f in ((first, 7), (second, 11)) if g is not None)


class Penalised(Function):
    """Differentiates once more in its backward."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            again = x.detach().requires_grad_()
            y = again.sin()
        return torch.autograd.grad(y, again, gradient)[0]


class TooFew(Function):
    @staticmethod
    def forward(ctx, x, y):
        return x * y

    @staticmethod
    def backward(ctx, gradient):
        return gradient


def larger_and_product(x):
    larger, mask, product = LargerAndProduct.apply(x, x.flip(0) * WEIGHT.sum())
    return larger * 2, mask, product.sum()


def written_behind(x):
    y = Square.apply(x)
    y.add_(1)
    return y * y


def identity_of_results(x):
    kept = []
    y = Square.apply(x)
    kept.append(y)
    return y.sum(), kept[0] is y, y.requires_grad, y.is_leaf


def through_a_list(x):
    return sum(Square.apply(row) for row in x.unbind(0))


def with_numbers_and_none(x):
    return Linear.apply(x, WEIGHT, None) + Scaled.apply(x, 0.5)


def returned_twice(x):
    y = Reversed.apply(x * 2, 0.5)
    return y.relu() + x


ONE_GRAPH = {
    "saved input": lambda x: Square.apply(x) * 2,
    "saved result": lambda x: Exponential.apply(x).sum(-1),
    "write in backward": lambda x: (Rectified.apply(x * WEIGHT.sum()) ** 2).sum(),
    "gradient reversal": returned_twice,
    "identity": lambda x: Tripled.apply(x * x).sum() + x,
    "linear layer": lambda x: (Linear.apply(x, WEIGHT, BIAS), Linear.apply(x, WEIGHT)),
    "straight through": lambda x: StraightThrough.apply(x) * x,
    "several results": larger_and_product,
    "result without gradient": lambda x: OneOfTwo.apply(x * 2),
    "once differentiable": lambda x: Sine.apply(x).sum(),
    "separate context": lambda x: (Scaled.apply(x), Scaled.apply(x, 4)),
    "helper": lambda x: Clipped.apply(x * WEIGHT.sum(), 0.1).sum(),
    "write behind": written_behind,
    "nested": lambda x: Square.apply(Exponential.apply(Square.apply(x))).mean(),
    "identities": identity_of_results,
    "in a loop": through_a_list,
    "numbers and None": with_numbers_and_none,
}


def write_to_a_view(x):
    h = x * 2
    y = Reversed.apply(h, 0.5) * 3
    with torch.no_grad():
        h.add_(1)
    return y


class CubeGradient(Function):
    """The gradient of another function, with a gradient that autograd would not find."""

    @staticmethod
    def forward(ctx, gradient, x):
        ctx.save_for_backward(gradient, x)
        return gradient * 3 * x * x

    @staticmethod
    def backward(ctx, second):
        gradient, x = ctx.saved_tensors
        return second * 3 * x * x, second * gradient * 60 * x


class Cube(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, gradient):
        return CubeGradient.apply(gradient, *ctx.saved_tensors)


BREAKS = {
    "a function in backward": lambda x: Cube.apply(x).sum(),
    "view returned": lambda x: Reversed.apply(x, 2.0),
    "random numbers in backward": lambda x: Noisy.apply(x).sum(),
    "changed in place": lambda x: AddedInPlace.apply(x * 2).sum(),
    "effect in backward": lambda x: Counted.apply(x).sum(),
    "gradients that may be None": lambda x: BothMayBeNone.apply(x)[1].sum(),
    "gradients in backward": lambda x: Penalised.apply(x).sum(),
    "too few gradients": lambda x: TooFew.apply(x, 2.0).sum(),
}

# Written to through two graphs' inputs that share memory, which later stages refuse.
CAPTURED_ONLY = {"write to what a result views": write_to_a_view}
