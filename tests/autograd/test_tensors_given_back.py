"""Functions that give back the tensor that they are given, or a copy: which one, and its flag, is eager's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import weft
from torch import Tensor
from weft.registry import codegens

from tests.fuzz.evaluated import EvaluatedCpp

CALLS: dict[str, Callable[[Tensor], Tensor]] = {
    "plain": torch.asarray,
    "with gradients": lambda x: torch.asarray(x, requires_grad=True),
    "without gradients": lambda x: torch.asarray(x, requires_grad=False),
    "a copy": lambda x: torch.asarray(x, copy=True),
    "a copy with gradients": lambda x: torch.asarray(x, copy=True, requires_grad=True),
    "no copy": lambda x: torch.asarray(x, copy=False),
    "another dtype": lambda x: torch.asarray(x, dtype=torch.float32),
    "as_tensor": torch.as_tensor,
    "lift_fresh": torch.ops.aten.lift_fresh,
    "contiguous": lambda x: x.contiguous(),
    "to": lambda x: x.to(torch.float64),
}


def of_an_argument(x: Tensor, call: Callable[[Tensor], Tensor]) -> Any:
    y = call(x)
    return y, y * 2, y is x


def under_no_grad(x: Tensor, call: Callable[[Tensor], Tensor]) -> Any:
    with torch.no_grad():
        y = call(x)
    return y, y * 2, y is x


def of_a_result(x: Tensor, call: Callable[[Tensor], Tensor]) -> Any:
    h = x * 3
    y = call(h)
    return y, y * 2, h * 2, y is h


def written(x: Tensor, call: Callable[[Tensor], Tensor]) -> Any:
    y = call(x * 3)
    with torch.no_grad():
        y.add_(1)
    return y, y * 2


PROGRAMS = (of_an_argument, under_no_grad, of_a_result, written)


def observed(function: Callable[[Tensor], Any], of: str) -> Any:
    leaf = torch.arange(1.0, 4.0, dtype=torch.float64, requires_grad=of != "no gradients")
    x = leaf * 1 if of == "a result" else leaf
    found = [*function(x), x]
    tensors = [t for t in found if isinstance(t, Tensor)]
    roots = [t for t in tensors if t.requires_grad and not t.is_leaf]
    told = [(t.tolist(), t.requires_grad, t.is_leaf, t.dtype, t._version) for t in tensors]
    leaves = [leaf] if leaf.requires_grad else []
    weights = [torch.ones_like(root) for root in roots]
    given = torch.autograd.grad(roots, leaves, weights) if roots and leaves else ()
    return told, [t for t in found if not isinstance(t, Tensor)], [g.tolist() for g in given]


@pytest.mark.filterwarnings("ignore:torch.asarray")
@pytest.mark.parametrize("of", ["a leaf", "a result", "no gradients"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
@pytest.mark.parametrize("name", CALLS)
def test_as_in_eager(
    name: str, program: Callable[..., Any], of: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(codegens, "cpu", EvaluatedCpp)

    def around(x: Tensor) -> Any:
        return program(x, CALLS[name])

    try:
        wanted = observed(around, of)
    except RuntimeError as error:
        pytest.skip(f"eager raises: {error}")
    compiled = weft.compile(around)
    for _ in range(2):
        assert observed(compiled, of) == wanted
