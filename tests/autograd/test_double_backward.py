"""Backward with ``create_graph`` of compiled functions: by programs, as eager does it."""

from __future__ import annotations

import gc
import os
import warnings
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
import torch.nn.functional as F
import weft
from hypothesis import example, given, settings
from torch import Tensor

from tests.staged_backend import by_operators

BY_OPERATORS = "weft: gradients of gradients"

Program = Callable[..., Any]


def leaf(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, requires_grad=True)


def operands() -> list[Tensor]:
    torch.manual_seed(0)
    return [leaf(6, 4), leaf(4, 4), leaf(4)]


def tanh_layers(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.linear(F.linear(x, w, b).tanh(), w, b).tanh() @ b


def silu_layers(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.linear(F.silu(F.linear(x, w, b)), w).sum(1)


def gelu_and_softplus(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.softplus(F.gelu(x @ w) + b)


def normalised(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.layer_norm(x @ w, (4,), b, b, eps=0.5).sin()


def attention(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return ((x @ w) @ x.t()).softmax(-1) @ (x * b)


def attention_of_matrices(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """Eager takes matmuls here, and not the kernel, whose gradient has none."""
    return F.scaled_dot_product_attention(x @ w, x, x * b, is_causal=True)


def two_results(x: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    h = (x @ w).sigmoid()
    return h * b, h.exp().sum(0)


def a_view_and_itself(x: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    h = (x @ w).cos()
    return h, h[1:] * b


def without_gradients_inside(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    with torch.no_grad():
        scale = x.norm()
    return (x / scale @ w).tanh() * b.detach() * b


def written_inside(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    h = (x @ w).clone()
    h[:, 1] = b.sum() * x[:, 0] ** 2
    return h.mul_(x).sin()


def masked(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    h = x @ w
    return torch.where(h > 0, h**3, h.exp()) * b


def linear_in_each(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return x @ w + b


def linear_in_all(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return x * 2 + b


def not_all_used(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return (x * x).sum(1) + 0 * b.sum()


def saved_result(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return x.exp() * w[0]


PROGRAMS: tuple[Program, ...] = (
    tanh_layers, silu_layers, gelu_and_softplus, normalised, attention, attention_of_matrices,
    two_results, a_view_and_itself, without_gradients_inside, written_inside, masked,
    linear_in_each, linear_in_all, not_all_used, saved_result,
)  # fmt: skip


def total(results: Any) -> Tensor:
    """A number whose gradient differs from element to element."""
    found = torch.zeros((), dtype=torch.float64)
    for result in results if isinstance(results, (tuple, list)) else (results,):
        if isinstance(result, Tensor) and result.requires_grad:
            weights = torch.linspace(0.5, 1.5, result.numel(), dtype=torch.float64)
            found = found + (result * weights.view(result.shape)).sum()
    return found


def derivatives(program: Program, wanted: Sequence[int], order: int) -> list[Any]:
    """By order: the gradients, and whether they require any themselves."""
    inputs = operands()
    value = total(program(*inputs))
    found: list[Any] = []
    for _ in range(order):
        if not value.requires_grad:
            break
        gradients = torch.autograd.grad(
            value, [inputs[k] for k in wanted], create_graph=True, allow_unused=True
        )
        found += [None if g is None else g.requires_grad for g in gradients]
        found += [None if g is None else g.detach().clone() for g in gradients]
        value = total([None if g is None else g.sin() for g in gradients])
    if value.requires_grad:
        value.backward()
    return [*found, *(t.grad for t in inputs)]


def assert_like(found: Sequence[Any], expected: Sequence[Any]) -> None:
    assert len(found) == len(expected)
    for mine, its in zip(found, expected, strict=True):
        if isinstance(its, Tensor):
            torch.testing.assert_close(  # sums in another order cancel
                mine, its, rtol=1e-6, atol=1e-9, equal_nan=True
            )
        else:
            assert mine == its


@pytest.fixture
def told() -> Any:
    """What was said about operators that ran in place of programs."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield lambda: [w for w in caught if str(w.message).startswith(BY_OPERATORS)]


@pytest.mark.parametrize("wanted", [(0,), (1, 2), (0, 1, 2)], ids=str)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_like_eager(program: Program, wanted: tuple[int, ...], told: Any) -> None:
    compiled = weft.compile(program, fullgraph=True, backend=by_operators)
    for order in (1, 2, 3):
        assert_like(derivatives(compiled, wanted, order), derivatives(program, wanted, order))
    assert not told()


@pytest.mark.parametrize("program", [tanh_layers, silu_layers, two_results, linear_in_each])
@pytest.mark.native
def test_native_programs(program: Program, told: Any) -> None:
    compiled = weft.compile(program, fullgraph=True)
    for order in (1, 2):
        assert_like(derivatives(compiled, (0, 1), order), derivatives(program, (0, 1), order))
    assert not told()


UNARY = ("tanh", "sin", "exp", "sigmoid", "square", "relu", "abs", "log1p_", "softmax", "sum")


def apply(name: str, value: Tensor, other: Tensor) -> Tensor:
    match name:
        case "log1p_":
            return value.abs().log1p()
        case "softmax":
            return value.softmax(-1)
        case "sum":
            return value.sum(0, keepdim=True) * other
        case "matmul":
            return value @ other.t() @ other
        case "mul":
            return value * other
        case "add":
            return value + other.detach() * other
        case _:
            return getattr(value, name)()


@settings(max_examples=int(os.environ.get("WEFT_EXAMPLES", "25")), deadline=None)
@given(st.lists(st.sampled_from((*UNARY, "matmul", "mul", "add")), min_size=1, max_size=6))
@example(["exp"] * 4)  # whose gradients are not numbers
def test_programs_of_any_operators(names: list[str]) -> None:
    def program(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        value = x * 0.5
        for name in names:
            value = apply(name, value, x if name == "sum" else torch.cat((w, w[:2])) * 0.3)
        return value * b

    compiled = weft.compile(program, fullgraph=True, backend=by_operators)
    assert_like(derivatives(compiled, (0, 1), 2), derivatives(program, (0, 1), 2))


def test_gradients_of_some_results() -> None:
    found = []
    for program in (two_results, weft.compile(two_results, fullgraph=True, backend=by_operators)):
        x, w, b = operands()
        first, second = program(x, w, b)
        for chosen in (first, second):
            (g,) = torch.autograd.grad(chosen.sum(), x, create_graph=True)
            inputs = [x, w, b]
            found.append(
                torch.autograd.grad(g.sin().sum(), inputs, allow_unused=True, retain_graph=True)
            )
    assert_like(found[2], found[0])
    assert_like(found[3], found[1])


def test_tangents_that_require_gradients() -> None:
    """As for products of a Hessian, or of a Jacobian, with a vector."""
    found = []
    for program in (tanh_layers, weft.compile(tanh_layers, fullgraph=True, backend=by_operators)):
        x, w, b = operands()
        v = torch.linspace(-1, 1, 6, dtype=torch.float64, requires_grad=True)
        (g,) = torch.autograd.grad(program(x, w, b), x, v, create_graph=True)
        along = torch.autograd.grad(g, v, torch.ones_like(g), create_graph=True)[0]
        found.append([g, along, *torch.autograd.grad(along.sin().sum(), [x, w, b])])
    assert_like(found[1], found[0])


def test_only_what_is_asked_for_is_computed() -> None:
    seen: list[tuple[int, ...]] = []

    def backend(graph_module: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        return by_operators(graph_module, inputs)

    compiled = weft.compile(tanh_layers, fullgraph=True, backend=backend)
    x, w, b = operands()
    w.register_hook(lambda g: seen.append(tuple(g.shape)))
    torch.autograd.grad(compiled(x, w, b).sum(), x, create_graph=True)
    assert not seen
    torch.autograd.grad(compiled(x, w, b).sum(), [x, w], create_graph=True)
    assert seen == [(4, 4)]


def change_before_gradients(x: Tensor, w: Tensor, result: Tensor) -> Tensor:
    with torch.no_grad():
        w.add_(1)
    return torch.autograd.grad(result.sum(), x, create_graph=True)[0].sin().sum()


def change_after_gradients(x: Tensor, w: Tensor, result: Tensor) -> Tensor:
    (g,) = torch.autograd.grad(result.sum(), x, create_graph=True)
    with torch.no_grad():
        w.add_(1)
    return g.sin().sum()


def change_of_gradients(x: Tensor, w: Tensor, result: Tensor) -> Tensor:
    (g,) = torch.autograd.grad(result.sum(), x, create_graph=True)
    value = g.sum() * 2
    with torch.no_grad():
        g.add_(1)
    return value


def twice(x: Tensor, w: Tensor, result: Tensor) -> Tensor:
    value = torch.autograd.grad(result.sum(), x, create_graph=True)[0].sin().sum()
    torch.autograd.grad(value, x)
    return value


def twice_retained(x: Tensor, w: Tensor, result: Tensor) -> Tensor:
    value = torch.autograd.grad(result.sum(), x, create_graph=True)[0].sin().sum()
    torch.autograd.grad(value, x, retain_graph=True)
    return value


def freed(x: Tensor, w: Tensor, result: Tensor) -> Tensor:
    torch.autograd.grad(result.sum(), x)
    return torch.autograd.grad(result.sum(), x, create_graph=True)[0].sin().sum()


def with_the_result(x: Tensor, w: Tensor, result: Tensor) -> Tensor:
    (g,) = torch.autograd.grad(result.sum(), x, create_graph=True)
    return g.sin().sum() + result.cos().sum()


def before_the_result(x: Tensor, w: Tensor, result: Tensor) -> Tensor:
    (g,) = torch.autograd.grad(result.sum(), x, create_graph=True)
    result.cos().sum().backward(retain_graph=True)
    return g.sin().sum()


USES = (
    change_before_gradients, change_after_gradients, change_of_gradients, twice, twice_retained, freed,
    with_the_result, before_the_result,
)  # fmt: skip


@pytest.mark.parametrize("use", USES, ids=lambda use: use.__name__)
def test_saved_values(use: Callable[..., Tensor]) -> None:
    """What a program saves is freed, kept and checked as eager's saved tensors are."""
    found: list[Any] = []
    for program in (tanh_layers, weft.compile(tanh_layers, fullgraph=True, backend=by_operators)):
        x, w, b = operands()
        try:
            use(x, w, program(x, w, b)).backward()
            found.append([x.grad, w.grad, b.grad])
        except RuntimeError as error:
            found.append(str(error)[:55])
    if isinstance(found[0], str):
        assert found[1] == found[0]
    else:
        assert_like(found[1], found[0])


@pytest.mark.parametrize("backward", [True, False], ids=["after backward", "unused"])
def test_memory_is_let_go(backward: bool) -> None:
    compiled = weft.compile(silu_layers, fullgraph=True)
    gc.disable()
    try:
        for _ in range(2):  # the first call compiles
            x, w, b = operands()
            v = torch.ones(6, dtype=torch.float64)
            y = compiled(x, w, b)
            (g,) = torch.autograd.grad(y, x, v, create_graph=True)
            if backward:
                g.sin().sum().backward()
            references = [weakref.ref(t) for t in (x, w, b, v, y, g)]
            del x, w, b, v, y, g
            left = [reference() for reference in references]
    finally:
        gc.enable()
    assert left == [None] * 6


def test_sizes_that_vary(told: Any) -> None:
    compiled = weft.compile(tanh_layers, fullgraph=True, dynamic=True, backend=by_operators)
    native = weft.compile(silu_layers, fullgraph=True, dynamic=True)
    for rows in (5, 7, 12):
        for program, run in ((tanh_layers, compiled), (silu_layers, native)):
            found = []
            for called in (program, run):
                torch.manual_seed(rows)
                x, w, b = leaf(rows, 4), leaf(4, 4), leaf(4)
                (g,) = torch.autograd.grad(called(x, w, b).sum(), x, create_graph=True)
                penalty = ((g.norm(2, dim=1) - 1) ** 2).mean()
                found.append([g, *torch.autograd.grad(penalty, [x, w, b], allow_unused=True)])
            assert_like(found[1], found[0])
    assert not told()


def test_batched_gradients() -> None:
    found = []
    for program in (tanh_layers, weft.compile(tanh_layers, fullgraph=True, backend=by_operators)):
        x, w, b = operands()
        (g,) = torch.autograd.grad(program(x, w, b).sum(), x, create_graph=True)
        rows = torch.eye(24, dtype=torch.float64).view(24, 6, 4)
        (hessian,) = torch.autograd.grad(g, x, rows, is_grads_batched=True, create_graph=True)
        found.append([hessian, *torch.autograd.grad(hessian.sin().sum(), [x, w, b])])
    assert_like(found[1], found[0])


def test_inputs_that_do_not_require_gradients(told: Any) -> None:
    found = []
    for program in (tanh_layers, weft.compile(tanh_layers, fullgraph=True, backend=by_operators)):
        x, w, b = operands()
        (g,) = torch.autograd.grad(program(x, w.detach(), b).sum(), x, create_graph=True)
        found.append(torch.autograd.grad(g.sin().sum(), [x, b]))
    assert_like(found[1], found[0])
    assert not told()


def test_inputs_that_depend_on_one_another() -> None:
    found = []
    for program in (tanh_layers, weft.compile(tanh_layers, fullgraph=True, backend=by_operators)):
        x, w, _ = operands()
        b = x.exp().mean(0)
        (g,) = torch.autograd.grad(program(x, w, b).sum(), x, create_graph=True)
        found.append([g, *torch.autograd.grad(g.sin().sum(), [x, w])])
    assert_like(found[1], found[0])


def physics(net: Callable[[Tensor], Tensor], t: Tensor, x: Tensor) -> Tensor:
    """Burgers' equation: gradients of gradients, of which the loss needs gradients."""
    u = net(torch.cat((t, x), 1))
    ones = torch.ones_like(u)
    u_t, u_x = torch.autograd.grad(u, [t, x], ones, create_graph=True)
    (u_xx,) = torch.autograd.grad(u_x, x, ones, create_graph=True)
    return (u_t + u * u_x - 0.01 * u_xx).square().mean() + u.square().mean()


@pytest.mark.parametrize("inside", [False, True], ids=["net compiled", "loss compiled"])
def test_physics_informed(inside: bool, told: Any) -> None:
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Linear(2, 8), torch.nn.Tanh(), torch.nn.Linear(8, 8), torch.nn.Tanh(),
        torch.nn.Linear(8, 1),
    ).double()  # fmt: skip
    compiled = weft.compile(physics if inside else net)
    found = []
    for run in (lambda t, x: physics(net, t, x), None):
        net.zero_grad()
        torch.manual_seed(1)
        t, x = leaf(10, 1), leaf(10, 1)
        if run is not None:
            loss = run(t, x)
        else:
            loss = compiled(net, t, x) if inside else physics(compiled, t, x)
        loss.backward()
        found.append([loss.detach(), t.grad, x.grad, *(p.grad for p in net.parameters())])
    assert_like(found[1], found[0])
    assert not told()


def test_an_inner_step_of_training(told: Any) -> None:
    """As in MAML: gradients of all parameters, and the loss behind a step along them."""
    found = []
    for program in (silu_layers, weft.compile(silu_layers, fullgraph=True, backend=by_operators)):
        x, w, b = operands()
        for _ in range(2):
            gradients = torch.autograd.grad(
                program(x, w, b).square().mean(), [w, b], create_graph=True
            )
            w, b = (p - 0.1 * g for p, g in zip((w, b), gradients, strict=True))
        found.append([*torch.autograd.grad(program(x, w, b).mean(), x)])
    assert_like(found[1], found[0])
    assert not told()


def scaled_in_place(a: Tensor, b: Tensor) -> Tensor:
    a.mul_(b.sin())
    return a.sin()


def read_and_scaled(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    result = a.exp() * b
    a.mul_(2)
    return result, result.cos()


def read_doubled_and_cleared(a: Tensor, b: Tensor) -> Tensor:
    result = (a * 2).sin() * b
    a.zero_()
    return result


def copied_before(a: Tensor, b: Tensor) -> Tensor:
    before = a.clone()
    a.copy_(b * b)
    return before**3 * a


def row_scaled(a: Tensor, b: Tensor) -> Tensor:
    a[0].mul_(b[0])
    return a.cos() + b


def both_written(a: Tensor, b: Tensor) -> Tensor:
    before = (a * 3).tanh()
    a.add_(b)
    b.mul_(2)
    return a.sin() * before + b


def written_without_history(a: Tensor, b: Tensor) -> Tensor:
    result = (a + 1).exp() * b
    with torch.no_grad():
        a.mul_(2)
    return result


OVERWRITING: tuple[Program, ...] = (
    scaled_in_place, read_and_scaled, read_doubled_and_cleared, copied_before, row_scaled, both_written,
    written_without_history,
)  # fmt: skip


def derivatives_of_overwriting(program: Program, wrap: Callable[[Program], Program]) -> list[Any]:
    """First and second derivatives by the leaves that the arguments were computed from; the arguments."""
    torch.manual_seed(0)
    leaves = [leaf(3, 4), leaf(3, 4)]
    arguments = [leaves[0].t() * 1, leaves[1].t() * 2]
    results = wrap(program)(*arguments)
    value = total(results) + total([a.sin() for a in arguments])
    first = torch.autograd.grad(value, leaves, create_graph=True)
    total([g.sin() for g in first]).backward()
    return [
        *(g.detach() for g in first),
        *(x.grad for x in leaves),
        *(a.detach() for a in arguments),
    ]


@pytest.mark.parametrize("program", OVERWRITING, ids=lambda program: str(program.__name__))
@pytest.mark.parametrize("dynamic", [False, True])
def test_of_programs_that_overwrite_arguments(program: Program, dynamic: bool) -> None:
    expected = derivatives_of_overwriting(program, lambda function: function)
    found = derivatives_of_overwriting(program, lambda f: weft.compile(f, dynamic=dynamic))
    assert_like(found, expected)


def test_of_a_module_that_overwrites_a_buffer() -> None:
    class Decaying(torch.nn.Module):
        state: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("state", torch.ones(3, dtype=torch.float64))

        def forward(self, x: Tensor) -> Tensor:
            result = (x * (self.state * 2)).sin()
            self.state.mul_(0.5)
            return result

    def outcome(module: Any) -> list[Any]:
        torch.manual_seed(0)
        x = leaf(3)
        value = total([module(x), module(x)])
        (first,) = torch.autograd.grad(value, x, create_graph=True)
        total(first.sin()).backward()
        return [first.detach(), x.grad]

    assert_like(outcome(weft.compile(Decaying())), outcome(Decaying()))
