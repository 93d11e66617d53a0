"""What has computed the arguments: backward goes there only from results that depend on it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import weft
from torch import Tensor

LEAVES = 3
Log = list[tuple[Any, ...]]


class Logged(torch.autograd.Function):
    """Doubles; notes each backward, which gets zeros where a node before it gives no gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, log: Log, name: int) -> Tensor:
        ctx.log, ctx.name = log, name
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        ctx.log.append((ctx.name, gradient.detach().clone()))
        return gradient * 2, None, None


def logged(leaves: Sequence[Tensor], log: Log) -> list[Tensor]:
    return [Logged.apply(leaf, log, k) for k, leaf in enumerate(leaves)]  # type: ignore[no-untyped-call]


def hooked(leaves: Sequence[Tensor], log: Log) -> list[Tensor]:
    given = [leaf.sin() for leaf in leaves]
    for k, x in enumerate(given):
        x.register_hook(lambda g, k=k: log.append((k, g if g is None else g.detach().clone())))
    return given


def hooked_and_written(leaves: Sequence[Tensor], log: Log) -> list[Tensor]:
    return [x.mul_(2) for x in hooked(leaves, log)]


def freed(leaves: Sequence[Tensor], log: Log) -> list[Tensor]:
    """The second and the third can't be differentiated: what they saved is gone."""
    given = [leaf.exp() for leaf in leaves]
    for x in given[1:]:
        x.sum().backward()
    return given


def written(leaves: Sequence[Tensor], log: Log) -> list[Tensor]:
    """The first and the third can't be differentiated: what they saved was written to."""
    saved = [leaf.exp() for leaf in leaves]
    given = [x * 2 for x in saved]
    for x in saved[::2]:
        x.detach().zero_()
    return given


def plain(leaves: Sequence[Tensor], log: Log) -> list[Tensor]:
    return [leaf * 1.5 for leaf in leaves]


def apart(x: Tensor, y: Tensor, z: Tensor) -> Sequence[Tensor]:
    return x.sin(), y.cos() * y, z * 2


def mixed(x: Tensor, y: Tensor, z: Tensor) -> Sequence[Tensor]:
    h = x.tanh()
    return h * y, h.exp(), (y * z).sum(), x * y * z


def updated(x: Tensor, y: Tensor, z: Tensor) -> Sequence[Tensor]:
    y.mul_(z)
    return x.exp() * 2, y.sin(), x[1:], y


def written_out_of_sight(x: Tensor, y: Tensor, z: Tensor) -> Sequence[Tensor]:
    """No result depends on what was written to but ``z`` itself, whose history stays the caller's."""
    y.data.add_(1)
    z.detach().mul_(0.5)
    with torch.no_grad():
        y.sigmoid_()
    return x * x, x.exp(), z


PROGRAMS = [apart, mixed, updated, written_out_of_sight]
ORIGINS = [plain, logged, hooked, hooked_and_written, freed, written]


def observed(
    function: Callable[..., Sequence[Tensor]],
    origin: Callable[..., list[Tensor]],
    differentiate: Callable[[Tensor, list[Tensor], list[Tensor]], Any],
    used: Sequence[int],
) -> Any:
    """Gradients, or what sort of error it is, and what hooks and functions were given."""
    log: Log = []
    generator = torch.Generator().manual_seed(0)
    leaves = [torch.rand(3, generator=generator, requires_grad=True) for _ in range(LEAVES)]
    given = origin(leaves, log)
    for leaf in leaves:
        leaf.grad = None
    results = function(*given)
    loss = torch.stack([(results[k] * (k + 1)).sum() for k in used]).sum()
    try:
        found = differentiate(loss, leaves, given)
    except RuntimeError as error:
        told = ("second time", "modified by an inplace operation", "does not require grad")
        found = next(text for text in told if text in str(error))
    if not isinstance(found, str):
        found = [None if g is None else g.detach() for g in found]
    return found, sorted(log, key=lambda row: row[0])


def by_backward(loss: Tensor, leaves: list[Tensor], given: list[Tensor]) -> Any:
    loss.backward()
    return [leaf.grad for leaf in leaves]


def twice(loss: Tensor, leaves: list[Tensor], given: list[Tensor]) -> Any:
    loss.backward(retain_graph=True)
    return by_backward(loss, leaves, given)


def of_leaves(loss: Tensor, leaves: list[Tensor], given: list[Tensor]) -> Any:
    return torch.autograd.grad(loss, leaves, allow_unused=True)


def of_one(loss: Tensor, leaves: list[Tensor], given: list[Tensor]) -> Any:
    return torch.autograd.grad(loss, leaves[1:2], allow_unused=True)


def of_arguments(loss: Tensor, leaves: list[Tensor], given: list[Tensor]) -> Any:
    return torch.autograd.grad(loss, [given[0], given[2]], allow_unused=True)


def of_gradients(loss: Tensor, leaves: list[Tensor], given: list[Tensor]) -> Any:
    first = torch.autograd.grad(loss, leaves, allow_unused=True, create_graph=True)
    squares = [g.square().sum() for g in first if g is not None]
    return [*first, *torch.autograd.grad(sum(squares), leaves, allow_unused=True)]


WAYS = [by_backward, twice, of_leaves, of_one, of_arguments, of_gradients]


@pytest.mark.parametrize("origin", ORIGINS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_only_what_leads_to_a_result_is_visited(
    program: Callable[..., Sequence[Tensor]], origin: Callable[..., list[Tensor]]
) -> None:
    compiled = weft.compile(program)
    for differentiate in WAYS:
        if program in (updated, written_out_of_sight) and differentiate is of_gradients:
            continue  # refused, as the graph writes to its inputs
        count = 3 if program in (apart, written_out_of_sight) else 4
        for used in itertools.chain.from_iterable(
            itertools.combinations(range(count), n) for n in (1, 2, 3)
        ):
            want = observed(program, origin, differentiate, used)
            got = observed(compiled, origin, differentiate, used)
            told = f"{differentiate.__name__} of results {used}: {got} where eager has {want}"
            assert isinstance(got[0], str) == isinstance(want[0], str), told
            if isinstance(want[0], str):
                assert got[0] == want[0], told
            else:
                torch.testing.assert_close(got, want, msg=told)


def writes_and_returns(weight: Tensor, x: Tensor, y: Tensor) -> Tensor:
    result = y * weight
    x.mul_(-1.25)
    return result


@pytest.mark.parametrize("is_view", [False, True])
def test_a_write_is_not_visited_for_leaves_that_it_does_not_lead_to(is_view: bool) -> None:
    """A first backward lets go of the node of the write to a view."""
    told = []
    for run in (writes_and_returns, weft.compile(writes_and_returns)):
        weight = torch.tensor(0.75, requires_grad=True)
        leaf = torch.linspace(-1, 2, 4).requires_grad_()
        given = leaf + 1
        x = given[1:] if is_view else given
        result = run(weight, x, torch.arange(3.0))
        first = torch.autograd.grad(x.sum(), leaf)[0].tolist()
        second = torch.autograd.grad([result.sum(), x.sum()], weight)[0].item()
        told.append((first, second, x.tolist()))
    assert told[1] == told[0]


def _of_a_view_without_gradients(x: Tensor) -> Tensor:
    """Has a history that leads nowhere: autograd takes the view for a leaf."""
    with torch.no_grad():
        part = x.split(2, 0)[-1]
    return torch.where(part > 0, part, part)


def leads_nowhere_alone(x: Tensor) -> tuple[Tensor, ...]:
    return (_of_a_view_without_gradients(x),)


def test_what_follows_a_result_that_leads_nowhere() -> None:
    """Nothing behind it is visited for what it was not computed from: neither hooks nor errors there."""

    def seen(function: Callable[[Tensor], tuple[Tensor, ...]]) -> Any:
        x = torch.linspace(0.1, 2, 3, requires_grad=True)
        first, *others = function(x)
        assert first.requires_grad and not first.is_leaf
        follows = first.softmax(0)
        told: list[str] = []
        follows.register_hook(lambda gradient: told.append("visited"))
        result = follows.neg()
        held = result.exp()
        with torch.no_grad():
            held.mul_(2)  # which backward would refuse
        roots = [held.sum(), *(other.sum() for other in others)]
        return torch.autograd.grad(roots, x, allow_unused=True), told

    found = seen(weft.compile(leads_nowhere_alone, fullgraph=True))
    wanted = seen(leads_nowhere_alone)
    assert found[1] == wanted[1] == []
    torch.testing.assert_close(found[0], wanted[0])
