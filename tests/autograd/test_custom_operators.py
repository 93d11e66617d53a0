"""Operators of ``torch.library.custom_op`` that write to their arguments, with and without gradients."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import weft
from torch import Tensor


@torch.library.custom_op("weft_tests::scale_", mutates_args=("x",))
def scale_(x: Tensor, factor: float) -> None:
    x.mul_(factor)


@torch.library.custom_op("weft_tests::accumulate", mutates_args=("total",))
def accumulate(total: Tensor, x: Tensor) -> Tensor:
    total.add_(x)
    return x.sum(0)


@accumulate.register_fake
def _(total: Tensor, x: Tensor) -> Tensor:
    return x.new_empty(x.shape[1:])


@torch.library.custom_op("weft_tests::exchange", mutates_args=("a", "b"))
def exchange(a: Tensor, b: Tensor, *, factor: float = 2.0) -> tuple[Tensor, Tensor]:
    a.mul_(factor)
    b.add_(1)
    return a + b, a - b


@exchange.register_fake
def _(a: Tensor, b: Tensor, *, factor: float = 2.0) -> tuple[Tensor, Tensor]:
    return torch.empty_like(a), torch.empty_like(b)


@torch.library.custom_op("weft_tests::products", mutates_args=("total",))
def products(total: Tensor, x: Tensor, others: list[Tensor]) -> list[Tensor]:
    total.add_(x)
    return [x * other for other in others]


@products.register_fake
def _(total: Tensor, x: Tensor, others: list[Tensor]) -> list[Tensor]:
    return [torch.empty_like(x) for _ in others]


@torch.library.custom_op("weft_tests::scale_all_", mutates_args=("values",))
def scale_all_(values: list[Tensor], factor: float) -> None:
    for value in values:
        value.mul_(factor)


def writes_to_results_and_inputs(x: Tensor, y: Tensor) -> Any:
    z = x + 1
    scale_(z, 3.0)
    total = accumulate(y, z)
    return z, total * 2


def writes_to_two_and_to_views(x: Tensor, y: Tensor) -> Any:
    left, right = exchange(x, y, factor=3.0)
    row, _ = exchange(x[0], y[1])
    return left * right, x + y, row


def returns_and_views_the_result(x: Tensor, y: Tensor) -> Any:
    total = accumulate(y, x)
    return total, accumulate(y, x * 2)[1:].mul_(3)


def writes_and_returns_lists(x: Tensor, y: Tensor) -> Any:
    first, second = products(y, x, [x, x + 1])
    (third,) = products(y, first, [second])
    products(y, third, [])
    return first, second * 2, third, y + 1


def writes_without_gradients(x: Tensor, y: Tensor) -> Any:
    w = x * 2
    with torch.no_grad():
        scale_(w, 0.5)
    return (w * y,)


def writes_that_autograd_does_not_see(x: Tensor, y: Tensor) -> Any:
    w = x * 2
    scale_(w[1:], 0.5)
    return w * y, w.sin()


def observe(program: Callable[..., Any], with_gradients: bool) -> Any:
    generator = torch.Generator().manual_seed(0)
    leaves = [torch.randn(3, 4, generator=generator) for _ in range(2)]
    given = [leaf.requires_grad_(with_gradients) * 1 for leaf in leaves]
    got = program(*given)
    if with_gradients:
        torch.stack([(r * r).sum() for r in got]).sum().backward()
    return [t.detach() for t in (*got, *given)], [leaf.grad for leaf in leaves]


@pytest.mark.parametrize(
    ("program", "with_gradients"),
    [
        (writes_to_results_and_inputs, False),
        (writes_to_two_and_to_views, False),
        (returns_and_views_the_result, False),
        (writes_and_returns_lists, False),
        (writes_without_gradients, False),
        (writes_without_gradients, True),
        (writes_that_autograd_does_not_see, True),
    ],
)
def test_operators_that_write(program: Callable[..., Any], with_gradients: bool) -> None:
    compiled = weft.compile(program, fullgraph=True)
    for _ in range(2):
        want = observe(program, with_gradients)
        torch.testing.assert_close(observe(compiled, with_gradients), want)


def test_gradients_that_the_operator_has_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is eager's, and comes where eager has it."""
    monkeypatch.setenv("WEFT_STRICT", "0")
    x = torch.randn(3, 4, requires_grad=True)
    with pytest.warns(weft.WeftWarning):
        result = weft.compile(lambda x: accumulate(torch.zeros(3, 4), x * 2))(x)
    with pytest.raises(RuntimeError, match="no autograd formula"):
        result.sum().backward()


@torch.library.custom_op("weft_tests::add_where_given", mutates_args=("first", "others"))
def add_where_given(x: Tensor, others: list[Tensor], first: Tensor | None = None) -> Tensor:
    for other in others if first is None else (first, *others):
        other.add_(x)
    return x * 2


@add_where_given.register_fake
def _(x: Tensor, others: list[Tensor], first: Tensor | None = None) -> Tensor:
    return torch.empty_like(x)


_LIBRARY = torch.library.Library("weft_tests_plain", "DEF")
"""Operators as libraries of kernels define them: without a formula of autograd, the results first."""

_LIBRARY.define("scale_into(Tensor! out, Tensor x, float factor) -> ()")
_LIBRARY.define("add_to(Tensor(a!) total, Tensor x) -> Tensor(a!)")
_LIBRARY.define("sum_into(Tensor! out, Tensor x) -> Tensor")
_LIBRARY.define("rotate(Tensor! q, Tensor!? k, int places) -> ()")


@torch.library.impl(_LIBRARY, "scale_into", "CompositeExplicitAutograd")
def _scale_into(out: Tensor, x: Tensor, factor: float) -> None:
    out.copy_(x * factor)


@torch.library.impl(_LIBRARY, "add_to", "CompositeExplicitAutograd")
def _add_to(total: Tensor, x: Tensor) -> Tensor:
    return total.add_(x)


@torch.library.impl(_LIBRARY, "sum_into", "CompositeExplicitAutograd")
def _sum_into(out: Tensor, x: Tensor) -> Tensor:
    out.add_(x)
    return x.sum(0)


@torch.library.impl(_LIBRARY, "rotate", "CompositeExplicitAutograd")
def _rotate(q: Tensor, k: Tensor | None, places: int) -> None:
    for x in (q,) if k is None else (q, k):
        x.copy_(x.roll(places, 0))


plain = torch.ops.weft_tests_plain


def writes_to_lists(x: Tensor, y: Tensor) -> Any:
    z = x + 1
    scale_all_([z, y], 2.0)
    scale_all_([x[0], y[1:]], 0.5)
    scale_all_([], 0.5)
    return z * 2, x + y


def writes_to_what_is_given(x: Tensor, y: Tensor) -> Any:
    z = x * 3
    without = add_where_given(x, [])
    return (
        without,
        add_where_given(x, [y], z),
        add_where_given(z, [], y),
        z,
        add_where_given(x, [z]),
    )


def writes_by_a_library(x: Tensor, y: Tensor) -> Any:
    out = torch.empty_like(x)
    plain.scale_into(out, x, 3.0)
    plain.scale_into(y, out, 0.5)
    total = plain.add_to(x, y)
    return out, total, total[1:] * 2


def writes_by_a_library_to_views(x: Tensor, y: Tensor) -> Any:
    z = x.clone()
    summed = plain.sum_into(z[1:], y[1:])
    plain.rotate(z, None, 1)
    plain.rotate(z.t(), y, 2)
    return z, summed, summed[1:]


def writes_by_a_library_in_regions(x: Tensor, y: Tensor) -> Any:
    z = x * 1
    for i in range(20):
        plain.add_to(z, y * i)
        scale_all_([z, y], 0.9)
    if x.sum() > 1e9:
        plain.rotate(z, y, 1)
    return z, y


NEEDS_DEFAULTS = pytest.mark.skipif(
    torch.__version__ < "2.13", reason="eager refuses to write to what is not given"
)


@pytest.mark.parametrize(
    "program",
    [
        writes_to_lists,
        pytest.param(writes_to_what_is_given, marks=NEEDS_DEFAULTS),
        writes_by_a_library,
        writes_by_a_library_to_views,
        writes_by_a_library_in_regions,
    ],
)
def test_operators_that_write_lists_and_those_of_libraries(program: Callable[..., Any]) -> None:
    compiled = weft.compile(program, fullgraph=True)
    for _ in range(2):
        torch.testing.assert_close(observe(compiled, False), observe(program, False))


OVERLAPPING: dict[str, Callable[[Tensor], object]] = {
    "two that are one": lambda x: exchange(x, x),
    "two that overlap": lambda x: exchange(x[:2], x[1:]),
    "a list with one twice": lambda x: scale_all_([x, x], 2.0),
    "a list that overlaps": lambda x: scale_all_([x[:2], x, x.t()], 2.0),
    "what a list reads": lambda x: products(x[0], x[1], [x[0]]),
    "apart": lambda x: scale_all_([x[:1], x[1], x[2:]], 2.0),
}


@NEEDS_DEFAULTS
@pytest.mark.parametrize("made_inside", [False, True])
@pytest.mark.parametrize("name", OVERLAPPING)
def test_operands_that_lie_in_one_memory(
    name: str, made_inside: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each write is seen by the next, which no copies of the operands do: such graphs are eager's."""

    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        x = x * 2 if made_inside else x
        OVERLAPPING[name](x)
        return x * 3, x

    monkeypatch.setenv("WEFT_STRICT", "0")
    refused = name != "apart"
    expected = pytest.warns(weft.WeftWarning, match="overlaps") if refused else nullcontext()
    found, want = (torch.arange(12.0).reshape(3, 4) for _ in range(2))
    with expected:
        got = weft.compile(program)(found)
    torch.testing.assert_close((got, found), (program(want), want))


def test_lists_that_are_written_where_autograd_does_not_see_it() -> None:
    def program(x: Tensor, y: Tensor) -> Any:
        w = x * 2
        scale_all_([w[1:]], 0.5)
        return w * y, w.sin()

    compiled = weft.compile(program, fullgraph=True)
    torch.testing.assert_close(observe(compiled, True), observe(program, True))


def test_writes_of_a_library_to_what_has_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under no_grad they are data; elsewhere what they mean to autograd is the library's to say."""

    def program(x: Tensor, y: Tensor) -> Any:
        w = x * 2
        with torch.no_grad():
            plain.add_to(w, y)
        return (w * y,)

    compiled = weft.compile(program, fullgraph=True)
    torch.testing.assert_close(observe(compiled, True), observe(program, True))
    monkeypatch.setenv("WEFT_STRICT", "0")
    x = torch.randn(3, requires_grad=True)
    with pytest.warns(weft.WeftWarning, match="of what has gradients"):
        result = weft.compile(lambda x: plain.add_to(torch.zeros(3), x * 2) + 1)(x)
    torch.testing.assert_close(result.detach(), x.detach() * 2 + 1)
