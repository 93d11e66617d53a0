"""``torch.autograd.grad`` inside a compiled function: one graph, with eager's results and errors."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
import torch.nn.functional as F
import weft
from hypothesis import given, settings
from torch import Tensor, nn
from torch.autograd import grad

from tests.same_values import assert_same
from tests.staged_backend import by_operators

torch.manual_seed(0)
NET = nn.Sequential(
    nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 5), nn.SiLU(), nn.Linear(5, 1)
).double()
PARAMETERS = list(NET.parameters())

Program = Callable[[Tensor], Any]


def penalty(x: Tensor) -> Any:
    """Of a WGAN's critic, between two batches."""
    mixed = (0.3 * x + 0.7 * x.flip(0)).detach().requires_grad_(True)
    scores = NET(mixed)
    (slope,) = grad(
        outputs=scores,
        inputs=mixed,
        grad_outputs=torch.ones_like(scores),
        create_graph=True,
        retain_graph=True,
    )
    return ((slope.norm(2, dim=1) - 1) ** 2).mean()


def penalty_at_an_argument(x: Tensor) -> Any:
    (slope,) = grad(NET(x * PARAMETERS[0].mean()).sum(), [PARAMETERS[0]], create_graph=True)
    return (slope.norm() - 1).square() * x.sum()


def differential_equation(x: Tensor) -> Any:
    t, y = (x[:, k : k + 1].clone().detach().requires_grad_() for k in range(2))
    u = NET(torch.cat((t, y, y * t), 1))
    u_t, u_y = grad(u, [t, y], torch.ones_like(u), create_graph=True)
    (u_yy,) = grad(u_y, y, torch.ones_like(u_y), create_graph=True)
    return (u_t + u * u_y - 0.01 * u_yy).square().mean()


def inner_steps(x: Tensor, *, create_graph: bool) -> Any:
    current = dict(NET.named_parameters())
    for _ in range(3):
        loss = torch.func.functional_call(NET, current, (x,)).square().mean()
        slopes = grad(loss, list(current.values()), create_graph=create_graph)
        current = {k: v - 0.1 * s for (k, v), s in zip(current.items(), slopes, strict=True)}
    return torch.func.functional_call(NET, current, (x,)).square().mean()


def meta_learning(x: Tensor) -> Any:
    return inner_steps(x, create_graph=True)


def meta_learning_of_first_order(x: Tensor) -> Any:
    return inner_steps(x, create_graph=False)


def hessian_vector_product(x: Tensor) -> Any:
    slopes = grad(NET(x).square().mean(), PARAMETERS, create_graph=True)
    along = sum((slope * slope.detach().sin()).sum() for slope in slopes)
    return grad(along, PARAMETERS, allow_unused=True)  # type: ignore[arg-type]


def forces(x: Tensor, *, training: bool) -> Any:
    """The energy of a molecule too, whose history is gone unless it is trained."""
    positions = x.detach().clone().requires_grad_()
    apart = (positions[:, None] - positions[None]).square().sum(-1) + 0.1
    energy = NET(positions).sum() + apart.rsqrt().sum()
    return energy, -grad(energy, positions, create_graph=training)[0]


def forces_in_training(x: Tensor) -> Any:
    return forces(x, training=True)


def forces_in_evaluation(x: Tensor) -> Any:
    return forces(x, training=False)


def score_matching(x: Tensor) -> Any:
    noisy = (x + 0.1 * x.sin()).detach().requires_grad_()
    (score,) = grad(-NET(noisy).sum(), noisy, create_graph=True)
    return (score * 0.01 + x).square().sum(-1).mean()


def of_intermediates(x: Tensor) -> Any:
    h = NET[0](x)
    z = h.tanh()
    loss = (z**3).sum()
    return (*grad(loss, [h, z], retain_graph=True), loss, *grad(loss, (z, h), create_graph=True))


def of_views_that_are_written(x: Tensor) -> Any:
    h = NET[0](x) * 1
    h.mul_(2)
    h[:, 0] = x.sum()
    (slope,) = grad(h.sin().sum(), h, create_graph=True)
    return slope * h


def of_some_parameters(x: Tensor) -> Any:
    return grad(NET[0](x).sum(), NET.parameters(), allow_unused=True, create_graph=True)


def with_zeros_for_others(x: Tensor) -> Any:
    return grad(NET[0](x).sum(), PARAMETERS, materialize_grads=True)


def weighted(x: Tensor) -> Any:
    y, weight = NET[0](x), NET[2](x.new_ones(len(x), 5))
    return grad([y.tanh(), y.exp()], PARAMETERS[:2], (weight, weight * 2), create_graph=True)


def of_the_result_itself(x: Tensor) -> Any:
    y = NET(x)
    weight = y.detach() * 2
    return *grad(y, y, weight), weight


def third_derivative(x: Tensor) -> Any:
    x = x.detach().clone().requires_grad_()
    u = x.sin() * PARAMETERS[0].sum()
    for _ in range(3):
        (u,) = grad(u.sum(), x, create_graph=True)
    return u


def without_gradients_around(x: Tensor) -> Any:
    loss = NET(x).sum()
    with torch.no_grad():
        slopes = grad(loss, PARAMETERS, create_graph=True)
        total = sum(slope.sum() for slope in slopes)
    return slopes[0], total


def with_gradients_inside(x: Tensor) -> Any:
    with torch.no_grad():
        y = x.sin()
        with torch.enable_grad():
            y = y.requires_grad_()
            slope = grad(NET(y).square().sum(), y)[0]
        return y.detach() - 0.1 * slope


def layers_of_other_kinds(x: Tensor) -> Any:
    weight = torch.ones(2, 1, 3, dtype=torch.float64) * PARAMETERS[1].sum()
    y = F.conv1d(x[:, None], weight, padding=1)
    y = F.avg_pool1d(F.softplus(F.layer_norm(y, [3])), 2)
    return grad(y.square().sum(), weight, create_graph=True)[0].square().sum()


class Cubed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, tangent: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return tangent * 3.5 * x**2  # not what torch would find


def through_a_function_of_its_own(x: Tensor) -> Any:
    y = Cubed.apply(NET[0](x))
    return grad(y.sin().sum(), PARAMETERS[:2])


PROGRAMS: tuple[Program, ...] = (
    penalty, penalty_at_an_argument, differential_equation, meta_learning, meta_learning_of_first_order,
    hessian_vector_product, forces_in_training, forces_in_evaluation, score_matching, of_intermediates,
    of_views_that_are_written, of_some_parameters, with_zeros_for_others, weighted, of_the_result_itself,
    third_derivative, without_gradients_around, with_gradients_inside, layers_of_other_kinds,
    through_a_function_of_its_own,
)  # fmt: skip


def argument(requires_grad: bool = False, rows: int = 4) -> Tensor:
    x = torch.linspace(-1, 1.5, rows * 3, dtype=torch.float64).view(rows, 3)
    return x.requires_grad_(requires_grad)


def leaves(results: Any) -> list[Any]:
    return list(results) if isinstance(results, (tuple, list)) else [results]


def outcome(program: Program, requires_grad: bool = False, rows: int = 4) -> list[Any]:
    """Results with what can be asked of them, and the gradients by them, or an error in their stead."""
    x = argument(requires_grad, rows)
    found: list[Any] = []
    for parameter in PARAMETERS:
        parameter.grad = None
    results = leaves(program(x))
    for result in results:
        found.append(result)
        if result is not None:
            found += [result.requires_grad, result.is_leaf, result.stride(), result.dtype]
    wanted = [result for result in results if result is not None and result.requires_grad]
    for result in wanted:
        try:
            weight = torch.linspace(0.5, 1.5, result.numel(), dtype=result.dtype)
            (result * weight.view(result.shape)).sum().backward(retain_graph=True)
        except RuntimeError as error:
            found.append(str(error))
    return [*found, x.grad, *(p.grad for p in PARAMETERS)]


@pytest.mark.parametrize("requires_grad", [False, True], ids=["data", "argument"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_like_eager(program: Program, requires_grad: bool) -> None:
    compiled = weft.compile(program, fullgraph=True, backend=by_operators)
    assert_same(outcome(compiled, requires_grad), outcome(program, requires_grad))


@pytest.mark.parametrize("program", [penalty, differential_equation, meta_learning])
@pytest.mark.native
def test_native_programs(program: Program) -> None:
    assert_same(outcome(weft.compile(program, fullgraph=True)), outcome(program))


def test_without_gradients_outside() -> None:
    compiled = weft.compile(with_gradients_inside, fullgraph=True)
    with torch.no_grad():
        assert_same([compiled(argument())], [with_gradients_inside(argument())])


def test_sizes_that_vary() -> None:
    compiled = weft.compile(penalty, fullgraph=True, dynamic=True, backend=by_operators)
    for rows in (4, 6, 9):
        assert_same(outcome(compiled, rows=rows), outcome(penalty, rows=rows))


def test_training_with_an_optimizer() -> None:
    found = []
    for wrap in (lambda f: f, lambda f: weft.compile(f, fullgraph=True)):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1)).double()
        optimizer = torch.optim.Adam(net.parameters())

        def loss(x: Tensor, net: nn.Module = net) -> Tensor:
            x = x.detach().requires_grad_()
            (slope,) = grad(net(x).sum(), x, create_graph=True)
            return (slope - 1).square().mean()

        run = wrap(loss)
        for _ in range(3):
            optimizer.zero_grad()
            run(argument()).backward()
            optimizer.step()
        found.append([p.detach() for p in net.parameters()])
    assert_same(found[1], found[0])


# What a graph does not have runs in eager.


def unused(x: Tensor) -> Any:
    return grad(NET[0](x).sum(), PARAMETERS)


def of_no_gradients(x: Tensor) -> Any:
    return grad(x.sin().sum(), x)


def a_second_time(x: Tensor) -> Any:
    loss = NET(x).sum()
    return grad(loss, PARAMETERS[0]), grad(loss, PARAMETERS[0])


def of_many_without_weights(x: Tensor) -> Any:
    return grad(NET(x), PARAMETERS)


def weights_of_another_size(x: Tensor) -> Any:
    return grad(NET(x), PARAMETERS, torch.ones(2))


def without_outputs(x: Tensor) -> Any:
    return grad(inputs=x)  # type: ignore[call-arg]


def overwritten(x: Tensor) -> Any:
    h = NET[0](x).exp()
    loss = h.sum()
    h.zero_()
    return grad(loss, PARAMETERS[0])


ERRORS: tuple[Program, ...] = (
    unused, of_no_gradients, a_second_time, of_many_without_weights, weights_of_another_size, without_outputs,
    overwritten,
)  # fmt: skip


@pytest.mark.parametrize("program", ERRORS, ids=lambda p: p.__name__)
def test_errors(program: Program) -> None:
    with pytest.raises((RuntimeError, TypeError)) as expected:
        program(argument())
    with pytest.raises((RuntimeError, TypeError)) as found:
        weft.compile(program, backend=by_operators)(argument())
    assert str(found.value)[:85] == str(expected.value)[:85]
    assert type(found.value) is type(expected.value)


def test_a_history_that_began_outside() -> None:
    """A gradient comes by it, which no graph of the call knows of."""

    def program(x: Tensor, y: Tensor) -> Any:
        return grad((x * y).sum(), x)

    x = argument(requires_grad=True)
    compiled = weft.compile(program, backend=by_operators)
    for make in (Tensor.detach, Tensor.sin, lambda x: argument(requires_grad=True), Tensor.cos):
        assert_same(compiled(x, make(x)), program(x, make(x)))


def test_hooks_of_arguments() -> None:
    def program(x: Tensor) -> Any:
        return grad(NET(x).square().sum(), x)

    compiled = weft.compile(program, backend=by_operators)
    assert_same(compiled(argument(True)), program(argument(True)))
    seen: list[Tensor] = []

    def hook(gradient: Tensor) -> Tensor:
        seen.append(gradient)
        return gradient * 2

    for run in (compiled, program):
        x = argument(True)
        x.register_hook(hook)
        seen += run(x)
    assert_same(seen[:2], seen[2:])


def test_a_tensor_that_retains_its_gradient() -> None:
    def program(x: Tensor) -> Any:
        return grad(NET(x).square().sum(), x)

    compiled = weft.compile(program, backend=by_operators)
    for retains in (False, True):
        found = []
        for run in (compiled, program):
            x = argument(True) * 1
            if retains:
                x.retain_grad()
            found.append([*run(x), x.grad if retains else None])
        assert_same(*found)


def test_batched_gradients() -> None:
    def program(x: Tensor) -> Any:
        y = NET[0](x).sum(0)
        return grad(y, PARAMETERS[0], torch.eye(5, dtype=torch.float64), is_grads_batched=True)

    compiled = weft.compile(program, backend=by_operators)
    assert_same(compiled(argument()), program(argument()))


def test_zeros_that_require_gradients() -> None:
    def program(x: Tensor) -> Any:
        return grad(NET[0](x).sum(), PARAMETERS, create_graph=True, materialize_grads=True)

    compiled = weft.compile(program, backend=by_operators)
    assert_same(outcome(compiled), outcome(program))


def test_gradients_beside_regions() -> None:
    def program(x: Tensor) -> Any:
        y = NET[0](x)
        y = y * 2 if y.sum() > 0 else y - 1
        return grad(y.sin().sum(), PARAMETERS[:2])

    compiled = weft.compile(program, backend=by_operators)
    for sign in (1, -1):
        assert_same(compiled(argument() * sign), program(argument() * sign))


def test_gradients_in_loops() -> None:
    def program(x: Tensor) -> Any:
        for row in range(12):
            with torch.enable_grad():
                y = x.detach().requires_grad_()
                slope = grad((y * row).sin().sum(), y)[0]
            x = x - 0.1 * slope
        return x

    compiled = weft.compile(program, fullgraph=True, backend=by_operators)
    assert_same([compiled(argument())], [program(argument())])


def test_gradients_behind_a_break() -> None:
    def program(x: Tensor) -> Any:
        y = NET(x)
        torch._dynamo.graph_break()
        z = y.sin().sum()
        return (*grad(z, y, create_graph=True), *grad(z, PARAMETERS[0], create_graph=True))

    compiled = weft.compile(program, backend=by_operators)
    assert_same(outcome(compiled), outcome(program))


UNARY = ("tanh", "sin", "exp", "sigmoid", "square", "relu", "abs", "softmax", "cumsum", "mean")


@settings(max_examples=int(os.environ.get("WEFT_EXAMPLES", "25")), deadline=None)
@given(
    st.lists(st.sampled_from((*UNARY, "grad", "grad of all", "write", "detach")), max_size=7),
    st.booleans(),
)
def test_programs_of_any_operators(names: list[str], create_graph: bool) -> None:
    def program(x: Tensor) -> Any:
        start = NET[0](x * 0.5)
        value = start * 1
        found: list[Any] = []
        for name in names:
            match name:
                case "grad" if value.requires_grad:
                    given = grad(
                        value.sum(), [start, PARAMETERS[1]], retain_graph=True,
                        create_graph=create_graph, allow_unused=True,
                    )  # fmt: skip
                    found += given
                    if given[0] is not None:
                        value = value + given[0]
                case "grad of all" if value.requires_grad:
                    found += grad(
                        value, PARAMETERS, torch.ones_like(value), retain_graph=True,
                        create_graph=create_graph, allow_unused=True,
                    )  # fmt: skip
                case "write":
                    value = value.clone()
                    value[0] = start[1]
                case "softmax" | "cumsum":
                    value = getattr(value, name)(-1)
                case "mean":
                    value = value + value.mean(0)
                case "detach":
                    value = value.detach() * start
                case "grad" | "grad of all":
                    pass
                case _:
                    value = getattr(value, name)()
        return [*found, value]

    compiled = weft.compile(program, fullgraph=True, backend=by_operators)
    assert_same(outcome(compiled), outcome(program))
