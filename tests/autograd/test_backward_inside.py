"""``backward()`` inside a compiled function: one graph, with eager's ``.grad``, aliasing and errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import weft
from torch import Tensor, nn

from tests.same_values import assert_same
from tests.staged_backend import by_operators


class State:
    """What a program finds: a module, leaves of several layouts, and what they had as ``grad``."""

    def __init__(self, has_gradients: bool) -> None:
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
        self.u = torch.randn(3, dtype=torch.float64).requires_grad_()
        self.v = torch.randn(3, dtype=torch.float64).requires_grad_()
        self.turned = torch.randn(4, 3, dtype=torch.float64).t().detach().requires_grad_()
        self.wide = torch.randn(1, 3, dtype=torch.float64).expand(2, 3).requires_grad_()
        self.image = torch.randn(1, 2, 2, 2, dtype=torch.float64)
        self.image = self.image.to(memory_format=torch.channels_last).requires_grad_()
        self.given = torch.full((3,), 0.5, dtype=torch.float64)
        self.flat = torch.ones(6, dtype=torch.float64)
        self.kept: list[Tensor] = []
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=0.1)
        if has_gradients:
            for leaf in (self.u, self.v, self.turned, self.image, *self.net.parameters()):
                leaf.grad = torch.ones_like(leaf)

    def leaves(self) -> list[Tensor]:
        own = [self.u, self.v, self.turned, self.wide, self.image]
        return [*own, *self.net.parameters()]


Program = Callable[[State, Tensor], Any]


def whole_step(s: State, x: Tensor) -> Any:
    s.optimizer.zero_grad()
    loss = s.net(x).square().mean()
    loss.backward()
    s.optimizer.step()
    return loss.detach()


def step_that_sets_to_zero(s: State, x: Tensor) -> Any:
    s.optimizer.zero_grad(set_to_none=False)
    s.net(x).square().mean().backward()
    nn.utils.clip_grad_norm_(s.net.parameters(), 0.3)
    s.optimizer.step()


def several_batches(s: State, x: Tensor) -> Any:
    for part in x.chunk(2):
        (s.net(part).exp().mean() / 2).backward()


def one_gradient_for_two(s: State, x: Tensor) -> Any:
    (s.u + s.v).backward(s.given)
    assert s.u.grad is not None and s.v.grad is not None
    s.u.grad.mul_(2)
    s.given.add_(1)
    return s.v.grad * 3


def gradient_given(s: State, x: Tensor) -> Any:
    s.u.sin().backward(s.given)
    (s.v + 1).backward(s.given)
    s.given.mul_(5)


def of_a_leaf_itself(s: State, x: Tensor) -> Any:
    s.u.backward(s.given)
    s.given.zero_()
    return s.u.grad is s.given


def other_layouts(s: State, x: Tensor) -> Any:
    (s.turned.sum() + (s.wide * x[:2]).sum() + (s.image * 3).sum()).backward()
    (s.turned.t() * x).sum().backward()
    return s.wide.grad


def who_holds_it_sees_it(s: State, x: Tensor) -> Any:
    before = s.u.grad
    (s.u * x[0]).sum().backward()
    s.kept.append(s.u.grad)  # type: ignore[arg-type]
    return before, s.u.grad, before is s.u.grad


def set_by_the_program(s: State, x: Tensor) -> Any:
    s.u.grad = s.given
    s.v.grad = None
    (s.u * s.v * x[0]).sum().backward()
    return s.given.sin()


def of_a_flat_buffer(s: State, x: Tensor) -> Any:
    s.u.grad, s.v.grad = s.flat[:3], s.flat[3:]
    (s.u * s.v * x[0]).sum().backward()
    return s.flat.sum()


def for_some_inputs(s: State, x: Tensor) -> Any:
    (s.u * s.v * x[0]).exp().sum().backward(inputs=[s.v])


def two_results(s: State, x: Tensor) -> Any:
    y = (s.u * x[0]).exp()
    torch.autograd.backward([y, y.sum()], [s.given, None], retain_graph=True)  # type: ignore[list-item]
    y.square().sum().backward()


def of_what_it_makes(s: State, x: Tensor) -> Any:
    z = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    for _ in range(3):
        (s.net(z + x[:1]) - 1).square().sum().backward()
        with torch.no_grad():
            assert z.grad is not None
            z -= 0.1 * z.grad
            z.grad.zero_()
    return z


def of_a_detached_argument(s: State, x: Tensor) -> Any:
    x = x.clone().detach().requires_grad_(True)
    F.cross_entropy(s.net(x), x.new_zeros(len(x), dtype=torch.int64)).backward()
    assert x.grad is not None
    return x + x.grad.sign()


def without_gradients_around(s: State, x: Tensor) -> Any:
    loss = (s.u * x[0]).cos().sum()
    with torch.no_grad():
        loss.backward()
        s.u -= s.u.grad


def random_numbers(s: State, x: Tensor) -> Any:
    torch.manual_seed(3)
    F.dropout(s.net(x), 0.5).square().sum().backward()


def result_that_backward_leaves(s: State, x: Tensor) -> Any:
    y = s.u * 2
    y.sum().backward()
    return y


def of_a_computed_leaf(s: State, x: Tensor) -> Any:
    h = s.u * 2
    h.retain_grad()
    h.exp().sum().backward()
    return h.grad


PROGRAMS: tuple[Program, ...] = (
    whole_step, step_that_sets_to_zero, several_batches, one_gradient_for_two, gradient_given,
    of_a_leaf_itself, other_layouts, who_holds_it_sees_it, set_by_the_program, of_a_flat_buffer,
    for_some_inputs, two_results, of_what_it_makes, of_a_detached_argument, without_gradients_around,
    random_numbers, result_that_backward_leaves, of_a_computed_leaf,
)  # fmt: skip


# What is eager's, behind the graph.


def gradients_that_share_memory(s: State, x: Tensor) -> Any:
    (s.u.view(3) + s.v).exp().sum().backward()
    assert s.u.grad is not None
    s.u.grad.mul_(2)


def of_a_gradient(s: State, x: Tensor) -> Any:
    s.u.grad = s.given
    torch.autograd.backward([s.v.sin(), s.u.sin()], [s.given, s.given])


def reads_its_gradient(s: State, x: Tensor) -> Any:
    s.u.grad = s.given
    (s.u.exp() * s.u.grad).sum().backward()


def reads_its_gradient_by_a_write(s: State, x: Tensor) -> Any:
    s.u.grad = s.given
    y = torch.zeros(3, dtype=torch.float64)
    y += s.u * s.given * s.v
    y.exp().sum().backward()


def of_a_hooked_leaf(s: State, x: Tensor) -> Any:
    handle = s.u.register_hook(lambda g: g * 2)
    (s.u * x[0]).sum().backward()
    handle.remove()


def with_a_hook_behind(s: State, x: Tensor) -> Any:
    handle = s.u.register_post_accumulate_grad_hook(lambda p: s.kept.append(p.grad.clone()))  # type: ignore[union-attr]
    (s.u * x[0]).sum().backward()
    handle.remove()


def of_what_a_branch_writes(s: State, x: Tensor) -> Any:
    found = torch.zeros_like(x)
    if x.sum() > 0:
        found.add_(s.u)
    found.square().sum().backward()


def of_what_experts_add(s: State, x: Tensor) -> Any:
    """Rows that data chooses, and none of them for some expert."""
    found = x.new_zeros(4, 2)
    for chosen in (x[:, 0] > 0, x[:, 0] > 10):
        (rows,) = torch.where(chosen)
        if rows.numel() == 0:
            continue
        found.index_add_(0, rows, s.net(x[rows]))
    found.square().sum().backward()
    return found


BREAKING: tuple[Program, ...] = (
    gradients_that_share_memory, of_a_gradient, reads_its_gradient, reads_its_gradient_by_a_write,
    of_a_hooked_leaf, with_a_hook_behind, of_what_a_branch_writes, of_what_experts_add,
)  # fmt: skip


def outcome(program: Program, has_gradients: bool) -> list[Any]:
    """All that can be seen after three calls: results, leaves, gradients and who is whom."""
    state = State(has_gradients)
    found: list[Any] = []
    for scale in (1.0, 2.0, 3.0):
        x = scale * torch.linspace(-1, 1.5, 12, dtype=torch.float64).view(4, 3)
        result = program(state, x)
        results = [*result] if isinstance(result, tuple) else [result]
        for value in [*results, x, state.given, state.flat, *state.kept]:
            plainly = isinstance(value, Tensor)
            found += [value.detach().clone(), value.requires_grad] if plainly else [value]
        for leaf in state.leaves():
            found += [leaf.detach().clone(), leaf.requires_grad]
            gradient = leaf.grad
            found.append(gradient if gradient is None else gradient.clone())
            if gradient is not None:
                found += [gradient.stride(), gradient.requires_grad, gradient.is_leaf]
                found += [gradient is value for value in (*results, state.given, *state.kept)]
    return found


@pytest.mark.parametrize("has_gradients", [False, True], ids=["none", "some"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_like_eager(program: Program, has_gradients: bool) -> None:
    compiled = weft.compile(program, fullgraph=True, backend=by_operators)
    assert_same(outcome(compiled, has_gradients), outcome(program, has_gradients))


@pytest.mark.parametrize("program", BREAKING, ids=lambda p: p.__name__)
def test_what_stays_eager(program: Program) -> None:
    compiled = weft.compile(program, backend=by_operators)
    assert_same(outcome(compiled, False), outcome(program, False))
    with pytest.raises(weft.StageError, match="graph break"):
        outcome(weft.compile(program, fullgraph=True, backend=by_operators), False)


@pytest.mark.parametrize("program", [whole_step, several_batches])
@pytest.mark.native
def test_native_programs(program: Program) -> None:
    compiled = weft.compile(program, fullgraph=True)
    assert_same(outcome(compiled, True), outcome(program, True))


def a_second_time(s: State, x: Tensor) -> Any:
    loss = s.net(x).exp().sum()
    loss.backward()
    loss.backward()


def of_several_without_weights(s: State, x: Tensor) -> Any:
    s.net(x).backward()


def of_no_gradients(s: State, x: Tensor) -> Any:
    x.sum().backward()


def of_no_inputs(s: State, x: Tensor) -> Any:
    s.u.sum().backward(inputs=[])


@pytest.mark.parametrize(
    "program", [a_second_time, of_several_without_weights, of_no_gradients, of_no_inputs]
)
def test_errors(program: Program) -> None:
    x = torch.ones(4, 3, dtype=torch.float64)
    with pytest.raises(RuntimeError) as expected:
        program(eager := State(False), x)
    with pytest.raises(RuntimeError) as found:
        weft.compile(program, backend=by_operators)(mine := State(False), x)
    assert str(found.value)[:85] == str(expected.value)[:85]
    for leaf, its in zip(mine.leaves(), eager.leaves(), strict=True):
        assert (leaf.grad is None) == (its.grad is None)
        if its.grad is not None:
            torch.testing.assert_close(leaf.grad, its.grad)
