"""``as_strided`` reads past the view that it is of, and gives gradients no way past it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import weft
from torch import Tensor
from weft.registry import codegens

from tests.fuzz.evaluated import EvaluatedCpp


def again(view: Tensor) -> Tensor:
    return view.as_strided(view.shape, view.stride(), view.storage_offset())


def detached_argument(p: Tensor, x: Tensor) -> Any:
    return again(p.detach()[1:]) * x


def detached_part(p: Tensor, x: Tensor) -> Any:
    return again((p * 2)[1:].detach()) * x


def data_of_a_result(p: Tensor, x: Tensor) -> Any:
    y = p * 2
    return again(y.data[1:]) * x, y


def made_without_gradients(p: Tensor, x: Tensor) -> Any:
    with torch.no_grad():
        part = p[1:]
    return again(part) * x


def of_a_result_without_gradients(p: Tensor, x: Tensor) -> Any:
    y = p * 2
    with torch.no_grad():
        part = y[1:]
    return again(part).double() * x, y


def with_a_history(p: Tensor, x: Tensor) -> Any:
    y = p * 2
    return again(y[1:]) * x, again(p[1:]) * x


def detached_behind_it(p: Tensor, x: Tensor) -> Any:
    return again(p[1:]).detach() * x, again(p[1:]) * x


def written(p: Tensor, x: Tensor) -> Any:
    y = p * 2
    part = again(y.detach()[1:])
    part.mul_(3)
    return part * x, y


def written_with_gradients(p: Tensor, x: Tensor) -> Any:
    y = p.detach() * 2
    part = again(y[1:])
    part.mul_(x)
    return part, y, p * 2


PROGRAMS = [
    detached_argument, detached_part, data_of_a_result, made_without_gradients,
    of_a_result_without_gradients, with_a_history, detached_behind_it, written, written_with_gradients,
]  # fmt: skip


@pytest.mark.parametrize("with_gradients", [(True, True), (True, False), (False, True)])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_gradients_are_eagers(
    program: Callable[[Tensor, Tensor], Any],
    with_gradients: tuple[bool, bool],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(codegens, "cpu", EvaluatedCpp)
    found: list[Any] = []
    for function in (program, weft.compile(program)):
        values = torch.arange(6.0, dtype=torch.float64).view(2, 3) + 1
        p = values.clone().requires_grad_(with_gradients[0])
        x = values[:1].clone().requires_grad_(with_gradients[1])
        results = function(p, x)
        results = results if isinstance(results, tuple) else (results,)
        flags = [result.requires_grad for result in results]
        sums = [(r * r).sum() for r in results if r.requires_grad]
        if sums:
            torch.stack(sums).sum().backward()
        found.append((flags, [r.tolist() for r in results], p.grad, x.grad))
    torch.testing.assert_close(found[1], found[0])
