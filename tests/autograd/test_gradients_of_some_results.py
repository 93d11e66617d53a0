"""Backward from some of a function's results: eager's autograd does not visit what the others came from."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import weft
from torch import Tensor, nn

Function = Callable[..., Sequence[Tensor]]


def three_results(x: Tensor, w: Tensor, v: Tensor) -> Sequence[Tensor]:
    """Backward of the second divides by zero and multiplies with infinity."""
    h = x @ w
    return h.sum(), (h - h).sqrt() * v, x * 2


def gradients(program: Function, used: Sequence[int], spoilt: int | None) -> Any:
    """The leaves' gradients, from the results at ``used``; an argument is written to before backward."""
    generator = torch.Generator().manual_seed(0)
    shapes = (4, 3), (3, 5), (5,)
    leaves = [torch.randn(shape, generator=generator, requires_grad=True) for shape in shapes]
    given = [leaf * 1 for leaf in leaves]
    results = program(*given)
    if spoilt is not None:
        with torch.no_grad():
            given[spoilt].mul_(2)
    try:
        torch.stack([(results[k] * (k + 1)).sum() for k in used]).sum().backward()
    except RuntimeError as error:
        if "modified by an inplace operation" not in str(error):
            raise
        return "written to"
    return [leaf.grad for leaf in leaves]


USES = [use for n in (1, 2, 3) for use in itertools.combinations(range(3), n)]


@pytest.mark.parametrize("dynamic", [False, True], ids=["fixed sizes", "symbolic sizes"])
def test_what_is_not_visited_gives_no_nan_and_may_be_written_to(dynamic: bool) -> None:
    program = weft.compile(three_results, fullgraph=True, dynamic=dynamic)
    for used in USES:
        for spoilt in (None, 0, 1, 2):
            want = gradients(three_results, used, spoilt)
            got = gradients(program, used, spoilt)
            if isinstance(want, str) or isinstance(got, str):
                assert got == want, (used, spoilt)
                continue
            torch.testing.assert_close(got, want, equal_nan=True)


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(6, 8)
        self.heads = nn.ModuleList([nn.Linear(8, 3), nn.Linear(8, 4)])

    def forward(self, x: Tensor) -> Sequence[Tensor]:
        hidden = self.body(x).tanh()
        return [head(hidden).log_softmax(-1) for head in self.heads]


def test_heads_that_take_turns() -> None:
    """Each step trains one head; the other keeps no gradient, and may be changed in the meantime."""
    seen = []
    for compiled in (False, True):
        torch.manual_seed(0)
        model = TwoHeads()
        called: Any = weft.compile(model, fullgraph=True) if compiled else model
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
        found: list[Any] = []
        for step in range(6):
            results = called(torch.randn(5, 6))
            with torch.no_grad():
                next(model.heads[1 - step % 2].parameters()).mul_(0.9)
            optimizer.zero_grad()
            results[step % 2].square().mean().backward()
            found += [parameter.grad for parameter in model.parameters()]
            optimizer.step()
        seen.append([*found, *model.parameters()])
    want, got = seen
    assert [g is None for g in got] == [w is None for w in want]
    assert any(w is None for w in want)
    torch.testing.assert_close(
        [g for g in got if g is not None], [w for w in want if w is not None]
    )


def steps_with_a_break(x: Tensor, w: Tensor, v: Tensor) -> Sequence[Tensor]:
    """The second graph writes to what the first has kept, and has an argument that no result needs."""
    clamped = x.clamp(-1, 1)
    sys.stdout.flush()  # ends the graph
    clamped[0] = x.sum()
    x.mul_(3)
    return (x * v[0], clamped)


def test_a_graph_that_no_gradient_leads_to_may_have_been_written_to() -> None:
    program = weft.compile(steps_with_a_break)
    for used in ((0,), (1,), (0, 1)):
        want = gradients(steps_with_a_break, used, None)
        assert isinstance(want, str) == (1 in used)
        got = gradients(program, used, None)
        if isinstance(want, str):
            assert got == want
        else:
            torch.testing.assert_close(got, want)


def clamped(x: Tensor, w: Tensor) -> Sequence[Tensor]:
    with torch.no_grad():
        w.clamp_(-1, 1)
    return (x * 2,)


def clamped_and_returned(x: Tensor, w: Tensor) -> Sequence[Tensor]:
    with torch.no_grad():
        w.mul_(2)
    return x.sum(), w.detach() * x


@pytest.mark.parametrize("program", [clamped, clamped_and_returned])
@pytest.mark.parametrize("is_leaf", [True, False])
def test_what_is_only_written_without_gradients_has_none(program: Function, is_leaf: bool) -> None:
    found = []
    for function in (program, weft.compile(program)):
        x, w = torch.ones(3, requires_grad=True), torch.full((3,), 2.0, requires_grad=True)
        results = function(x, w if is_leaf else w * 1)
        torch.stack([result.sum() for result in results]).sum().backward()
        found.append((x.grad.tolist(), w.grad))
    assert found[0] == found[1] and found[1][1] is None


def written_beside_a_view(x: Tensor, w: Tensor) -> Sequence[Tensor]:
    y = x * 2
    y.sub_(y.mean())
    return y[:, 1:], w.T


def argument_written_beside_views(x: Tensor, w: Tensor) -> Sequence[Tensor]:
    x.pow_(2)
    return x[0], w[..., None], w


@pytest.mark.parametrize("dynamic", [False, True], ids=["fixed sizes", "symbolic sizes"])
@pytest.mark.parametrize("program", [written_beside_a_view, argument_written_beside_views])
def test_an_argument_that_only_a_returned_view_leads_to_has_no_zeros(
    program: Function, dynamic: bool
) -> None:
    for used in ((0,), (1,), (0, 1)):
        found: list[Any] = []
        for function in (program, weft.compile(program, fullgraph=True, dynamic=dynamic)):
            leaves = [torch.arange(6.0).view(2, 3).requires_grad_() for _ in range(2)]
            results = function(*(leaf * 1 for leaf in leaves))
            torch.stack([results[k].sum() for k in used]).sum().backward()
            found.append([None if leaf.grad is None else leaf.grad.tolist() for leaf in leaves])
        assert found[1] == found[0]


def held_for_the_second(y: Tensor, z: Tensor) -> Sequence[Tensor]:
    return torch.tanh(y) * 2, z / (y.abs() + 1)


def held_for_the_last(y: Tensor, z: Tensor) -> Sequence[Tensor]:
    return y.exp(), (y.sigmoid() * z).sum(0), y * y


def one_argument_each(y: Tensor, z: Tensor) -> Sequence[Tensor]:
    return z.exp() + y.square(), y.exp() + z.square()


def result_held_for_another(y: Tensor, z: Tensor) -> Sequence[Tensor]:
    r = y * 2
    return r, r.abs(), torch.tanh(r + z)


def through_a_product(y: Tensor, z: Tensor) -> Sequence[Tensor]:
    return (y.exp() @ z.T).tanh(), y.sin() + z


def parts_of_one(y: Tensor, z: Tensor) -> Sequence[Tensor]:
    r = torch.stack((y.tanh(), z))
    return r[0], r[1].square(), y.cos()


def alone(program: Function, used: int, written: int | str) -> Any:
    """The gradients by one result, after a write to an argument, by number, or to result ``written``."""
    leaves = [(torch.arange(6, dtype=torch.float64).view(2, 3) + k).sin() for k in range(2)]
    given = [leaf.requires_grad_() * 1 for leaf in leaves]
    results = program(*given)
    target = given[written] if isinstance(written, int) else results[int(written)]
    with torch.no_grad():
        target.mul_(3)
    try:
        return torch.autograd.grad(results[used].sum(), leaves, allow_unused=True)
    except RuntimeError as error:
        if "modified by an inplace operation" not in str(error):
            raise
        return "written to"


HELD = [
    *(held_for_the_second, held_for_the_last, one_argument_each, result_held_for_another),
    *(through_a_product, parts_of_one),
]


@pytest.mark.parametrize("dynamic", [False, True], ids=["fixed sizes", "symbolic sizes"])
@pytest.mark.parametrize("program", HELD)
def test_what_eager_holds_for_other_results_may_be_written_to(
    program: Function, dynamic: bool
) -> None:
    compiled = weft.compile(program, fullgraph=True, dynamic=dynamic)
    without_error = 0
    for written in (0, 1, "0", "1"):
        for used in range(len(program(torch.ones(2, 3), torch.ones(2, 3)))):
            want = alone(program, used, written)
            if not isinstance(want, str):
                torch.testing.assert_close(alone(compiled, used, written), want)
                without_error += 1
            elif isinstance(written, int):
                assert alone(compiled, used, written) == want
    assert without_error
