"""``x.data`` written to behind a graph break: seen where eager's autograd holds ``x``, and only there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torch.utils.checkpoint
import weft
from torch import Tensor

Program = Callable[[Tensor, Tensor], Any]


def end_graph() -> None:
    torch._dynamo.graph_break()


def of_an_argument(x: Tensor, w: Tensor) -> Any:
    y = (x.exp() * x).softmax(-1)
    end_graph()
    x.data.add_(1)
    return y


def of_a_result(x: Tensor, w: Tensor) -> Any:
    h = (x * 2).relu()
    y = h.sum() + h.pow(3).sum()
    end_graph()
    h.data.zero_()
    return y


def of_a_view_of_what_is_held(x: Tensor, w: Tensor) -> Any:
    h = x.exp()
    y = h.sin() * h
    flat = h.view(-1)
    end_graph()
    flat.data[:2] = 0
    return y


def of_several(x: Tensor, w: Tensor) -> Any:
    first = F.layer_norm(x, x.shape[-1:], w[0], w[1])
    second = F.gelu(first)
    third = F.silu(x) * second
    end_graph()
    first.data.mul_(2)
    second.data.mul_(3)
    x.data.neg_()
    w.data.add_(1)
    return third


def of_choices(x: Tensor, w: Tensor) -> Any:
    chosen = torch.where(x > 0, x * w[0, 0], x.abs()) + x.clamp(-0.5, 0.5)
    most = x.sum(1).cos() + x.norm(dim=1) + x.var(1)
    end_graph()
    x.data.neg_()
    return chosen, most


def of_what_was_copied(x: Tensor, w: Tensor) -> Any:
    copied, same, moved = x.clone().sin(), (x * 1).cos(), (x + 0).exp()
    end_graph()
    x.data.add_(1)
    return copied, same, moved


def of_factors(x: Tensor, w: Tensor) -> Any:
    y = F.linear((x @ w).relu(), w, x[0]).tanh() + F.dropout(x, 0.5)
    end_graph()
    _shrink(x)
    _shrink(w)
    return y


def _shrink(tensor: Tensor) -> None:
    tensor.data.mul_(0.5)


def exchanged(x: Tensor, w: Tensor) -> Any:
    y = x.exp() * x
    end_graph()
    x.data = x.data * 3
    y = y * x
    end_graph()
    x.data = torch.zeros_like(x)
    return y


def in_each_turn(x: Tensor, w: Tensor) -> Any:
    y = x.exp()
    for _ in range(3):
        y = y * x.sin()
        end_graph()
        x.data.mul_(0.9)
    return y


def _in_two_graphs(x: Tensor, w: Tensor) -> Tensor:
    y = x.exp() * w.sum()
    end_graph()
    return y.sin() * y * x


def by_the_caller_of_a_function(x: Tensor, w: Tensor) -> Any:
    y = _in_two_graphs(x, w)
    x.data.mul_(2)
    return y


class _Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        c = a.exp()
        ctx.save_for_backward(a, c)
        ctx.factor = b.sin()
        return c * b

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        a, c = ctx.saved_tensors
        return gradient * c * a, gradient * ctx.factor


def of_what_a_function_saves(x: Tensor, w: Tensor) -> Any:
    y = _Scaled.apply(x, w[0] * torch.ones_like(x)).sin()
    end_graph()
    x.data.mul_(2)
    return y


PROGRAMS = [
    of_an_argument, of_a_result, of_a_view_of_what_is_held, of_several, of_choices, of_what_was_copied,
    of_factors, exchanged, in_each_turn, by_the_caller_of_a_function, of_what_a_function_saves,
]  # fmt: skip


def outcome(program: Program, rows: int) -> list[Tensor]:
    torch.manual_seed(rows)
    leaves = [torch.randn(n, 4, dtype=torch.float64, requires_grad=True) for n in (rows, 4)]
    x = leaves[0] * 1
    found = program(x, leaves[1])
    results = found if isinstance(found, tuple) else (found,)
    gradients = torch.autograd.grad(
        [r.sin().sum() for r in results], [x, *leaves], allow_unused=True, retain_graph=True
    )
    return [*results, x, *(g for g in gradients if g is not None)]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: str(program.__name__))
def test_like_eager(program: Program) -> None:
    compiled = weft.compile(program)
    for rows in (3, 5):
        torch.testing.assert_close(outcome(compiled, rows), outcome(program, rows))


def test_a_checkpoint_that_draws_again() -> None:
    """Backward draws other numbers where the state of the generator is not kept."""

    def dropped(a: Tensor) -> Tensor:
        return F.dropout(a, 0.5) * a

    def program(a: Tensor) -> Any:
        return torch.utils.checkpoint.checkpoint(
            dropped, a, use_reentrant=False, preserve_rng_state=False
        )

    found = []
    for call in (program, weft.compile(program)):
        torch.manual_seed(0)
        a = torch.ones(64, requires_grad=True)
        result = call(a)
        torch.rand(3)
        found.append([result, torch.autograd.grad(result.sum(), a)[0], torch.rand(2)])
    torch.testing.assert_close(found[1], found[0])
