"""Tensors that stand for others never reach a program: batched and dual gradients, transforms around a call.

Every use runs beside eager: on a function compiled in that call, and on one that is compiled already.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import weft
from torch.autograd import forward_ad, functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import _pytree as pytree

Function = Callable[[torch.Tensor], torch.Tensor]
SIZE = 3
WEIGHT = torch.linspace(-1, 1, SIZE * SIZE).view(SIZE, SIZE)


def squares(x: torch.Tensor) -> torch.Tensor:
    return x**2


def written(x: torch.Tensor) -> torch.Tensor:
    return (x * 2).add_(x.sin()).mul_(x)


def products(x: torch.Tensor) -> torch.Tensor:
    return torch.tanh(F.linear(x, WEIGHT)).outer(x).sigmoid().sum(0) * x


def convolved(x: torch.Tensor) -> torch.Tensor:
    return (
        F.conv1d(x.view(1, 1, SIZE), WEIGHT.view(SIZE, 1, SIZE), padding=1).amax(1).view(SIZE).exp()
    )


def attended(x: torch.Tensor) -> torch.Tensor:
    rows = x.view(1, 1, SIZE, 1) * WEIGHT
    return F.scaled_dot_product_attention(rows, rows.cos(), rows).sum((0, 1, 2))


FUNCTIONS = (squares, written, products, convolved, attended)


def grads_by_vmap(f: Function, x: torch.Tensor) -> Any:
    x.requires_grad_()
    y = f(x)
    return torch.vmap(lambda v: torch.autograd.grad(y, x, v, retain_graph=True)[0])(torch.eye(SIZE))


def batched_grads(f: Function, x: torch.Tensor) -> Any:
    x.requires_grad_()
    return torch.autograd.grad(f(x), x, torch.eye(SIZE), is_grads_batched=True)


def batched_grads_of_grads(f: Function, x: torch.Tensor) -> Any:
    x.requires_grad_()
    (first,) = torch.autograd.grad(f(x).sum(), x, create_graph=True)
    return torch.autograd.grad(first, x, torch.eye(SIZE), is_grads_batched=True)


def grads_of_batched_grads(f: Function, x: torch.Tensor) -> Any:
    x.requires_grad_()
    rows = torch.autograd.grad(f(x), x, torch.eye(SIZE), is_grads_batched=True, create_graph=True)[
        0
    ]
    return rows, torch.autograd.grad(rows.square().sum(), x)


def dual_argument(f: Function, x: torch.Tensor) -> Any:
    with forward_ad.dual_level():
        return tuple(forward_ad.unpack_dual(f(forward_ad.make_dual(x, x.cos()))))


def gradient_of_dual(f: Function, x: torch.Tensor) -> Any:
    x.requires_grad_()
    with forward_ad.dual_level():
        value, tangent = forward_ad.unpack_dual(f(forward_ad.make_dual(x, torch.ones(SIZE))))
        return value, tangent, torch.autograd.grad(tangent.sum(), x)


def dual_gradient(f: Function, x: torch.Tensor) -> Any:
    x.requires_grad_()
    y = f(x)
    with forward_ad.dual_level():
        given = forward_ad.make_dual(torch.ones(SIZE), torch.arange(3.0))
        return tuple(forward_ad.unpack_dual(torch.autograd.grad(y, x, given)[0]))


class Marked(torch.Tensor):
    pass


def gradient_of_a_subclass(f: Function, x: torch.Tensor) -> Any:
    x.requires_grad_()
    (gradient,) = torch.autograd.grad(f(x), x, torch.ones(SIZE).as_subclass(Marked))
    return gradient.as_subclass(torch.Tensor)


def batched_training(f: Function, x: torch.Tensor) -> Any:
    rows = torch.stack([x, x + 1]).requires_grad_()
    y = torch.vmap(f)(rows)
    y.sum().backward()
    return y, rows.grad


def checked(f: Function, x: torch.Tensor) -> Any:
    if f.__name__ in ("convolved", "products", "attended"):
        pytest.skip("weights of single precision")
    x = x.double().requires_grad_()
    kinds = {
        "check_batched_grad": True,
        "check_forward_ad": True,
        "check_batched_forward_grad": True,
    }
    return torch.autograd.gradcheck(f, (x,), **kinds)


func = torch.func
ones = torch.ones(SIZE)
USES: dict[str, Callable[[Function, torch.Tensor], Any]] = {
    "grads by vmap": grads_by_vmap,
    "batched grads": batched_grads,
    "batched grads of grads": batched_grads_of_grads,
    "grads of batched grads": grads_of_batched_grads,
    "dual argument": dual_argument,
    "gradient of dual": gradient_of_dual,
    "dual gradient": dual_gradient,
    "gradient of a subclass": gradient_of_a_subclass,
    "batched training": batched_training,
    "gradcheck": checked,
    "jacobian": lambda f, x: functional.jacobian(f, x, vectorize=True),
    "forward jacobian": lambda f, x: functional.jacobian(
        f, x, vectorize=True, strategy="forward-mode"
    ),
    "hessian": lambda f, x: functional.hessian(lambda z: f(z).sum(), x, vectorize=True),
    "forward hessian": lambda f, x: functional.hessian(
        lambda z: f(z).sum(), x, vectorize=True, outer_jacobian_strategy="forward-mode"
    ),
    "hvp": lambda f, x: functional.hvp(lambda z: f(z).sum(), x, ones),
    "func.jacrev": lambda f, x: func.jacrev(f)(x),
    "func.jacfwd": lambda f, x: func.jacfwd(f)(x),
    "func.hessian": lambda f, x: func.hessian(lambda z: f(z).sum())(x),
    "func.vjp": lambda f, x: func.vjp(f, x)[1](ones),
    "func.jvp": lambda f, x: func.jvp(f, (x,), (ones,)),
    "func.linearize": lambda f, x: func.linearize(f, x)[1](ones),
    "func.vmap": lambda f, x: torch.vmap(f)(torch.stack([x, x + 1])),
    "func.vmap of grad": lambda f, x: torch.vmap(func.grad(lambda z: f(z).sum()))(
        torch.stack([x, x + 1])
    ),
    "func.grad of vmap": lambda f, x: func.grad(lambda z: torch.vmap(f)(z).sum())(
        torch.stack([x, x + 1])
    ),
    "func.functionalize": lambda f, x: func.functionalize(f)(x),
    "vmap of what is captured": lambda f, x: torch.vmap(lambda row: f(x) * row)(torch.eye(SIZE)),
    "meta": lambda f, x: f(x.to("meta")).shape,
}


def copy_of(f: Function) -> Function:
    """``f`` with code of its own, which nothing has compiled yet."""
    assert isinstance(f, types.FunctionType)
    return types.FunctionType(f.__code__.replace(), f.__globals__, f.__name__)


def leaves_or_error(
    use: Callable[[Function, torch.Tensor], Any], f: Function, x: torch.Tensor
) -> list[Any] | type[Exception]:
    """What a use gives, or what it raises: attention has no formula for forward-mode gradients, say."""
    try:
        return pytree.tree_leaves(use(f, x))
    except (NotImplementedError, RuntimeError) as error:
        return type(error)


def assert_like_eager(
    use: Callable[[Function, torch.Tensor], Any], f: Function, compiled: Any
) -> None:
    x = torch.tensor([0.3, -0.7, 1.1])
    expected = leaves_or_error(use, f, x.clone())
    found = leaves_or_error(use, compiled, x.clone())
    if not isinstance(expected, list) and isinstance(found, list):
        # the formula that eager's kernel of attention lacks is that of its matmuls
        with sdpa_kernel(SDPBackend.MATH):
            expected = leaves_or_error(use, f, x.clone())
    if isinstance(expected, list):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    else:
        assert found is expected


@pytest.mark.filterwarnings(
    "ignore:weft. gradients of gradients", "ignore:There is a performance drop"
)
@pytest.mark.filterwarnings("ignore:.*torch.jit")
@pytest.mark.parametrize("use", USES.values(), ids=USES)
@pytest.mark.parametrize("f", FUNCTIONS, ids=lambda f: f.__name__)
def test_like_eager(f: Function, use: Callable[[Function, torch.Tensor], Any]) -> None:
    assert_like_eager(use, f, weft.compile(copy_of(f)))


@pytest.mark.filterwarnings(
    "ignore:weft. gradients of gradients", "ignore:There is a performance drop"
)
@pytest.mark.filterwarnings("ignore:.*torch.jit")
@pytest.mark.parametrize("f", FUNCTIONS, ids=lambda f: f.__name__)
def test_like_eager_where_code_is_there(f: Function) -> None:
    compiled = weft.compile(copy_of(f))
    compiled(torch.ones(SIZE))
    compiled(torch.ones(SIZE, requires_grad=True))
    for use in USES.values():
        if use is not checked:
            assert_like_eager(use, f, compiled)


def multiplied(x: torch.Tensor) -> torch.Tensor:
    return x.prod() * x.prod(0, keepdim=True) + x.outer(x).prod(1) * x.cumprod(0)


def parts_written(x: torch.Tensor) -> torch.Tensor:
    y = x.exp()
    y[-2:] *= x[1:]
    y[1:100] += x[:2].sin()
    y[2:1] = 0
    return y * y


@pytest.mark.parametrize("f", [multiplied, parts_written], ids=lambda f: f.__name__)
def test_formulas_of_our_own_take_batched_gradients(f: Function) -> None:
    """And those of torch's that take them of some arguments only."""
    for use in (grads_by_vmap, batched_grads, USES["jacobian"]):
        assert_like_eager(use, f, weft.compile(copy_of(f)))


# Batched gradients of graphs whose backward can't begin from the inputs again.


def batched_gradients(run: Callable[[torch.Tensor], torch.Tensor]) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(0)
    x = torch.linspace(-1, 1, 6).view(2, 3).requires_grad_()
    y = run(x)
    rows = torch.eye(y.numel()).view(-1, *y.shape)
    return torch.autograd.grad(y, x, rows, is_grads_batched=True)


def writes_to_argument(f: Callable[..., Any]) -> Callable[[torch.Tensor], torch.Tensor]:
    def run(x: torch.Tensor) -> torch.Tensor:
        z = x * 2
        f(z)
        return z

    return run


def changed_after(f: Callable[..., Any]) -> Callable[[torch.Tensor], torch.Tensor]:
    def run(x: torch.Tensor) -> torch.Tensor:
        z = x * 2
        y: torch.Tensor = f(z)
        z.mul_(5)  # eager's formula for the sum does not read it
        return y

    return run


@pytest.mark.parametrize(
    ("calls", "f"),
    [
        (writes_to_argument, lambda z: z.mul_(3).sin_()),
        (changed_after, lambda z: z + z.sum()),
        (changed_after, lambda z: z.t() - 1),
        (lambda f: f, lambda x: F.dropout(x, 0.5) * x),
        (lambda f: f, lambda x: (x * torch.rand_like(x)).t() @ x),
        (lambda f: f, lambda x: F.batch_norm(x, None, None, training=True).exp()),
        (lambda f: f, lambda x: x[x > 0]),
    ],
)
def test_batched_gradients_of_what_cannot_begin_again(calls: Any, f: Any) -> None:
    expected = batched_gradients(calls(f))
    torch.testing.assert_close(batched_gradients(calls(weft.compile(f))), expected)


def test_batched_gradients_of_a_loop_that_a_tensor_ends() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        while x.sum() < 50:
            x = x * 1.5 + 0.5
        return x

    torch.testing.assert_close(batched_gradients(weft.compile(f)), batched_gradients(f))


def test_a_level_of_dual_tensors_inside() -> None:
    def f(x: torch.Tensor) -> Any:
        y = x.sin()
        with forward_ad.dual_level():
            made = forward_ad.make_dual(y, x)
            return tuple(forward_ad.unpack_dual(made * made)), y + 1

    x = torch.randn(3)
    torch.testing.assert_close(weft.compile(f)(x), f(x))
    torch.testing.assert_close(weft.compile(f)(x + 1), f(x + 1))


def test_sparse_gradient() -> None:
    def f(weight: torch.Tensor) -> torch.Tensor:
        return weight * 2

    def gradient(run: Callable[..., Any]) -> torch.Tensor:
        weight = torch.ones(4, 2, requires_grad=True)
        F.embedding(torch.tensor([1, 3, 1]), run(weight), sparse=True).sum().backward()
        assert weight.grad is not None
        return weight.grad.to_dense() if weight.grad.is_sparse else weight.grad

    torch.testing.assert_close(gradient(weft.compile(f)), gradient(f))
