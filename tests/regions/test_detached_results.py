"""What regions give that is detached from an argument, then written to: data changes, histories stay.

A write to ``x.detach()`` changes ``x`` and leaves its gradient, through whichever loop or branch it has come.
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

Take = Callable[[Tensor], Tensor]


def without_gradients(x: Tensor) -> Tensor:
    with torch.no_grad():
        return x.view_as(x)


TAKES: dict[str, Take] = {
    "detach": lambda x: x.detach(),
    "data": lambda x: x.data,
    "detach of a view": lambda x: x.view(4, 4).detach(),
    "view of detach": lambda x: x.detach().view(4, 4),
    "view under no_grad": without_gradients,
    "itself": lambda x: x,
    "a view": lambda x: x.view(4, 4),
    "copy": lambda x: x.detach().clone(),
}


def looped(take: Take, x: Tensor, w: Tensor, n: int) -> Tensor:
    v = x * 1
    for _ in range(n % 9):
        v = take(x)
    return v


def handed_on(take: Take, x: Tensor, w: Tensor, n: int) -> Tensor:
    v = x
    for _ in range(n):
        v = take(v)
    return v


def chosen(take: Take, x: Tensor, w: Tensor, n: int) -> Tensor:
    return take(x) if x.sum() > 0 else w.detach().clone()


def chosen_beside_gradients(take: Take, x: Tensor, w: Tensor, n: int) -> Tensor:
    return take(x) if x.sum() > 0 else w * 2


def chosen_of_one(take: Take, x: Tensor, w: Tensor, n: int) -> Tensor:
    return take(x) if x.sum() > 0 else x


def chosen_before(take: Take, x: Tensor, w: Tensor, n: int) -> Tensor:
    v, other = take(x), w.detach().clone()
    return v if x.sum() > 0 else other


def chosen_from_arguments(take: Take, x: Tensor, w: Tensor, n: int) -> Tensor:
    v = take(x)
    return v if x.sum() > 0 else w * 2


def nested(take: Take, x: Tensor, w: Tensor, n: int) -> Tensor:
    v = torch.zeros_like(x)
    for _ in range(n):
        v = take(x) if x[0, 0] > 0 else v
    return v


REGIONS = (
    looped, handed_on, chosen, chosen_beside_gradients, chosen_of_one, chosen_before,
    chosen_from_arguments, nested,
)  # fmt: skip


def under_no_grad(v: Tensor, w: Tensor) -> None:
    with torch.no_grad():
        v.mul_(w)


def in_a_loop(v: Tensor, w: Tensor) -> None:
    for t in range(w.shape[0]):
        v[t] = 0.25


def in_a_branch(v: Tensor, w: Tensor) -> None:
    if w[0, 0] > 0:
        v.mul_(2)


WRITES: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "zero_": lambda v, w: v.zero_(),
    "mul_ a number": lambda v, w: v.mul_(0.5),
    "mul_ what has gradients": lambda v, w: v.mul_(w),
    "copy_ plain": lambda v, w: v.copy_(w.detach()),
    "a row": lambda v, w: v[1].fill_(0.25),
    "data": lambda v, w: v.data.add_(1),
    "under no_grad": under_no_grad,
    "in a loop": in_a_loop,
    "in a branch": in_a_branch,
}

READS: tuple[Callable[[Tensor, Tensor], Tensor], ...] = (
    lambda v, x: F.scaled_dot_product_attention(v, v, x),
    lambda v, x: F.scaled_dot_product_attention(x, v, v),
    lambda v, x: (v + 1) * x,
    lambda v, x: (v + 1) @ x.sin(),
    lambda v, x: F.linear(x, v) + x.exp(),
    lambda v, x: (v * x).softmax(-1),
    lambda v, x: F.layer_norm(x, (4,)) * (v + 1),
    lambda v, x: F.conv1d(x[None], (v + 1)[..., None].expand(4, 4, 3)),
)


SAMPLED = 17
"""One case in so many runs by default: a number that divides none of the tables, so that all of each come."""


def cases() -> Iterator[Any]:
    """Every way of a region and of taking beside every write; what reads then goes round."""
    every = itertools.product(REGIONS, TAKES, WRITES)
    for k, (region, take, write) in enumerate(every):
        marks = [pytest.mark.slow] if k % SAMPLED else []
        yield pytest.param(region, take, write, READS[k % len(READS)], marks=marks)


def observed(function: Callable[..., Any], sign: float, n: int, gradients: bool) -> list[Any]:
    """The result, both arguments and the leaves' gradients; an error's text in their stead."""
    leaves = [torch.linspace(-1, 2, 16, dtype=torch.float64).view(4, 4) * sign for _ in range(2)]
    leaves[1] = leaves[1].abs() + 0.5
    for leaf in leaves:
        leaf.requires_grad_(gradients)
    x, w = leaves[0] * 1, leaves[1] * 2
    try:
        result = function(x, w, n)
        found = [result, x, w]
        flags = [t.requires_grad for t in found]
        roots = [t for t in found if t.requires_grad]
        weights = [torch.linspace(0.5, 1.5, t.numel(), dtype=t.dtype).view(t.shape) for t in roots]
        wanted = leaves if gradients else []
        given = torch.autograd.grad(roots, wanted, weights, allow_unused=True) if roots else ()
    except RuntimeError as error:
        return [re.sub(r"\n.*|Output .* is a", "", str(error))[:60]]
    return [flags, *(t.detach() for t in found), *given]


@pytest.mark.filterwarnings("ignore:.*The graph runs eagerly")
@pytest.mark.parametrize("region", [chosen, looped])
@pytest.mark.parametrize("write", ["in a branch", "in a loop"])
def test_writes_of_regions_to_what_may_be_an_argument(region: Any, write: str) -> None:
    check_as_in_eager(region, "itself", write, READS[2])


@pytest.mark.filterwarnings("ignore:.*The graph runs eagerly")
@pytest.mark.parametrize(("region", "take", "write", "read"), list(cases()))
def test_as_in_eager(region: Any, take: str, write: str, read: Any) -> None:
    check_as_in_eager(region, take, write, read)


def check_as_in_eager(region: Any, take: str, write: str, read: Any) -> None:
    def program(x: Tensor, w: Tensor, n: int) -> Tensor:
        v = region(TAKES[take], x, w, n)
        WRITES[write](v, w)
        result: Tensor = read(v, x)
        return result

    # what is refused without control flow, too, runs as written
    compiled = weft.compile(program, options={"strict": False, "verify": True})
    for sign, n, gradients in ((1.0, 1, True), (1.0, 3, True), (-1.0, 4, True), (1.0, 2, False)):
        wanted = observed(program, sign, n, gradients)
        found = observed(compiled, sign, n, gradients)
        if isinstance(wanted[0], str):
            continue  # what eager refuses a graph may give, as it may have kept the value
        assert found[0] == wanted[0]
        for mine, plain in zip(found[1:], wanted[1:], strict=True):
            assert (mine is None) == (plain is None)
            if plain is not None:
                torch.testing.assert_close(mine, plain)
