"""Views made under ``no_grad`` of tensors that require gradients: autograd does not follow them, as eager."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import weft
from weft.registry import codegens

from tests.fuzz.evaluated import EvaluatedCpp


def used_further(x: torch.Tensor) -> Any:
    with torch.no_grad():
        view = x.unflatten(0, (-1, 1))
    return view.select(0, -1)


def returned(x: torch.Tensor) -> Any:
    with torch.no_grad():
        view = x[1:]
        other = view[1:]
    return other, view, x[0]


def computed_with(x: torch.Tensor) -> Any:
    with torch.no_grad():
        view = x.view(-1, 1)
    return view * 2, view.sum()


def of_a_result(x: torch.Tensor) -> Any:
    y = x * 3
    with torch.no_grad():
        view = y.view(-1, 1)
    return view * 2, view, y


def written(x: torch.Tensor) -> Any:
    with torch.no_grad():
        view = x[1:]
    view.mul_(2)
    return view


def of_a_detached_one(x: torch.Tensor) -> Any:
    y = x.detach()
    with torch.no_grad():
        view = y.view(3, 1)
    return view * 2, y[1:]


def values_alone(x: torch.Tensor) -> Any:
    with torch.no_grad():
        weights = x.view(1, 3) * x
    return weights + x


def a_view_of_a_reduction(x: torch.Tensor) -> Any:
    y = x.norm(dim=0, keepdim=True)
    with torch.no_grad():
        return y.unflatten(0, (-1, 1))


def viewed_behind_a_break(x: torch.Tensor) -> Any:
    y = x * 3
    with torch.no_grad():
        time.sleep(0)
    return y[1:], y.view(-1, 1)


def written_behind_a_break(x: torch.Tensor) -> Any:
    y = x * 3
    with torch.no_grad():
        time.sleep(0)
    y[1:].mul_(x[0])
    return y


def in_a_branch(x: torch.Tensor) -> Any:
    y = x.sin()
    if x.sum() > 100:
        y = x.cos()
        with torch.no_grad():
            view = y[..., None]
    else:
        with torch.no_grad():
            view = y[..., None]
    return view**1, y


def behind_a_branch_that_returns(x: torch.Tensor) -> Any:
    y = x.sin()
    if x.sum() > 100:
        return y, x
    z = y.fmod(3)
    with torch.no_grad():
        view = z[..., None]
    return view**1, view


def in_a_loop(x: torch.Tensor) -> Any:
    y = x.sin()
    for _ in range(25):
        y = y * 0.9
        with torch.no_grad():
            view = y.view(-1, 1)
        y = y + view.sum()
    return y, view


def viewed_in_a_loop(x: torch.Tensor) -> Any:
    with torch.no_grad():
        part = x.split(2, -1)[0]
    for _ in range(25):
        view = part.narrow(0, 0, 1)
    return view, part


def viewed_again_in_a_loop(x: torch.Tensor) -> Any:
    y = x.cos()
    for _ in range(25):
        with torch.no_grad():
            part = y.split(2, -1)[0]
        view = part.narrow(0, 0, 1)
    return part, view, y


def viewed_in_branches(x: torch.Tensor) -> Any:
    with torch.no_grad():
        part = x[1:]
    view = part[1:] if x.sum() > 0 else part[:-1]
    return view, x[1:], view.sin()


PROGRAMS = (
    viewed_in_a_loop, viewed_again_in_a_loop, viewed_in_branches,
    in_a_branch, behind_a_branch_that_returns, in_a_loop,
    viewed_behind_a_break, written_behind_a_break,
    a_view_of_a_reduction, used_further, returned, computed_with, of_a_result, written,
    of_a_detached_one, values_alone,
)  # fmt: skip


def gradients(program: Callable[..., Any]) -> Any:
    """Of the results and the argument, by the leaf; what is raised where there are none."""
    leaf = torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64, requires_grad=True)
    x = leaf * 1
    try:
        found = program(x)
        roots = [*(found if isinstance(found, tuple) else (found,)), x]
        sums = [
            (root * torch.arange(1.0, root.numel() + 1).view(root.shape)).sum() for root in roots
        ]
        return torch.autograd.grad(sum(sums), leaf, allow_unused=True)[0].tolist()
    except RuntimeError as error:
        return str(error)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "varying"])
def test_gradients_are_eagers(program: Callable[..., Any], dynamic: bool) -> None:
    assert gradients(weft.compile(program, dynamic=dynamic)) == gradients(program)


def test_a_detached_view_with_a_history_of_its_own_runs_as_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        view = x.detach()
        view.sub_(x.mean())
        return view

    monkeypatch.delenv("WEFT_STRICT")
    with pytest.warns(weft.WeftWarning, match="history of its own"):
        found = gradients(weft.compile(program))
    assert found == gradients(program)


def leaf() -> torch.Tensor:
    return torch.arange(1.0, 7.0).view(3, 2).clone().requires_grad_()


def inner() -> torch.Tensor:
    return leaf() * 1


def leaf_that_is_a_view() -> torch.Tensor:
    return torch.arange(1.0, 7.0).view(3, 2).requires_grad_()


def without_gradients() -> torch.Tensor:
    return leaf().detach()


def row_without(w: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return w[0]


def row_in_inference(w: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        return w[0]


def row_of_a_result(w: torch.Tensor) -> torch.Tensor:
    y = w * 2
    with torch.no_grad():
        return y[0]


def row_of_a_detached_result(w: torch.Tensor) -> torch.Tensor:
    y = w.detach().clone()
    with torch.no_grad():
        return y[0]


def part_of_a_row(w: torch.Tensor) -> torch.Tensor:
    return row_without(w)[1:]


def row_of_several(w: torch.Tensor) -> torch.Tensor:
    return (w * 2).unbind(0)[1]


def row_of_several_without(w: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return (w * 2).unbind(0)[1]


def row_of_an_iteration(w: torch.Tensor) -> torch.Tensor:
    for row in w.split(1):
        if row.shape[0] == 1:
            break
    return row


def written_without(w: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        v = w[0]
        v.mul_(2)
    return v


def base_written_without(w: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        v = w[0]
        w.mul_(2)
    return v


def base_written(w: torch.Tensor) -> torch.Tensor:
    y = w.detach().clone()
    with torch.no_grad():
        v = y[0]
    y.mul_(w)
    return v


def base_written_before_and_by_data(w: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        w.mul_(2)
        v = w[0]
        w.data.mul_(2)
    return v


VIEWS = (
    base_written_before_and_by_data,
    row_without, row_in_inference, row_of_a_result, row_of_a_detached_result, part_of_a_row,
    row_of_several, row_of_several_without, row_of_an_iteration, written_without,
    base_written_without, base_written,
)  # fmt: skip


def nothing(v: torch.Tensor, w: torch.Tensor) -> Any:
    return v


def write(v: torch.Tensor, w: torch.Tensor) -> Any:
    return v.mul_(2)


def write_to_a_part(v: torch.Tensor, w: torch.Tensor) -> Any:
    v[..., 0] = 1.0
    return v


def write_with_gradients(v: torch.Tensor, w: torch.Tensor) -> Any:
    return v.mul_(w.sum())


def write_detached(v: torch.Tensor, w: torch.Tensor) -> Any:
    v.detach().mul_(2)
    return v, w * 2


def write_or_not(v: torch.Tensor, w: torch.Tensor) -> Any:
    try:
        v.add_(1)
    except RuntimeError:
        return w * 3
    return w * 2


def detach_in_place(v: torch.Tensor, w: torch.Tensor) -> Any:
    return v.detach_()


def compute(v: torch.Tensor, w: torch.Tensor) -> Any:
    return v * 2, w * 2


def ask_for_the_function(v: torch.Tensor, w: torch.Tensor) -> Any:
    return v.grad_fn is None


def ask_whether_a_leaf(v: torch.Tensor, w: torch.Tensor) -> Any:
    return v.is_leaf, w * 2


def ask_whether_required(v: torch.Tensor, w: torch.Tensor) -> Any:
    return v.requires_grad, w * 2


USES = (
    nothing, write, write_to_a_part, write_with_gradients, write_detached, write_or_not,
    detach_in_place, compute, ask_for_the_function, ask_whether_a_leaf, ask_whether_required,
)  # fmt: skip


def described(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(described, value))
    if not isinstance(value, torch.Tensor):
        return value
    return value.tolist(), value.requires_grad, attempted(lambda: value[...].requires_grad)


def attempted(function: Callable[[], Any]) -> Any:
    """The result, or the type and text of the error: as far as it does not name autograd's functions."""
    try:
        return function()
    except RuntimeError as error:
        return type(error), str(error).rpartition(" is a view")[2]


def seen(program: Callable[..., Any], make: Callable[[], torch.Tensor]) -> Any:
    """What a program gives, the caller's own write to that, and what the argument has become."""
    w = make()
    result = attempted(lambda: program(w))
    first = result[0] if isinstance(result, tuple) else result
    found: list[Any] = [described(result)]
    if isinstance(first, torch.Tensor) and not program.__name__.startswith("written"):
        found.append(attempted(lambda: described(first.mul_(2))))
        with torch.no_grad():
            found.append(attempted(lambda: described(first.mul_(3))))
    return *found, described(w)


@pytest.mark.parametrize(
    ("view", "make"),
    [
        *((view, make) for view in VIEWS for make in (leaf, inner, without_gradients)),
        *((view, leaf_that_is_a_view) for view in (row_without, row_of_several, written_without)),
    ],
)
@pytest.mark.parametrize("use", USES)
def test_autograd_refuses_of_a_view_what_it_does_in_eager(
    view: Callable[..., torch.Tensor], use: Callable[..., Any], make: Callable[[], torch.Tensor]
) -> None:
    def program(w: torch.Tensor) -> Any:
        return use(view(w), w)

    weft.reset()
    assert seen(weft.compile(program), make) == seen(program, make)


@pytest.mark.parametrize(
    ("view", "use"),
    [
        (row_without, write_detached),
        (part_of_a_row, write_detached),
        (base_written, detach_in_place),
    ],
)
def test_what_a_detached_view_is_written_to(
    view: Callable[..., torch.Tensor], use: Callable[..., Any]
) -> None:
    def program(w: torch.Tensor) -> Any:
        return use(view(w), w)

    assert seen(weft.compile(program), leaf) == seen(program, leaf)


def last_row(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        for element in x:
            row = element
    return row * 2


def chosen_row(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        if x.sum() > 0:
            row = x[0]
        else:
            row = x[1]
    return row * 2


def whole_number(row: torch.Tensor, x: torch.Tensor) -> Any:
    return int(row.sum())


def finite(row: torch.Tensor, x: torch.Tensor) -> Any:
    assert row.isfinite().all()
    return x + 1


def with_a_hook(row: torch.Tensor, x: torch.Tensor) -> Any:
    row.register_hook(lambda gradient: gradient)
    return x + 1


def its_gradient(row: torch.Tensor, x: torch.Tensor) -> Any:
    return torch.autograd.grad(x.sum(), row)


def held_gradient(row: torch.Tensor, x: torch.Tensor) -> Any:
    return row.grad, x + 1


@pytest.mark.parametrize(
    "use",
    [whole_number, finite, with_a_hook, its_gradient, held_gradient],
    ids=lambda u: u.__name__,
)
def test_a_row_whose_base_is_written_to_since_is_read_as_in_eager(use: Callable[..., Any]) -> None:
    def program(w: torch.Tensor) -> Any:
        with torch.no_grad():
            row = w[0]
        w.narrow(0, 0, 1).zero_()
        return use(row, w)

    assert seen(weft.compile(program), inner) == seen(program, inner)


@pytest.mark.parametrize("program", [last_row, chosen_row])
@pytest.mark.parametrize("sizes", [(4,), (4, 1), (30, 2)])
def test_views_that_leave_a_loop_or_branch(
    program: Callable[[torch.Tensor], torch.Tensor], sizes: tuple[int, ...]
) -> None:
    compiled = weft.compile(program, dynamic=True)
    for scale in (1.0, -1.0):
        x = torch.linspace(-1, 2, math.prod(sizes)).view(sizes).mul(scale).requires_grad_()
        found, expected = compiled(x), program(x)
        torch.testing.assert_close(found, expected)
        for result in (found, expected):
            assert result.requires_grad
            assert torch.autograd.grad(result.sum(), x, allow_unused=True) == (None,)


def test_an_element_at_a_place_in_a_tensor_that_a_loop_gives() -> None:
    """Eager's is a view, which requires gradients as its base does; the graph would have a copy."""

    def program(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            place = torch.zeros((), dtype=torch.int64)
            while place < 3:
                element = x[place]
                place = place + 1
        return element

    x = torch.arange(12.0, requires_grad=True).view(4, 3)
    found, wanted = weft.compile(program)(x), program(x)
    assert (found.requires_grad, found.is_leaf) == (wanted.requires_grad, wanted.is_leaf)
    assert found.requires_grad
    torch.testing.assert_close(found, wanted)


def test_a_leaf_that_is_a_view_of_what_requires_no_gradients() -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        other = x.sin()
        while x.sum() < 50:
            x = x * 1.5 + 0.5
        return x, other

    seen = []
    for function in (program, weft.compile(program)):
        x = torch.linspace(-1, 1, 6).view(2, 3).requires_grad_()
        seen.append(torch.autograd.grad(function(x)[0].sum(), x)[0])
    torch.testing.assert_close(seen[1], seen[0])


def behind_a_write(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        x.mul_(2)
    return x.sin()


def one_of_several(w: torch.Tensor) -> torch.Tensor:
    return (w * 2).chunk(2)[0]


def made_without_gradients(w: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return w[1:]


@pytest.mark.parametrize("make", [one_of_several, made_without_gradients])
@pytest.mark.parametrize("program", [behind_a_write, lambda x: x.mul_(2).sin(), torch.sin])
@pytest.mark.parametrize("dynamic", [None, True])
def test_arguments_that_refuse_writes(program: Any, make: Any, dynamic: bool | None) -> None:
    """Autograd refuses to say what they are computed from, whatever their sizes."""
    compiled = weft.compile(program, dynamic=dynamic)
    for size in (4, 6):
        found: list[Any] = []
        for function in (program, compiled):
            w = torch.linspace(0, 1, 3 * size).view(size, 3).requires_grad_()
            try:
                found.append(function(make(w)))
            except RuntimeError as error:
                found.append(str(error)[:60])
        assert type(found[0]) is type(found[1])
        assert isinstance(found[0], torch.Tensor) or found[0] == found[1]


def part_computed_with(p: torch.Tensor) -> Any:
    with torch.no_grad():
        part = p[1:]
    return part * 2


def several_computed_with(p: torch.Tensor) -> Any:
    with torch.no_grad():
        turned, part = p.t(), p[:1].type(p.dtype)
    return turned * 2, part.neg()


@pytest.mark.parametrize("with_gradients", [True, False])
@pytest.mark.parametrize("program", [part_computed_with, several_computed_with])
def test_what_is_computed_of_a_parameters_view_requires_gradients(
    program: Callable[..., Any], with_gradients: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the graph has the parameter as its own, and its backward leads nowhere."""
    monkeypatch.setitem(codegens, "cpu", EvaluatedCpp)

    def computed(module: torch.nn.Linear) -> Any:
        return program(module.weight)

    found: list[Any] = []
    for function in (computed, weft.compile(computed)):
        module = torch.nn.Linear(3, 2, bias=False, dtype=torch.float64)
        module.weight.requires_grad_(with_gradients)
        results = function(module)
        results = results if isinstance(results, tuple) else (results,)
        if with_gradients:
            sum(result.sum() for result in results).backward()
        flags = [(r.requires_grad, r.is_leaf, r.grad_fn is None) for r in results]
        found.append((flags, module.weight.grad))
    assert found[0] == found[1]


WINDOWS: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (
    lambda x: x.detach().as_strided((2,), (1,)),
    lambda x: x.detach().as_strided((2,), (1,)).view(2, 1),
    lambda x: x[1:].detach().as_strided((2,), (1,)),
    lambda x: x.as_strided((2,), (1,)).detach(),
    lambda x: x.as_strided((2,), (1,)),
)


@pytest.mark.parametrize("window", range(len(WINDOWS)))
@pytest.mark.parametrize("is_written", [False, True])
@pytest.mark.parametrize("gradients", [False, True])
def test_windows_of_what_is_detached(
    window: int, is_written: bool, gradients: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``as_strided`` sees past the detached tensor to its memory, and has its flags."""
    monkeypatch.setitem(codegens, "cpu", EvaluatedCpp)

    def program(x: torch.Tensor) -> Any:
        view = WINDOWS[window](x)
        if is_written:
            view.neg_()
        return view

    def seen(function: Callable[[torch.Tensor], torch.Tensor]) -> Any:
        x = torch.arange(4.0, requires_grad=True)
        with torch.set_grad_enabled(gradients):
            view = function(x * 1 if gradients else x)
        facts = view.requires_grad, view._is_view(), view._version, view.tolist()
        try:
            return *facts, view.is_leaf
        except RuntimeError as error:  # the base requires gradients, and knew of no write
            return *facts, str(error)

    assert seen(weft.compile(program)) == seen(program)
