"""What ``torch.inference_mode`` gives beside other tensors: flags, kinds of tensors and views as eager's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import weft
from torch import Tensor
from weft.registry import codegens

from tests.fuzz.evaluated import EvaluatedCpp

PROGRAMS: dict[str, Callable[[Tensor], Any]] = {
    "views of an argument and of a result": lambda x: (x.t()[0], x.exp().t(), x),
    "expanded": lambda x: (x[0].expand(2, 4), x.exp()[0].expand(2, 4)),
    "split": lambda x: x.split(1) + x.exp().split(1),
    "unbound": lambda x: x.unbind() + x.exp().unbind(),
    "chunks": lambda x: x.chunk(2, 1) + x.exp().chunk(2, 1),
    "diagonals": lambda x: (x.diagonal(), x.exp().diagonal()),
    "by strides": lambda x: (x.as_strided((3,), (1,)), x.exp().as_strided((3,), (1,))),
    "turned": lambda x: (x.T, x.mT, x.swapdims(0, 1), x.movedim(0, 1)),
    "turned, of a result": lambda x: (lambda y: (y, y.T, y.mT))(x.exp()),
    "of other ranks": lambda x: (x.flatten(), x.unflatten(0, (3, 1)), x.squeeze(), x.reshape(-1)),
    "as another": lambda x: (x.view_as(x.exp()), x.expand_as(x), x.contiguous()),
    "parts of one": lambda x: (x[0], x[1], x[0][1:], x.select(0, 2)),
    "scattered": lambda x: torch.slice_scatter(x, x[:1] * 2, 0, 0, 1),
    "written through a view": lambda x: (x.flatten().mul_(2), x.T.add_(1)),
    "required gradients": lambda x: x.exp().requires_grad_(),
    "a parameter": lambda x: torch.nn.Parameter(x.exp()),
}


def asked(x: Tensor) -> Any:
    views = (x.reshape(-1), x.T, x.view_as(x), x.chunk(2)[0], x.split(1)[0], x.flatten(), x[0])
    return [(v.requires_grad, v._is_view(), v.is_inference(), v.is_leaf) for v in views]


def given(kind: str, inside: bool) -> Tensor:
    with torch.inference_mode(inside):
        x = torch.arange(12.0).view(3, 4).clone()
        return x.requires_grad_(kind == "requires gradients")


def facts(result: Any) -> Any:
    """Everything there is to see of tensors but the memory that they share, which others test."""
    if isinstance(result, (list, tuple)):
        return [facts(part) for part in result]
    if not isinstance(result, Tensor):
        return result
    version = None if result.is_inference() else result._version
    told = result.is_inference(), result._is_view(), version, result.stride(), type(result)
    try:  # a view of what was written to since says that it is forbidden
        told = *told, result.requires_grad, result.is_leaf
    except RuntimeError as error:
        told = *told, str(error)
    return *told, result.detach().tolist()


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "varying"])
@pytest.mark.parametrize("kind", ["plain", "requires gradients"])
@pytest.mark.parametrize("name", [*PROGRAMS, "asked"])
def test_results_are_as_eagers(
    name: str, kind: str, dynamic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(codegens, "cpu", EvaluatedCpp)
    program = PROGRAMS.get(name, asked)

    @torch.inference_mode()
    def around(x: Tensor) -> Any:
        return program(x)

    for function in (around, program):
        compiled = weft.compile(function, dynamic=dynamic)
        for inside in (False, True):
            for _ in range(2):
                x, y = given(kind, inside), given(kind, inside)
                with torch.inference_mode(inside or function is program):
                    assert facts((compiled(x), x)) == facts((function(y), y))
