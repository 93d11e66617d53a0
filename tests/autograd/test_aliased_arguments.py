"""Arguments that are views of one another, written through one of them behind autograd's back or with it.

Each program is compiled once and called with arguments that alias each other in other ways in each call;
results, flags and gradients are eager's.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import weft
from torch import Tensor

Pair = tuple[Tensor, Tensor]

# Two arguments of a contiguous square matrix, which is a leaf or computed from one.
ALIASES: dict[str, Callable[[Tensor], Pair]] = {
    "apart": lambda m: (m, m.detach().clone()),
    "one tensor": lambda m: (m, m),
    "a view": lambda m: (m, m.view_as(m)),
    "transposed": lambda m: (m, m.t()),
    "detached": lambda m: (m, m.detach()),
    "detached first": lambda m: (m.detach(), m),
    "two windows": lambda m: (m[:-1, :-1], m[1:, 1:]),
    "parts": lambda m: (m[:2, :2], m[2:, 2:]) if len(m) > 3 else (m[:1], m[1:]),
    "a detached window": lambda m: (m[1:, 1:], m.detach()[1:, 1:]),
    "computed": lambda m: (m, m * 1),
}


def through_no_grad(x: Tensor) -> None:
    with torch.no_grad():
        x.mul_(0.5)


def through_a_view_under_no_grad(x: Tensor) -> None:
    with torch.no_grad():
        view = x[:1]
    view.data.zero_()


WRITES: dict[str, Callable[[Tensor], Any]] = {
    "detach": lambda x: x.detach().zero_(),
    "detach of a row": lambda x: x.detach()[0].fill_(0.25),
    "data": lambda x: x.data.mul_(2),
    "row of data": lambda x: x[0].data.add_(1),
    "no_grad": through_no_grad,
    "a view under no_grad": through_a_view_under_no_grad,
    "with gradients": lambda x: x.mul_(x.cos()),
    "a row with gradients": lambda x: x[0].mul_(2),
}

READS: tuple[Callable[[Tensor, Tensor, Tensor], Tensor], ...] = (
    lambda v, x, y: F.scaled_dot_product_attention(v, v, x) * y.mean(),
    lambda v, x, y: v * x * y.sum(),
    lambda v, x, y: v @ x.sin() + y.sum(),
    lambda v, x, y: F.linear(x, v) * y.exp().mean(),
    lambda v, x, y: (v * x).softmax(-1) - y.sum(),
    lambda v, x, y: F.layer_norm(x, x.shape[-1:]) * (v + 1) * y.mean(),
    lambda v, x, y: F.conv1d(x[None], (v + 1)[..., None]) + y.sum(),
)

TAKES: dict[str, Callable[[Tensor], Tensor]] = {
    "detach": lambda x: x.detach(),
    "data": lambda x: x.data,
    "itself": lambda x: x,
}


CALLS = 7
"""How many calls a program gets, from another way on in each."""


def cases() -> Iterator[Any]:
    for k, (write, take, read, second) in enumerate(
        itertools.product(WRITES, TAKES, range(len(READS)), (False, True))
    ):
        marks = [pytest.mark.slow] if k % 41 else []
        yield pytest.param(write, take, read, second, k, marks=marks)


def observed(function: Callable[[Tensor, Tensor], Tensor], alias: str, of: str, size: int) -> Any:
    """Flags; the result and the memory; gradients of the result, and of the arguments behind it."""
    leaf = torch.linspace(-1, 2, size * size, dtype=torch.float64).view(size, size).clone()
    leaf.requires_grad_(of != "no gradients")
    memory = leaf * 1 if of == "a result" else leaf
    x, y = ALIASES[alias](memory)
    try:
        result = function(x, y)
        found = [result, x, y]
        flags = [(t.requires_grad, t.is_leaf) for t in found]
        roots = [t for t in found if t.requires_grad and not t.is_leaf]
        weights = [torch.linspace(0.5, 1.5, t.numel(), dtype=t.dtype).view(t.shape) for t in roots]
        given = torch.autograd.grad(roots, [leaf], weights, allow_unused=True) if roots else ()
    except RuntimeError as error:
        return re.sub(r"\W.*", "", str(error))
    return [flags, result.detach(), memory.detach(), *given]


@pytest.mark.filterwarnings("ignore:.*The graph runs eagerly")
@pytest.mark.parametrize(("write", "take", "read", "second", "first"), list(cases()))
def test_as_in_eager(write: str, take: str, read: int, second: bool, first: int) -> None:
    def program(x: Tensor, y: Tensor) -> Tensor:
        if second:
            x, y = y, x
        before = x.exp()
        v = TAKES[take](x)
        WRITES[write](v if take == "detach" else x)
        return READS[read](v, x, y) + before.sum()

    compiled = weft.compile(program, options={"strict": False, "verify": True})
    every = itertools.product(ALIASES, ("a result", "a leaf", "no gradients"), (4, 5))
    step = 7  # of 60, which it does not divide: each way comes after others
    order = list(every)
    for k in range(first, first + CALLS * step, step):
        alias, of, size = order[k % len(order)]
        wanted = observed(program, alias, of, size)
        found = observed(compiled, alias, of, size)
        told = f"{alias} of {of}, {size}"
        if isinstance(wanted, str):
            continue  # what eager refuses a graph may give, as it may have kept the value
        assert not isinstance(found, str), told
        assert found[0] == wanted[0], told
        for mine, plain in zip(found[1:], wanted[1:], strict=True):
            assert (mine is None) == (plain is None), told
            if plain is not None:
                torch.testing.assert_close(mine, plain, msg=told)
