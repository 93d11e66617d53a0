"""Compiled functions amid hooks, saved tensors kept elsewhere, subclasses, aliases and control flow."""

from __future__ import annotations

import copy
import threading
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import weft
from torch import Tensor, nn
from weft_guards import note_faithful_hook


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 3))


def beside_eager(observe: Callable[[nn.Module, Any], Any]) -> None:
    """What ``observe`` sees of a module called compiled is what it sees of it called plainly."""
    plain = network()
    model = copy.deepcopy(plain)
    want = observe(plain, plain)
    torch.testing.assert_close(observe(model, weft.compile(model, fullgraph=True)), want)


def inputs() -> Tensor:
    return torch.randn(5, 6, generator=torch.Generator().manual_seed(3))


def gradients(model: nn.Module) -> list[Tensor | None]:
    return [parameter.grad for parameter in model.parameters()]


def test_hooks_of_parameters() -> None:
    def observe(model: nn.Module, called: Any) -> Any:
        seen: dict[str, list[Tensor]] = {}
        (_, first), *others = model.named_parameters()
        first.register_hook(lambda gradient: gradient.clamp(-0.01, 0.01))
        for name, parameter in others:
            found = seen.setdefault(name, [])
            parameter.register_post_accumulate_grad_hook(
                lambda p, f=found: f.append(p.grad.clone())
            )
        for _ in range(2):
            called(inputs()).pow(2).sum().backward()
        return gradients(model), seen

    beside_eager(observe)


def test_an_optimizer_that_steps_in_backward() -> None:
    def observe(model: nn.Module, called: Any) -> Any:
        optimizers = {p: torch.optim.SGD([p], 0.1) for p in model.parameters()}

        def update(parameter: Tensor) -> None:
            optimizers[parameter].step()
            optimizers[parameter].zero_grad()

        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(update)
        losses = []
        for _ in range(4):
            loss = called(inputs()).pow(2).mean()
            loss.backward()
            losses.append(loss.detach())
        return [*losses, *model.parameters()]

    beside_eager(observe)


def test_saved_tensors_kept_elsewhere() -> None:
    def observe(model: nn.Module, called: Any) -> Any:
        with torch.autograd.graph.save_on_cpu():
            loss = called(inputs()).pow(2).sum()
        loss.backward()
        return gradients(model)

    beside_eager(observe)


def test_saved_tensors_are_packed_once_and_unpacked_when_needed() -> None:
    model = network()
    counts = {"packed": 0, "unpacked": 0}

    def pack(tensor: Tensor) -> Tensor:
        counts["packed"] += 1
        return tensor

    def unpack(tensor: Tensor) -> Tensor:
        counts["unpacked"] += 1
        return tensor

    note_faithful_hook(pack)
    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        loss = weft.compile(model, fullgraph=True)(inputs()).sum()
    assert counts["packed"] > 0 and counts["unpacked"] == 0
    loss.backward()
    assert counts["unpacked"] >= counts["packed"]


class Full:
    """A hook that raises when it has been given so many tensors, and counts them."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.count = 0

    def __call__(self, tensor: Tensor) -> Tensor:
        self.count += 1
        if self.count > self.room:
            raise MemoryError("no room")
        return tensor


@pytest.mark.parametrize("backend", ["weft", "eager"])
@pytest.mark.parametrize("is_function", [False, True])
def test_an_error_of_a_hook_for_saved_tensors_is_raised_at_once(
    backend: str, is_function: bool
) -> None:
    called = weft.compile(lambda x: x.exp().sin(), backend=backend)
    x = torch.randn(3, requires_grad=True)
    called(x)
    full = Full(0)
    hook = (lambda tensor: full(tensor)) if is_function else full
    for calls in (1, 2):
        with (
            torch.autograd.graph.saved_tensors_hooks(hook, lambda tensor: tensor),
            pytest.raises(MemoryError, match="no room"),
        ):
            called(x)
        assert full.count == calls


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_compiled_block_in_a_checkpoint(reentrant: bool, dynamic: bool) -> None:
    def observe(block: Any) -> list[Any]:
        seen: list[Any] = []
        for size in (5, 7, 5):
            x = torch.randn(size, 6, requires_grad=True)
            y = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=reentrant)
            y.pow(2).sum().backward()
            seen += [y.detach(), x.grad, *gradients(model)]
        return seen

    model = network()
    torch.manual_seed(0)
    want = observe(model)
    model.zero_grad()
    torch.manual_seed(0)
    torch.testing.assert_close(observe(weft.compile(model, dynamic=dynamic)), want)


class Tagged(torch.Tensor):
    """A tensor of a class of its own."""


def test_tangents_of_a_subclass() -> None:
    def program(x: Tensor) -> Tensor:
        return x.sin() * x

    x = torch.randn(4, requires_grad=True)
    tangent = torch.randn(4).as_subclass(Tagged)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        (want,) = torch.autograd.grad(program(x), [x], tangent)
        (got,) = torch.autograd.grad(weft.compile(program, fullgraph=True)(x), [x], tangent)
    torch.testing.assert_close(got.as_subclass(Tensor), want.as_subclass(Tensor))


def test_dropout_keeps_its_share_and_its_mask_in_backward() -> None:
    x = torch.ones(20_000, requires_grad=True)
    compiled = weft.compile(lambda x: F.dropout(x, 0.3) * 2, fullgraph=True)
    for _ in range(2):
        result = compiled(x)
        (gradient,) = torch.autograd.grad(result.sum(), [x])
        torch.testing.assert_close(gradient, result.detach())
        assert abs((result == 0).float().mean().item() - 0.3) < 0.02
        torch.testing.assert_close(
            result[result != 0], torch.full_like(result[result != 0], 2 / 0.7)
        )
    assert not torch.equal(compiled(x), result)


def aliases(x: Tensor) -> tuple[Tensor, ...]:
    y = x * 2
    return y, y.t(), y[0], x.view(-1), x


def test_results_that_share_memory() -> None:
    x = torch.randn(3, 4, requires_grad=True)
    results = []
    for function in (aliases, weft.compile(aliases, fullgraph=True)):
        y, turned, row, flat, same = function(x)
        assert same is x and flat.data_ptr() == x.data_ptr() and row.data_ptr() == y.data_ptr()
        y.mul_(3)
        loss = (turned * torch.arange(3.0)).sum() + row.exp().sum() + flat.pow(2).sum()
        results.append((y, turned, row, *torch.autograd.grad(loss, [x])))
    torch.testing.assert_close(results[1], results[0])


def test_backward_in_another_thread() -> None:
    def observe(model: nn.Module, called: Any) -> Any:
        loss = called(inputs()).pow(2).sum()
        thread = threading.Thread(target=loss.backward)
        thread.start()
        thread.join()
        return gradients(model)

    beside_eager(observe)


class TwoResults(torch.autograd.Function):
    """Saves an intermediate; its second result has no gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        root = x.abs().sqrt()
        ctx.save_for_backward(root, x)
        ctx.scale = scale
        kept = (x > 0).to(x.dtype)
        ctx.mark_non_differentiable(kept)
        return root * scale, kept

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor, None]:
        root, x = ctx.saved_tensors
        return gradient * ctx.scale * x.sign() / (2 * root) + 1, None


def test_a_function_of_the_users_with_two_results() -> None:
    def program(x: Tensor) -> Tensor:
        root, kept = TwoResults.apply(x.exp(), 3.0)
        return (root * kept).sum()

    x = torch.randn(4, requires_grad=True)
    (got,) = torch.autograd.grad(weft.compile(program)(x), [x])
    torch.testing.assert_close(got, torch.autograd.grad(program(x), [x])[0])


def branch(x: Tensor, w: Tensor) -> Tensor:
    y = x * w
    y = y.sin() if y.sum() > 0 else y.cos() * x
    return y.sum()


def long_loop(x: Tensor, w: Tensor) -> Tensor:
    for _ in range(20):
        x = torch.tanh(x * w) + x
    return x.sum()


def loop_on_a_value(x: Tensor, w: Tensor) -> Tensor:
    while x.norm() < 10:
        x = x * 2 + w
    return x.sum()


@pytest.mark.parametrize(
    "program", [branch, long_loop, loop_on_a_value], ids=lambda program: program.__name__
)
def test_gradients_through_control_flow(program: Any) -> None:
    compiled = weft.compile(program, options={"keep_control_flow": True})
    for sign in (1.0, -1.0):
        x = torch.tensor([0.5, 1.0, 1.5], requires_grad=True)
        w = torch.tensor([0.3, 0.2, 0.1]).mul(sign).requires_grad_()
        want = torch.autograd.grad(program(x, w), [x, w])
        torch.testing.assert_close(torch.autograd.grad(compiled(x, w), [x, w]), want)
        with torch.no_grad():
            torch.testing.assert_close(compiled(x, w), program(x, w))


EXPANDED: dict[str, Callable[[Tensor], Tensor]] = {
    "sum": lambda x: x.sum(),
    "negative sum": lambda x: -x.sum(),
    "sum of a view": lambda x: x.t().reshape(-1).sum(),
    "sum after an addition": lambda x: (x + 1).sum(),
    "twice": lambda x: (x + x).sum(),
    "mean": lambda x: x.mean(),
    "sum of a row": lambda x: x[0].sum(),
    "transposed": lambda x: (x.t() * 2).sum(),
    "sum along": lambda x: x.sum(0) @ torch.ones(4, dtype=torch.float64),
}


@pytest.mark.parametrize("name", EXPANDED)
@pytest.mark.parametrize("dynamic", [False, True])
def test_gradients_are_expanded_where_eagers_are(name: str, dynamic: bool) -> None:
    program = EXPANDED[name]
    x = torch.randn(2, 4, dtype=torch.float64, requires_grad=True)
    given = torch.tensor(2.0, dtype=torch.float64)
    (want,) = torch.autograd.grad(program(x), x, given)
    (found,) = torch.autograd.grad(weft.compile(program, dynamic=dynamic)(x), x, given)
    assert torch.equal(found, want)
    assert found.stride() == want.stride()
    assert found.data_ptr() != given.data_ptr()  # who writes to a gradient changes no other
