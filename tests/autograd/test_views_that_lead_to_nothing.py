"""Views made without gradients: they require some as what they are of does, and lead to nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import weft
from torch import Tensor

pytestmark = pytest.mark.native


def alone(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    h = x * 2
    with torch.no_grad():
        v = h[-1]
    return v.unsqueeze(0), v * 2


def beside_another(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    h = x * 2
    with torch.no_grad():
        v = h[-1]
    return v.unsqueeze(0), y * 3


def of_both(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    h = x * y
    with torch.no_grad():
        v = h[-1]
    return v.unsqueeze(0), y * 3, v[1:]


def of_two(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    h, k = x * y, y.exp()
    with torch.no_grad():
        v, w = h[-1], k.t()
    return v.unsqueeze(0), w[:1], w * 2


def beside_what_leads(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    h = x * 2
    with torch.no_grad():
        v = h[-1]
    return v.unsqueeze(0), h * y, v[0]


def of_what_is_written(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    h = (x * y).exp()
    with torch.no_grad():
        y.mul_(2)
        v = h[-1:]
    w = v.unsqueeze(0)
    return w.exp(), w[0], torch.rsqrt(v.abs() + 1)


PROGRAMS = [alone, beside_another, of_both, of_two, beside_what_leads, of_what_is_written]


def gradients(
    function: Callable[..., Any], results: tuple[int, ...], leaves: bool
) -> tuple[list[Any], str]:
    given = [torch.arange(1.0, 7.0).view(2, 3).div_(k + 3).requires_grad_() for k in range(2)]
    given = given if leaves else [value * 1 for value in given]
    found = function(*given)
    wanted = [found[k].sum() for k in results if k < len(found)]
    try:
        return [
            [(value.requires_grad, value.is_leaf) for value in found],
            *torch.autograd.grad(wanted, given, allow_unused=True),
        ], ""
    except RuntimeError:
        return [], "raised"


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
@pytest.mark.parametrize("leaves", [True, False])
@pytest.mark.parametrize("dynamic", [None, True])
def test_what_they_lead_to_has_no_gradient(
    program: Callable[..., Any], leaves: bool, dynamic: bool | None
) -> None:
    compiled = weft.compile(program, dynamic=dynamic)
    for results in ((0,), (1,), (0, 1), (0, 1, 2)):
        want, got = (gradients(f, results, leaves) for f in (program, compiled))
        assert [type(part) for part in got[0]] == [type(part) for part in want[0]]
        assert got[1] == want[1]
        for left, right in zip(got[0], want[0], strict=True):
            if isinstance(right, Tensor):
                torch.testing.assert_close(left, right)
            else:
                assert left == right
