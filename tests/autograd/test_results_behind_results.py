"""Results that lead through others of the same graph, as the keys of each layer do through those before."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import weft
from torch import Tensor

Function = Callable[..., Sequence[Tensor]]


def layers(x: Tensor, w: Tensor) -> Sequence[Tensor]:
    """Keys and values of four layers, of which one has values beside, and a loss."""
    kept = []
    for number in range(4):
        keys, values = torch.tanh(x @ w), (x * w.sum(0)).sin()
        kept += [keys, values]
        if number == 2:
            kept.append(w.cos())  # leads through nothing
        x = x + keys * values
    return *kept, x.square().sum()


def written(x: Tensor, w: Tensor) -> Sequence[Tensor]:
    """The same through a new value of an argument."""
    keys = torch.tanh(2 * x @ w)
    x.mul_(keys)
    values = torch.sin(3 * x @ w)
    x.add_(values)
    return keys, values, (x * values).cos(), x.square().sum()


def in_regions(x: Tensor, w: Tensor) -> Sequence[Tensor]:
    """The same through a loop and through branches, one of which leads through nothing."""
    keys = torch.tanh(x @ w)
    values = keys
    for _ in range(25):
        values = (values * w).sin() + x
    chosen = values * 2 if values.sum() > 100 else keys * 3
    other = chosen.cos() if x.sum() > -100 else w.sin()
    return keys, values, chosen, other.square().sum()


def views(x: Tensor, w: Tensor) -> Sequence[Tensor]:
    """Through views of an argument and of a result, and views of these."""
    turned = w.t()
    part = turned[:, 1:]
    h = x @ turned
    rows = h[1:]
    corner = rows.mul(2)[:, 1:] + rows[:, 1:]
    inner = rows[:, 1:]
    return inner.sin(), turned, (x @ part).cos(), rows, h, part, inner, corner * inner


def views_alone(x: Tensor, w: Tensor) -> Sequence[Tensor]:
    """Through views of what is not returned itself, which leads through a result, and expanded ones."""
    keys = torch.tanh(x @ w)
    h = keys * 2
    first, last = h[0], h[1:]
    wide = h[:, :1].expand(3, 2)
    return first.sin(), keys, last, (wide * 3).cos(), first, last[0] * first, wide


def views_written(x: Tensor, w: Tensor) -> Sequence[Tensor]:
    """Through views of an argument's new value, and of a result that was written to by one."""
    before = x.t()
    early = before.exp()
    x.mul_(w)
    after = x[:, 1:]
    h = x @ w
    h[0].mul_(2)
    row = h[0]
    return early, (after * 2).sin(), before, after, row.cos() * after.sum(), row, h


def views_of_complex(x: Tensor, w: Tensor) -> Sequence[Tensor]:
    """Through views that read memory as another dtype."""
    z = torch.complex(x, w @ x)
    pairs = torch.view_as_real(z)
    real, imaginary = pairs[..., 0], pairs.select(-1, 1)
    turned = z.mH
    column = turned[:, 0]
    lengths = torch.view_as_real(column * 2).sum(-1)
    return pairs.sin().sum(-1), real, imaginary * real, imaginary, pairs, lengths, turned.abs()


def views_of_batches(x: Tensor, w: Tensor) -> Sequence[Tensor]:
    """Through views of what matmul gives as a view of another product, which autograd does not know."""
    keys = torch.stack([x, x * 2]).sin()
    h = keys @ w
    first, last = h[0], h[:, 1:]
    own = keys.square() @ w
    turned = own.mT
    return (first * 3).sum(0), keys, last.cos(), first, last, own.sin(), turned, turned.exp(), own


VIEWS = [views, views_alone, views_written, views_of_complex, views_of_batches]


def arguments() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x, w = (torch.randn(3, 3, generator=generator, requires_grad=True) for _ in range(2))
    return x, w, x * 1


def results_and_leaves(program: Function) -> tuple[list[Tensor], list[Tensor]]:
    x, w, given = arguments()
    return [*program(given, w)], [x, w]


def asked_for(program: Function, result: int, wanted: Sequence[int], create_graph: bool) -> Any:
    """The gradients that ``torch.autograd.grad`` gives of some results and all leaves by another's."""
    results, leaves = results_and_leaves(program)
    inputs = [results[k] for k in wanted]
    seed = results[result].sum()
    found = torch.autograd.grad(seed, inputs, create_graph=create_graph, allow_unused=True)
    if create_graph:
        given = [g for g in found if g is not None and g.requires_grad]
        if given:
            total = torch.stack([g.square().sum() for g in given]).sum()
            found += torch.autograd.grad(total, leaves, allow_unused=True)
    return found


def hooked(program: Function, hooked: Sequence[int], used: Sequence[int], keeps: bool) -> Any:
    """What hooks of some results are called with, in backward of others, and the leaves' gradients."""
    results, leaves = results_and_leaves(program)
    called: list[tuple[int, Tensor]] = []
    retaining = []

    def note(k: int, gradient: Tensor | None) -> None:
        if gradient is not None:
            called.append((k, gradient.clone()))

    for k in hooked:
        assert results[k].requires_grad == (results[k].grad_fn is not None)  # else torch crashes
        results[k].register_hook(functools.partial(note, k))
        if keeps:
            results[k].retain_grad()
            retaining.append(results[k])
    loss = torch.stack([results[k].sum() * (k + 1) for k in used]).sum()
    del results
    loss.backward()
    seen = sorted(called, key=lambda call: call[0])
    return seen, [r.grad for r in retaining], [leaf.grad for leaf in leaves]


def assert_same(got: Any, want: Any) -> None:
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("program", [layers, written, in_regions, *VIEWS])
@pytest.mark.parametrize("create_graph", [False, True], ids=["once", "twice"])
def test_asked_for(program: Function, create_graph: bool) -> None:
    compiled = weft.compile(program, fullgraph=True, dynamic=program in VIEWS and create_graph)
    count = len(results_and_leaves(program)[0])
    every = range(count)
    for result in every:
        for wanted in [(k,) for k in every] + [every, (0, count - 2), (1, count // 2)]:
            want = asked_for(program, result, wanted, create_graph)
            got = asked_for(compiled, result, wanted, create_graph)
            assert_same(got, want)


@pytest.mark.parametrize("program", [layers, written, in_regions, *VIEWS])
@pytest.mark.parametrize("keeps", [False, True], ids=["let go of", "retained"])
def test_hooked(program: Function, keeps: bool) -> None:
    compiled = weft.compile(program, fullgraph=True, dynamic=program in VIEWS and keeps)
    count = len(results_and_leaves(program)[0])
    last = count - 1
    pairs = [*itertools.combinations(range(count), 2)]
    some = [(k,) for k in range(count)] + pairs[::4] + [tuple(range(count))]
    losses = ((last,), (last - 1,), (1, last), tuple(range(count)))
    for number, seen in enumerate(some):
        for used in losses[number % 2 :: 2]:
            assert_same(hooked(compiled, seen, used, keeps), hooked(program, seen, used, keeps))


def test_each_has_edges_to_the_nearest_only() -> None:
    """Edges from each layer to all before would be as many as the layers' number squared."""
    results, _ = results_and_leaves(weft.compile(layers, fullgraph=True))
    counts = [len(result.grad_fn.next_functions) for result in results]  # type: ignore[union-attr]
    assert counts[7] == counts[3]  # keys of the last layer and of the second


def test_a_node_that_is_gone_leaves_what_waits() -> None:
    """Backward comes to an error behind what has been sent on: the next one starts anew."""

    def refuse(gradient: Tensor) -> None:
        raise ValueError("refused")

    compiled = weft.compile(layers, fullgraph=True)
    found = []
    for program in (layers, compiled):
        results, leaves = results_and_leaves(program)
        calls: list[Tensor] = []
        results[0].register_hook(calls.append)
        handle = results[2].register_hook(refuse)
        with pytest.raises(ValueError, match="refused"):
            results[-1].backward(retain_graph=True)
        handle.remove()
        results[-1].backward()
        found.append((calls, [leaf.grad for leaf in leaves]))
    assert_same(found[1], found[0])


@pytest.mark.parametrize("factor", [3.0, torch.inf], ids=["finite", "infinite"])
def test_hooks_of_views_change_what_goes_on(factor: float) -> None:
    found = []
    for program in (views, weft.compile(views, fullgraph=True)):
        results, leaves = results_and_leaves(program)
        for k in (1, 3, 6):  # a view of the argument, one of a result, and one of that
            results[k].register_hook(lambda gradient: gradient * factor)
        results[4].retain_grad()
        (results[0].sum() + results[2].sum()).backward()
        found.append((results[4].grad, [leaf.grad for leaf in leaves]))
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-5, equal_nan=True)
