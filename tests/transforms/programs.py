"""Programs that use ``torch.vmap`` and ``torch.func``: each takes ``x`` [4, 3] and ``y`` [3, 5]."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex
from torch.func import (
    functional_call,
    grad,
    grad_and_value,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    linearize,
    stack_module_state,
    vjp,
    vmap,
)

PROGRAMS: dict[str, Callable[..., Any]] = {}


def program(function: Callable[..., Any]) -> Callable[..., Any]:
    PROGRAMS[function.__name__] = function
    return function


class Doubled(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:  # type: ignore[override]
        return x * 2

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None: ...

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return gradient * 2


def energy(row: Tensor, y: Tensor) -> Tensor:
    return (row @ y).tanh().square().sum()


# vmap


@program
def rows(x: Tensor, y: Tensor) -> Any:
    return torch.vmap(lambda a: (a @ y).relu().sum())(x)


@program
def other_dimensions(x: Tensor, y: Tensor) -> Any:
    return vmap(lambda a, b: a * b.sum(), in_dims=(-1, None), out_dims=1)(x, y)


@program
def pairs_of_rows(x: Tensor, y: Tensor) -> Any:
    return vmap(lambda a: vmap(lambda b: (a * b).sum(), in_dims=1)(y))(x)


@program
def chunks(x: Tensor, y: Tensor) -> Any:
    return vmap(lambda a: (a @ y).sin(), chunk_size=3)(x)


@program
def trees(x: Tensor, y: Tensor) -> Any:
    def f(given: Any, scale: Any = 1.0) -> Any:
        return {"product": given["a"] @ given["b"][0] * scale, "sums": (given["a"].sum(),)}

    return vmap(f, in_dims=({"a": 0, "b": [None]},))({"a": x, "b": [y]}, scale=2.0)


@program
def several_out_dims(x: Tensor, y: Tensor) -> Any:
    return vmap(lambda a: (a @ y, a.outer(a)), out_dims=(0, 2))(x)


@program
def an_unbatched_result(x: Tensor, y: Tensor) -> Any:
    return vmap(lambda a: (a + 1, y.sum()), out_dims=(0, 0))(x)


@program
def views_and_shapes(x: Tensor, y: Tensor) -> Any:
    def f(a: Tensor) -> Any:
        assert a.shape == (3,) and a.dim() == 1 and len(a) == 3
        left, right = a.unsqueeze(0).expand(2, -1).unbind()
        return torch.cat([left, right.flip(0)]).view(2, a.shape[0]).t()[1:]

    return vmap(f)(x)


@program
def written_inside(x: Tensor, y: Tensor) -> Any:
    def f(a: Tensor) -> Any:
        made = torch.zeros_like(a)
        made[1:] = a[:-1]
        made.mul_(2).add_(a)
        return made

    return vmap(f)(x)


@program
def branch_on_a_shape(x: Tensor, y: Tensor) -> Any:
    def f(a: Tensor) -> Any:
        for k in range(a.shape[0]):
            a = a.roll(1) if k % 2 else a * k
        return a if a.numel() > 2 else a.sum()

    return vmap(f)(x)


@program
def chosen_by_where(x: Tensor, y: Tensor) -> Any:
    return vmap(lambda a: torch.where(a.sum() > 0, a.exp(), a.cos()))(x)


@program
def a_counter_outside(x: Tensor, y: Tensor) -> Any:
    calls: list[int] = []

    def f(a: Tensor) -> Any:
        calls.append(a.shape[0])
        return a * len(calls)

    return vmap(f)(x), vmap(f)(x), calls


@program
def layers(x: Tensor, y: Tensor) -> Any:
    def f(a: Tensor) -> Any:
        normed = F.layer_norm(a, (3,))
        return F.softmax(F.linear(normed, y.t()), -1).log()

    return vmap(f)(x)


@program
def images(x: Tensor, y: Tensor) -> Any:
    image = (x @ y).reshape(-1, 1, 1, 5).expand(-1, 2, 6, -1)
    weight = y.reshape(-1)[:8].reshape(2, 2, 2, 1)
    return vmap(lambda i: F.max_pool2d(F.conv2d(i[None], weight, padding=1), 2)[0])(image)


@program
def indexed(x: Tensor, y: Tensor) -> Any:
    places = torch.tensor([2, 0, 1, 1])
    return vmap(lambda a, k: (a[k], a.index_select(0, k.view(1)), y[k]))(x, places)


@program
def partial_functions(x: Tensor, y: Tensor) -> Any:
    scaled = functools.partial(torch.add, alpha=2)
    return vmap(scaled)(x, x), jacrev(functools.partial(torch.mul, x[0]))(x[1])


@program
def functions_of_torch(x: Tensor, y: Tensor) -> Any:
    matrix = x.t() @ x + torch.eye(3, dtype=x.dtype)
    return vmap(torch.dot)(x, x), vmap(Tensor.sum)(x), jacrev(torch.linalg.inv)(matrix)


@program
def indexed_by_positions(x: Tensor, y: Tensor) -> Any:
    """As masks of transformers do, whose subscripts by a tensor are those of ``index``."""
    known = x > 0
    with TransformGetItemToIndex():
        inner = vmap(lambda row, k: known[row, k] & (k <= row), in_dims=(None, 0))
        return vmap(inner, in_dims=(0, None))(torch.arange(4), torch.arange(3))


@program
def own_function(x: Tensor, y: Tensor) -> Any:
    return vmap(Doubled.apply)(x.detach())


@program
def attention_mask(x: Tensor, y: Tensor) -> Any:
    """As transformers' masks are built: four functions of one position each, one inside the other."""

    def causal(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (key <= query) & (padding[batch, key])

    padding = x[:2] > -10
    mask: Any = causal
    for dims in (
        (None, None, None, 0), (None, None, 0, None), (None, 0, None, None), (0, None, None, None)
    ):  # fmt: skip
        mask = torch.vmap(mask, in_dims=dims, out_dims=0)
    positions = torch.arange(3)
    return mask(torch.arange(2), torch.arange(1), positions, positions)


# Reverse-mode gradients


@program
def gradient(x: Tensor, y: Tensor) -> Any:
    return grad(energy)(x, y)


@program
def gradient_and_aux(x: Tensor, y: Tensor) -> Any:
    return grad(lambda a: (energy(a, y), {"twice": a * 2}), has_aux=True)(x)


@program
def gradients_and_value(x: Tensor, y: Tensor) -> Any:
    return grad_and_value(energy, argnums=(0, 1))(x, y)


@program
def gradient_of_a_gradient(x: Tensor, y: Tensor) -> Any:
    return grad(lambda a: grad(energy)(a, y).pow(2).sum())(x)


@program
def gradient_without_use(x: Tensor, y: Tensor) -> Any:
    return grad(lambda a, b: a.sum() * 1.0, argnums=(0, 1))(x, y)


@program
def detached_inside(x: Tensor, y: Tensor) -> Any:
    def f(a: Tensor) -> Tensor:
        with torch.no_grad():
            scale = a.square().sum()
        return (a.detach() * a * scale).sum()

    return grad(f)(x)


@program
def gradient_of_a_tree(x: Tensor, y: Tensor) -> Any:
    return grad(lambda p: energy(p["x"], p["y"]))({"x": x, "y": y})


@program
def written_for_a_gradient(x: Tensor, y: Tensor) -> Any:
    def f(a: Tensor) -> Tensor:
        made = torch.zeros(a.shape, dtype=a.dtype)
        made[1:] += a[1:] * 3
        return energy(made.sin_(), y)

    return grad(f)(x)


@program
def gradient_for_each_row(x: Tensor, y: Tensor) -> Any:
    return vmap(grad(energy), in_dims=(0, None))(x, y)


@program
def pull_back(x: Tensor, y: Tensor) -> Any:
    out, pull = vjp(lambda a, b: (a @ b).tanh(), x, y)
    return out, pull(torch.ones_like(out)), pull(out)


@program
def pull_back_with_aux(x: Tensor, y: Tensor) -> Any:
    out, pull, aux = vjp(lambda a: ({"o": (a @ y).tanh()}, a * 2), x, has_aux=True)
    return out, pull({"o": out["o"] * 2}), aux


@program
def jacobian(x: Tensor, y: Tensor) -> Any:
    return jacrev(lambda a: (a @ y).tanh())(x[0])


@program
def jacobians_of_several(x: Tensor, y: Tensor) -> Any:
    return jacrev(lambda a, b: ((a @ b).tanh(), a.sum()), argnums=(0, 1))(x[0], y)


@program
def jacobian_in_chunks(x: Tensor, y: Tensor) -> Any:
    return jacrev(lambda a: (a @ y).tanh(), chunk_size=2)(x[0])


@program
def jacobian_row_by_row(x: Tensor, y: Tensor) -> Any:
    return jacrev(lambda a: (a @ y).tanh(), chunk_size=1)(x[0])


@program
def jacobian_with_aux(x: Tensor, y: Tensor) -> Any:
    return jacrev(lambda a: ((a @ y).tanh(), a + 1), has_aux=True)(x[0])


# Forward-mode gradients


@program
def push_forward(x: Tensor, y: Tensor) -> Any:
    return jvp(lambda a, b: (a @ b).tanh(), (x, y), (x * 2, y.cos()))


@program
def push_forward_with_aux(x: Tensor, y: Tensor) -> Any:
    return jvp(lambda a: ((a @ y).tanh(), a * 3), (x,), (x,), has_aux=True)


@program
def linearized(x: Tensor, y: Tensor) -> Any:
    y = y.detach()
    out, along = linearize(lambda a: (a @ y).tanh(), x.detach())
    return out, along(x * 2), along(x.cos())


@program
def forward_jacobian(x: Tensor, y: Tensor) -> Any:
    return jacfwd(lambda a: (a @ y).tanh())(x[0])


@program
def forward_jacobians_of_rows(x: Tensor, y: Tensor) -> Any:
    return vmap(jacfwd(lambda a: (a @ y).tanh()))(x)


@program
def second_derivatives(x: Tensor, y: Tensor) -> Any:
    return hessian(energy)(x[0], y)


@program
def second_derivatives_of_rows(x: Tensor, y: Tensor) -> Any:
    return vmap(hessian(energy), in_dims=(0, None))(x, y)


@program
def second_derivatives_backwards(x: Tensor, y: Tensor) -> Any:
    return jacrev(jacrev(energy))(x[0], y)


@program
def product_with_second_derivatives(x: Tensor, y: Tensor) -> Any:
    return jvp(grad(lambda a: energy(a, y)), (x,), (x.cos(),))


@program
def product_backwards(x: Tensor, y: Tensor) -> Any:
    _, pull = vjp(grad(lambda a: energy(a, y)), x)
    return pull(x.cos())[0]


@program
def divergence(x: Tensor, y: Tensor) -> Any:
    field = jacfwd(lambda a: (a @ y @ y.t()).tanh())
    return vmap(lambda a: field(a).diagonal().sum())(x)


# Modules

NET = torch.nn.Sequential(
    torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2)
).double()  # fmt: skip
NETS = [copy.deepcopy(NET).requires_grad_(True) for _ in range(3)]
for _number, _net in enumerate(NETS):
    for _parameter in _net.parameters():
        _parameter.data.mul_(_number + 1)
STACKED, STACKED_BUFFERS = stack_module_state(NETS)  # type: ignore[arg-type]
TEMPLATE = copy.deepcopy(NET).to("meta")


@program
def other_parameters(x: Tensor, y: Tensor) -> Any:
    parameters = {name: value * 2 for name, value in NET.named_parameters()}
    return functional_call(NET, parameters, (x,))


@program
def ensemble(x: Tensor, y: Tensor) -> Any:
    def run(parameters: Any, buffers: Any, batch: Tensor) -> Any:
        return functional_call(TEMPLATE, (parameters, buffers), (batch,))

    return vmap(run, in_dims=(0, 0, None))(STACKED, STACKED_BUFFERS, x)


@program
def stacked_inside(x: Tensor, y: Tensor) -> Any:
    stacked = {
        name: torch.stack([dict(net.named_parameters())[name] for net in NETS])
        for name, _ in NET.named_parameters()
    }
    return vmap(lambda p: functional_call(TEMPLATE, p, (x,)))(stacked)


def loss(parameters: Any, row: Tensor) -> Tensor:
    return functional_call(NET, parameters, (row[None],)).square().sum()


@program
def gradients_of_samples(x: Tensor, y: Tensor) -> Any:
    parameters = {name: value.detach() for name, value in NET.named_parameters()}
    return vmap(grad(loss), in_dims=(None, 0))(parameters, x)


@program
def gradients_of_samples_of_parameters(x: Tensor, y: Tensor) -> Any:
    return vmap(grad(loss), in_dims=(None, 0))(dict(NET.named_parameters()), x)


@program
def fisher_diagonal(x: Tensor, y: Tensor) -> Any:
    def log_likelihood(parameters: Any, row: Tensor) -> Tensor:
        return functional_call(NET, parameters, (row[None],)).log_softmax(-1)[0, 0]

    scores = vmap(grad(log_likelihood), in_dims=(None, 0))(dict(NET.named_parameters()), x)
    return {name: score.square().mean(0) for name, score in scores.items()}


@program
def inner_step(x: Tensor, y: Tensor) -> Any:
    """A step of MAML: the loss after a step of gradient descent on each of several tasks."""
    parameters = dict(NET.named_parameters())

    def task(support: Tensor, query: Tensor) -> Tensor:
        gradients = grad(loss)(parameters, support)
        moved = {name: parameters[name] - 0.1 * gradients[name] for name in parameters}
        return loss(moved, query)

    return vmap(task)(x, x.flip(0)).mean()


@program
def tangent_kernel(x: Tensor, y: Tensor) -> Any:
    parameters = {name: value.detach() for name, value in NET.named_parameters()}

    def output(p: Any, row: Tensor) -> Tensor:
        return functional_call(NET, p, (row[None],))[0]

    first = vmap(jacrev(output), in_dims=(None, 0))(parameters, x).values()
    second = vmap(jacrev(output), in_dims=(None, 0))(parameters, x * 2).values()
    return sum(
        torch.einsum("naf,mbf->nmab", a.flatten(2), b.flatten(2))
        for a, b in zip(first, second, strict=True)
    )


@program
def score_of_a_density(x: Tensor, y: Tensor) -> Any:
    """Sliced score matching."""
    score = grad(lambda row: -energy(row, y))

    def objective(row: Tensor, direction: Tensor) -> Tensor:
        value, product = jvp(score, (row,), (direction,))
        return product @ direction + 0.5 * (value @ direction) ** 2

    return vmap(objective)(x, x.cos()).mean()
