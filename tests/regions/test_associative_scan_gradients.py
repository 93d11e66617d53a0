"""Gradients through ``associative_scan``, whose backward is a scan: beside eager's autograd in float64."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from typing import Any

import pytest
import torch
import weft
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from torch._higher_order_ops.associative_scan import associative_scan
from torch.utils import _pytree as pytree

from .scan_programs import COMBINATIONS, pair, program, recurrence

T = torch.Tensor


def gradients(
    function: Callable[[Any], Any],
    xs: Any,
    differentiated: Collection[int],
    read: Collection[int],
) -> tuple[list[bool], list[T | None]]:
    """Which results have gradients, and those to the leaves of ``xs`` of the results at ``read``."""
    leaves, spec = pytree.tree_flatten(xs)
    given = [
        leaf.detach().clone().requires_grad_(k in differentiated) for k, leaf in enumerate(leaves)
    ]
    results = pytree.tree_leaves(function(pytree.tree_unflatten(given, spec)))
    generator = torch.Generator().manual_seed(1)
    loss = torch.zeros((), dtype=torch.float64)
    for k, result in enumerate(results):
        weights = torch.randn(result.shape, generator=generator, dtype=torch.float64)
        if k in read and result.requires_grad:
            loss = loss + (result * weights).sum()
    loss.backward()
    return [result.requires_grad for result in results], [leaf.grad for leaf in given]


def check(
    compiled: Callable[[Any], Any],
    function: Callable[[Any], Any],
    xs: Any,
    differentiated: Collection[int] | None = None,
    read: Collection[int] = (0, 1, 2),
    tolerance: float = 1e-12,
) -> None:
    leaves = pytree.tree_leaves(xs)
    if differentiated is None:
        differentiated = [k for k, leaf in enumerate(leaves) if leaf.is_floating_point()]
    exact = pytree.tree_map(lambda x: x.double() if x.is_floating_point() else x, xs)
    flags, mine = gradients(compiled, xs, differentiated, read)
    wanted_flags, theirs = gradients(function, exact, differentiated, read)
    assert flags == wanted_flags
    for got, want in zip(mine, theirs, strict=True):
        assert (got is None) == (want is None)
        if got is not None and want is not None:
            torch.testing.assert_close(got.double(), want, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", COMBINATIONS)
def test_combinations(name: str) -> None:
    combine, make = COMBINATIONS[name]
    function = program(combine, 1, False)
    compiled = weft.compile(function, fullgraph=True)
    for length in (6, 2, 13):
        check(compiled, function, make((3, length, 4), torch.float64))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_dtypes_and_directions(reverse: bool, dtype: torch.dtype) -> None:
    function = program(recurrence, 0, reverse)
    tolerance = 2e-5 if dtype == torch.float32 else 4e-2
    compiled = weft.compile(function, fullgraph=True)
    check(compiled, function, pair((24, 3, 5), dtype), tolerance=tolerance)


@pytest.mark.parametrize("differentiated", [(0,), (1,), (0, 1)], ids=str)
@pytest.mark.parametrize("read", [(0,), (1,)], ids=str)
def test_some_operands_and_some_results(
    differentiated: tuple[int, ...], read: tuple[int, ...]
) -> None:
    """What no result that is read depends on has no gradient, rather than zeros."""
    if differentiated == (1,) and read == (0,):
        pytest.skip("nothing to differentiate")
    function = program(recurrence, 1, False)
    compiled = weft.compile(function, fullgraph=True)
    check(compiled, function, pair((2, 9, 4), torch.float64), differentiated, read)


_RECURRENCE = program(recurrence, 1, False)


@pytest.fixture(scope="module")
def compiled_recurrence() -> Callable[[Any], Any]:
    return weft.compile(_RECURRENCE, fullgraph=True, dynamic=True)


@seed(8)
@settings(
    max_examples=int(os.environ.get("WEFT_EXAMPLES", "15")),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(rows=st.integers(2, 5), length=st.integers(2, 70), width=st.integers(2, 9))
def test_any_sizes(
    compiled_recurrence: Callable[[Any], Any], rows: int, length: int, width: int
) -> None:
    check(compiled_recurrence, _RECURRENCE, pair((rows, length, width), torch.float64))


def test_a_step_of_training() -> None:
    """A gated recurrence with weights before it and a loss after it, as minGRU has."""
    torch.manual_seed(0)
    first, second = torch.nn.Linear(8, 12).double(), torch.nn.Linear(6, 4).double()

    def function(x: T) -> T:
        gate, hidden = first(x).chunk(2, -1)
        gate = torch.sigmoid(gate)
        state = associative_scan(recurrence, (1 - gate, gate * hidden), 1, combine_mode="generic")[
            1
        ]
        return second(state).square().mean()

    compiled = weft.compile(function, fullgraph=True)
    parameters = [*first.parameters(), *second.parameters()]
    x = torch.randn(2, 30, 8, dtype=torch.float64)
    mine = torch.autograd.grad(compiled(x), parameters)
    theirs = torch.autograd.grad(function(x), parameters)
    torch.testing.assert_close(mine, theirs)


def test_tensors_from_around_with_gradients_run_as_written() -> None:
    weight = torch.randn(4, requires_grad=True)

    def function(x: T) -> T:
        return associative_scan(
            lambda left, right: left + right + weight, x, 0, combine_mode="generic"
        )

    x = torch.randn(5, 4)
    (mine,) = torch.autograd.grad(weft.compile(function)(x).sum(), weight)
    (theirs,) = torch.autograd.grad(function(x).sum(), weight)
    torch.testing.assert_close(mine, theirs)
