"""``associative_scan`` in one graph: beside eager's, and its values beside eager's in float64."""

from __future__ import annotations

import os
from collections.abc import Callable
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
TOLERANCE = {torch.float32: 2e-5, torch.float64: 1e-12, torch.bfloat16: 2e-2, torch.float16: 4e-3}


def check(compiled: Callable[[Any], Any], function: Callable[[Any], Any], xs: Any) -> None:
    """Results of eager's sizes, dtypes and strides; their values beside eager's in float64."""
    with torch.no_grad():
        got, like = compiled(xs), function(xs)
        wanted = function(pytree.tree_map(lambda x: x.double() if x.is_floating_point() else x, xs))
    assert pytree.tree_structure(got) == pytree.tree_structure(like)
    every = (pytree.tree_leaves(tree) for tree in (got, like, wanted))
    for mine, theirs, exact in zip(*every, strict=True):
        assert (mine.dtype, mine.shape) == (theirs.dtype, theirs.shape)
        assert mine.stride() == theirs.stride()
        tolerance = TOLERANCE.get(mine.dtype, 0.0)
        torch.testing.assert_close(
            mine.to(exact.dtype), exact, rtol=tolerance, atol=tolerance, equal_nan=True
        )


@pytest.mark.parametrize("name", COMBINATIONS)
def test_combinations_of_any_length(name: str) -> None:
    combine, make = COMBINATIONS[name]
    function = program(combine, 1, False)
    compiled = weft.compile(function, fullgraph=True)
    for length in (6, 1, 9, 2, 31):
        check(compiled, function, make((3, length, 4), torch.float32))
    assert len(weft.explain(function)(make((3, 6, 4), torch.float32)).graphs) == 1


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("reverse", [False, True])
def test_dtypes_and_directions(dtype: torch.dtype, reverse: bool) -> None:
    function = program(recurrence, -2, reverse)
    check(weft.compile(function, fullgraph=True), function, pair((2, 300, 5), dtype))


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.transpose(0, 2),
        lambda x: x[:, ::2],
        lambda x: x[:, :1].expand(-1, 7, -1),
        lambda x: x[0, 0],
        lambda x: x * 2,
    ],
    ids=["transposed", "strided", "expanded", "one row", "computed"],
)
@pytest.mark.parametrize("reverse", [False, True])
def test_operands_of_any_layout(view: Callable[[T], T], reverse: bool) -> None:
    def function(x: T) -> T:
        dim = min(1, view(x).dim() - 1)
        return associative_scan(
            lambda left, right: left + right, view(x), dim, reverse, combine_mode="generic"
        )

    check(weft.compile(function, fullgraph=True), function, torch.randn(5, 8, 6))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_values_that_are_not_finite(value: float) -> None:
    for name in ("sum", "maximum", "logarithm of a sum"):
        function = program(COMBINATIONS[name][0], 0, False)
        x = torch.randn(9, 5)
        x[4, 2] = value
        check(weft.compile(function, fullgraph=True), function, x)


_RECURRENCE = program(recurrence, 1, False)


@pytest.fixture(scope="module")
def compiled_recurrence() -> Callable[[Any], Any]:
    return weft.compile(_RECURRENCE, fullgraph=True, dynamic=True)


@seed(8)
@settings(
    max_examples=int(os.environ.get("WEFT_EXAMPLES", "25")),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    rows=st.integers(1, 5),
    length=st.integers(1, 70),
    width=st.integers(1, 9),
    factor=st.sampled_from([0.0, 0.5, 1.0, 1.5]),
)
def test_any_sizes(
    compiled_recurrence: Callable[[Any], Any], rows: int, length: int, width: int, factor: float
) -> None:
    a, b = pair((rows, length, width), torch.float64)
    check(compiled_recurrence, _RECURRENCE, (a * factor, b))


@pytest.mark.gpu
@pytest.mark.parametrize("size", [(1 << 20,), (3, 100_003), (4096, 512)], ids=str)
@pytest.mark.parametrize("reverse", [False, True])
def test_rows_on_a_gpu(size: tuple[int, ...], reverse: bool) -> None:
    function = program(recurrence, -1, reverse)
    a, b = (torch.randn(size, device="cuda") for _ in range(2))
    check(weft.compile(function, fullgraph=True), function, (torch.sigmoid(a), b))


def test_tensors_from_around() -> None:
    weight = torch.randn(4)

    def function(x: T, offset: T) -> T:
        return associative_scan(
            lambda left, right: left + right + offset * weight, x, 0, combine_mode="generic"
        )

    compiled = weft.compile(function, fullgraph=True)
    for length in (6, 12, 5):
        x, offset = torch.randn(length, 4), torch.randn(4)
        wanted = function(x.double(), offset.double())
        torch.testing.assert_close(compiled(x, offset).double(), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("length", [1, 2, 7])
def test_functions_of_whole_rows_are_evaluated_row_by_row(length: int, reverse: bool) -> None:
    def function(x: T) -> T:
        first = associative_scan(recurrence, (x, x), 0, reverse, combine_mode="generic")[1]
        return associative_scan(torch.matmul, first, 0, reverse, combine_mode="generic") + 1

    x = torch.randn(length, 3, 3)
    check(weft.compile(function, fullgraph=True), function, x)
    with torch.no_grad():
        (graph,) = weft.explain(function)(x).graphs
    calls = str(graph.graph_module.graph).count("matmul")
    assert (calls > 0) == (length > 1)


def test_what_feeds_it_and_reads_it_is_in_the_graph() -> None:
    def function(x: T, h: T) -> T:
        a, b = torch.sigmoid(x), torch.tanh(h)
        return associative_scan(recurrence, (a, b), 0, combine_mode="generic")[1].relu().sum(0)

    x, h = torch.randn(40, 6), torch.randn(40, 6)
    compiled = weft.compile(function, fullgraph=True)
    with torch.no_grad():
        wanted = function(x.double(), h.double())
        torch.testing.assert_close(compiled(x, h).double(), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("dim", "mode", "size"),
    [
        (3, "generic", (2, 2)),
        (0, "pointwise", (2, 2)),
        (0, "other", (2, 2)),
        (0, "generic", (0, 2)),
        (0, "generic", (5, 0)),
    ],
)
def test_eager_refuses_wrong_arguments(dim: int, mode: str, size: tuple[int, ...]) -> None:
    def function(x: T) -> T:
        return associative_scan(torch.add, x, dim, combine_mode=mode)

    x = torch.randn(size)
    try:
        wanted, theirs = function(x), None
    except (ValueError, IndexError, RuntimeError) as error:
        wanted, theirs = None, error
    if theirs is None:  # torch 2.14 takes rows of one element, and no rows
        assert torch.__version__ >= "2.14"
        torch.testing.assert_close(weft.compile(function)(x), wanted)
        return
    with pytest.raises(type(theirs)) as mine:
        weft.compile(function)(x)
    assert str(mine.value) == str(theirs)


def test_functions_that_are_not_elementwise_run_as_written() -> None:
    def function(x: T) -> T:
        return associative_scan(torch.matmul, x, 0, combine_mode="generic") + 1

    x = torch.randn(5, 3, 3)
    with torch.no_grad():
        torch.testing.assert_close(weft.compile(function)(x), function(x))


def test_arguments_that_it_does_not_take_are_eagers_error() -> None:
    def function(x: T) -> T:
        return associative_scan(torch.add, x, axis=0)

    x = torch.randn(3)
    with pytest.raises(TypeError) as theirs:
        function(x)
    with pytest.raises(TypeError) as mine:
        weft.compile(function)(x)
    assert str(mine.value) == str(theirs.value)
