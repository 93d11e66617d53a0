"""Hooks of tensors that are written to later: a hook stays where it was registered, as in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import weft
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from weft.registry import codegens

from tests.fuzz.evaluated import EvaluatedCpp


def read_before(h: Tensor) -> Any:
    h.register_hook(lambda g: g * 2)
    result = h * 3
    h.exp_()
    return result


def read_before_and_behind(h: Tensor) -> Any:
    h.register_hook(lambda g: g * 2)
    result = h * 3
    h.exp_()
    return result, h


def hooked_behind_too(h: Tensor) -> Any:
    h.register_hook(lambda g: g * 2)
    result = h * 3
    h.exp_()
    h.register_hook(lambda g: g * 5)
    return result, h


def hook_of_a_view(h: Tensor) -> Any:
    view = h[1:]
    view.register_hook(lambda g: g * 2)
    result = view * 3
    h.mul_(2)
    return result


def view_written_with_what_was_read_of_it(h: Tensor) -> Any:
    view = h[1:]
    view.register_hook(lambda g: g * 2)
    view.add_(view.clone())
    return view


def window_written_with_a_row_of_it(h: Tensor) -> Any:
    window = h.as_strided((2,), (1,))
    window.register_hook(lambda g: g * 2)
    window.index_add_(0, torch.tensor([0, 1]), window * 3)
    return window.sum(), h


def turned_in_place(h: Tensor) -> Any:
    h.register_hook(lambda g: g * 2)
    result = h * 3
    h.unsqueeze_(0)
    return result


def detached_in_place(h: Tensor) -> Any:
    h.register_hook(lambda g: g * 2)
    result = h * 3
    h.detach_()
    return result


def written_in_a_loop(h: Tensor) -> Any:
    h.register_hook(lambda g: g * 2)
    result = h * 3
    for _ in range(25):
        h.mul_(0.9)
    return result, h


def in_a_checkpoint(h: Tensor) -> Any:
    h.register_hook(lambda g: g * 2)
    result = h * 3
    h.add_(1)
    return checkpoint(lambda y: y * 2 + y.sum(), result, use_reentrant=False)


def taken_away(h: Tensor) -> Any:
    handle = h.register_hook(lambda g: g * 2)
    result = h * 3
    h.exp_()
    handle.remove()
    return result


def kept_gradient(h: Tensor) -> Any:
    result = h * 3
    h.retain_grad()
    h.mul_(2)
    (h.sum() + result.sum()).backward()
    return h.grad


def backward_inside(h: Tensor) -> Any:
    h.register_hook(lambda g: g * 2)
    result = h * 3
    h.exp_()
    result.sum().backward()


PROGRAMS = (
    read_before, read_before_and_behind, hooked_behind_too, hook_of_a_view,
    view_written_with_what_was_read_of_it, window_written_with_a_row_of_it, turned_in_place,
    detached_in_place, written_in_a_loop, in_a_checkpoint, taken_away, kept_gradient,
    backward_inside,
)  # fmt: skip


def observed(function: Callable[[Tensor], Any]) -> Any:
    """The results and the gradient of the leaf."""
    leaf = torch.tensor([0.5, -2.0, 3.0], dtype=torch.float64, requires_grad=True)
    found = function(leaf * 2)
    results = found if isinstance(found, tuple) else (found,)
    roots = [r for r in results if isinstance(r, Tensor) and r.requires_grad]
    if roots:
        torch.autograd.backward(roots, [torch.ones_like(r) for r in roots])
    values = [r.tolist() if isinstance(r, Tensor) else r for r in results]
    return values, None if leaf.grad is None else leaf.grad.tolist()


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "varying"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_gradients_are_eagers(
    program: Callable[[Tensor], Any], dynamic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(codegens, "cpu", EvaluatedCpp)

    def around(x: Tensor) -> Any:
        return program(x * 1)

    compiled = weft.compile(around, dynamic=dynamic)
    for _ in range(2):
        assert observed(compiled) == observed(around)


VIEWS: tuple[Callable[[Tensor], Tensor], ...] = (
    lambda h: h[1:],
    lambda h: h.view(-1, 1),
    lambda h: h.as_strided((2,), (1,)),
    lambda h: h.unbind(0)[1],
    lambda h: h.unsqueeze(0).t(),
    lambda h: h * 1,
    lambda h: h.chunk(2)[0],
)

WRITES: tuple[Callable[[Tensor], Any], ...] = (
    lambda v: v.mul_(3),
    lambda v: v.mul_(v.clone()),
    lambda v: v.add_(v * 2),
    lambda v: v.copy_(v.sin()),
    lambda v: v.exp_(),
    lambda v: v.view(-1)[:1].mul_(v.sum()),
)


@pytest.mark.parametrize("view", range(len(VIEWS)))
@pytest.mark.parametrize("write", range(len(WRITES)))
@pytest.mark.parametrize("behind", [False, True], ids=["one graph", "behind a break"])
def test_hooks_of_views_whose_base_nobody_has(view: int, write: int, behind: bool) -> None:
    """A hook sees what goes through the view as it was, and nothing of what the write hands on."""

    def program(x: Tensor) -> Any:
        v = VIEWS[view](x.sin())
        if behind:
            torch._dynamo.graph_break()
        v.is_leaf, v.register_hook(lambda g: g * 2)
        WRITES[write](v)
        return v * 1, v

    compiled = weft.compile(program)
    for _ in range(2):
        wanted, found = observed_or_error(program), observed_or_error(compiled)
        if isinstance(wanted, str):
            assert isinstance(found, str)
        else:
            for mine, plain in zip((*found[0], found[1]), (*wanted[0], wanted[1]), strict=True):
                torch.testing.assert_close(torch.tensor(mine), torch.tensor(plain))


def observed_or_error(function: Callable[[Tensor], Any]) -> Any:
    try:
        return observed(function)
    except RuntimeError as error:
        return str(error)
