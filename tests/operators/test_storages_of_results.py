"""What shares storage in eager shares it compiled, and nothing else does: results, inputs and views of them.

Programs of operators that give back what they are given, or could: also written to inside and by the caller.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import weft

from tests.staged_backend import by_operators

Operator = Callable[[torch.Tensor], torch.Tensor]
MASK = torch.ones(3, 3, dtype=torch.bool)
NONE = torch.tensor([], dtype=torch.long)

OPERATORS: dict[str, Operator] = {
    "x * 1": lambda x: x * 1,
    "x / 1": lambda x: x / 1,
    "x + 0": lambda x: x + 0,
    "x - 0": lambda x: x - 0,
    "x ** 1": lambda x: x**1,
    "+x": lambda x: +x,
    "x + zeros": lambda x: x + torch.zeros_like(x),
    "x * ones": lambda x: x * torch.ones_like(x),
    "neg of neg": lambda x: x.neg().neg(),
    "to": lambda x: x.to(torch.float32),
    "to copy": lambda x: x.to(torch.float32, copy=True),
    "double and back": lambda x: x.double().float(),
    "clone": lambda x: x.clone(),
    "contiguous": lambda x: x.contiguous(),
    "contiguous of t": lambda x: x.t().contiguous().t(),
    "t.t": lambda x: x.t().t(),
    "expand": lambda x: x.expand(x.shape),
    "reshape": lambda x: x.reshape(x.shape),
    "view and back": lambda x: x.reshape(-1).reshape(x.shape),
    "reshape of t": lambda x: x.t().reshape(-1).reshape(x.shape),
    "flatten": lambda x: x.flatten(),
    "no dropout": lambda x: F.dropout(x, 0.0),
    "dropout in eval": lambda x: F.dropout(x, 0.5, training=False),
    "slice": lambda x: x[:, :],
    "narrow": lambda x: x.narrow(0, 0, 3),
    "select": lambda x: x[None][0],
    "cat": lambda x: torch.cat([x]),
    "cat with nothing": lambda x: torch.cat([x, x[:0]]),
    "stack": lambda x: torch.stack([x])[0],
    "where": lambda x: torch.where(MASK, x, x),
    "masked_fill": lambda x: x.masked_fill(~MASK, 1.0),
    "clamp": lambda x: x.clamp(min=-1e30),
    "index": lambda x: x[torch.arange(3)],
    "permute": lambda x: x.permute(0, 1),
    "repeat": lambda x: x.repeat(1, 1),
    "roll": lambda x: x.roll(0),
    "flip": lambda x: x.flip(0).flip(0),
    "pad": lambda x: F.pad(x, (0, 0)),
    "sum of one": lambda x: x[None].sum(0),
    "cumsum of one": lambda x: x[None].cumsum(0)[0],
    "max of one": lambda x: x[None].max(0)[0],
    "sort of one": lambda x: x[None].sort(0)[0],
    "max_pool": lambda x: F.max_pool2d(x[None], 1)[0],
    "detach": lambda x: x.detach(),
    "view_as": lambda x: x.view_as(x),
    "as_strided": lambda x: x.as_strided(x.shape, x.stride()),
    "diagonal": lambda x: x.diagonal(),
    "triu": lambda x: x.triu(-9),
    "maximum": lambda x: torch.maximum(x, x),
    "nothing added": lambda x: x.index_add(0, NONE, x[:0]),
    "written": lambda x: torch.empty_like(x).copy_(x),
    "written zeros": lambda x: torch.zeros_like(x).add_(x),
    "slice_scatter": lambda x: x.slice_scatter(x),
    "cpu": lambda x: x.cpu(),
    "channel_shuffle": lambda x: F.channel_shuffle(x[None, :, :, None], 3)[0, :, :, 0],
}


def written(f: Operator, x: torch.Tensor, first: bool) -> Any:
    y = x * 2
    z = f(y)
    (y if first else z.detach()).add_(1)
    return y, z


USES: dict[str, Callable[[Operator, torch.Tensor], Any]] = {
    "result": lambda f, x: f(x),
    "input and result": lambda f, x: (x, f(x)),
    "beside its operand": lambda f, x: (lambda y: (y, f(y)))(x.sin()),
    "two": lambda f, x: (f(x), f(x)),
    "views of two": lambda f, x: (f(x)[0], f(x)[1:]),
    "operand written": lambda f, x: written(f, x, True),
    "result written": lambda f, x: written(f, x, False),
    "part of one": lambda f, x: (lambda y: (y, f(y * 1).sin(), f(y)[1:]))(x + 1),
}


def places(tensors: list[torch.Tensor]) -> list[Any]:
    """Of each tensor: the first of the same object, of the same storage, and where it lies in that."""
    storages = [t.untyped_storage()._cdata for t in tensors]
    return [
        (
            next(k for k, other in enumerate(tensors) if other is t),
            storages.index(storage),
            t.storage_offset(),
            t.stride(),
            tuple(t.shape),
            t.requires_grad,
        )
        for t, storage in zip(tensors, storages, strict=True)
    ]


def outcome(run: Callable[[torch.Tensor], Any], kind: str) -> Any:
    """Where inputs and results lie, and their values after the caller has written to each result."""
    torch.manual_seed(0)
    x = torch.randn(3, 3)
    if kind == "transposed":
        x = x.t()
    if kind == "parameter":
        x = torch.nn.Parameter(x)
    try:
        results = run(x)
    except RuntimeError as error:
        return str(error)[:60]
    tensors = [x, *(results if isinstance(results, tuple) else (results,))]
    found = places(tensors)
    with torch.no_grad():
        for k, result in enumerate(tensors[1:]):
            result.add_(k + 1.0)
    return found, [t.detach().clone() for t in tensors]


def assert_like_eager(run: Callable[[torch.Tensor], Any], kind: str, backend: Any) -> None:
    expected = outcome(run, kind)
    found = outcome(weft.compile(run, backend=backend), kind)
    assert found[0] == expected[0]
    if not isinstance(expected, str):
        torch.testing.assert_close(found[1], expected[1])


@pytest.mark.parametrize("use", USES)
def test_storages(use: str) -> None:
    for f in OPERATORS.values():
        assert_like_eager(lambda x, f=f: USES[use](f, x), "parameter", by_operators)


@pytest.mark.parametrize("kind", ["plain", "transposed"])
def test_storages_without_gradients(kind: str) -> None:
    for f in OPERATORS.values():
        assert_like_eager(lambda x, f=f: USES["views of two"](f, x), kind, by_operators)


@pytest.mark.parametrize("kind", ["plain", "parameter"])
def test_storages_of_one_program(kind: str) -> None:
    """Many operators in one graph, by native code."""

    def run(x: torch.Tensor) -> Any:
        y = x.sin()
        return (
            x, y, x * 1, x / 1, x + 0, y + 0, y.clone(), y.t().t(), y[1:], y.max(0)[0],
            y.max(0)[0], torch.cat([x]), torch.where(y > 2, x, x), torch.empty_like(x).copy_(x)[1:],
            x.double().float(), x.expand(3, 3), F.dropout(y, 0.0), y.contiguous(), y.sort(0)[0][1:],
            y.sort(0)[0][:1], torch.zeros_like(x).add_(x), y[None].sum(0), x[torch.arange(3)],
        )  # fmt: skip

    expected = outcome(run, kind)
    found = outcome(weft.compile(run, fullgraph=True), kind)
    assert found[0] == expected[0]
    torch.testing.assert_close(found[1], expected[1])
