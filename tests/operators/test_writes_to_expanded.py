"""Writes through parts of an expanded tensor change the one place in memory that all of its copies show."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import weft


def _select(v: torch.Tensor) -> None:
    v.expand(4, *v.shape)[0].add_(1)


def _part_of_a_copy(v: torch.Tensor) -> None:
    v.unsqueeze(0).expand(4, *v.shape)[1, :, 0].mul_(3)


def _expanded_inside(v: torch.Tensor) -> None:
    v[:, :1].expand(-1, 5)[:, 2].add_(1)


def _slice_of_one(v: torch.Tensor) -> None:
    v.expand(2, *v.shape)[:1].add_(1)


def _item(v: torch.Tensor) -> None:
    v.broadcast_to(2, *v.shape)[0][1] = -0.0


def _copied(v: torch.Tensor) -> None:
    v.expand(2, *v.shape)[-1].copy_(v.exp())


def _transposed(v: torch.Tensor) -> None:
    v.expand(2, *v.shape).select(0, 1).t().fill_(1)


def _unbound(v: torch.Tensor) -> None:
    v.expand(2, *v.shape).unbind(0)[0].add_(1)


def _diagonal(v: torch.Tensor) -> None:
    v[0].expand(v.shape[1], -1).diagonal().mul_(2)


def _twice_expanded(v: torch.Tensor) -> None:
    v.expand(2, *v.shape)[1].expand(3, *v.shape)[2, 1:].sub_(4)


def _all_copies(v: torch.Tensor) -> None:
    v.expand(2, *v.shape).add_(1)


def _two_copies(v: torch.Tensor) -> None:
    v.expand(4, *v.shape)[1:3].add_(1)


WRITES = (
    *(_select, _part_of_a_copy, _expanded_inside, _slice_of_one, _item, _copied, _transposed),
    *(_unbound, _diagonal, _twice_expanded, _all_copies, _two_copies),
)


def _made_inside(write: Callable[[torch.Tensor], None]) -> Callable[..., Any]:
    def program(x: torch.Tensor) -> Any:
        v = x * 2
        copies = v.expand(3, *v.shape)
        write(v)
        return v, copies * 2

    return program


def _argument(write: Callable[[torch.Tensor], None]) -> Callable[..., Any]:
    def program(x: torch.Tensor) -> Any:
        v = x.detach()
        write(v)
        return v + 1

    return program


def _outcome(function: Callable[..., Any], needs_gradient: bool) -> Any:
    """The results, the argument behind the call and its gradient; of an error its message's beginning."""
    x = torch.arange(12.0).reshape(3, 4).requires_grad_(needs_gradient)
    try:
        results = function(x)
    except RuntimeError as error:
        return error.args[0][:11]  # views are named otherwise behind a break
    if needs_gradient and isinstance(results, tuple):
        (results[0].square().sum() + results[1].sum()).backward()
    return results, x, x.grad


def _compare(write: Callable[[torch.Tensor], None], form: Any, **options: Any) -> None:
    program = form(write)
    compiled = weft.compile(program, **options)
    for needs_gradient in (False, True):
        found, wanted = (_outcome(f, needs_gradient) for f in (compiled, program))
        if isinstance(found, str) or isinstance(wanted, str):
            assert found == wanted
        else:
            torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("form", [_made_inside, _argument])
def test_as_in_eager(write: Callable[[torch.Tensor], None], form: Any) -> None:
    _compare(write, form)


@pytest.mark.parametrize("write", [_expanded_inside, _diagonal, _twice_expanded])
def test_of_varying_sizes(write: Callable[[torch.Tensor], None]) -> None:
    _compare(write, _made_inside, dynamic=True)
