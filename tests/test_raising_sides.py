"""Branches on data of which one side only raises stay in one graph, and errors are eager's own."""

from __future__ import annotations

import pytest
import torch
import weft
from weft.report import observe

from .raising_programs import (
    Counting,
    asserted,
    by_number,
    compared,
    distribution,
    handled,
    inlined,
    inside_a_kept_loop,
    looped,
    matrix_product,
    refused,
    same_values,
    scaled_and_checked,
    several,
    unless,
    with_a_setting,
    written_after,
    written_before,
)

GOOD = torch.tensor([0.5, 1.0, 2.0, 0.25])
LARGE = torch.ones(1 << 13)
CALLS = [
    GOOD,
    -GOOD,
    GOOD * 400,
    torch.tensor([0.5, torch.nan, 1.0, 2.0]),
    torch.tensor([torch.inf, 1.0, 2.0, 3.0]),
    torch.zeros(4),
    GOOD,
]

PROGRAMS = [
    *(asserted, refused, unless, several, by_number, compared, inlined, scaled_and_checked),
    *(looped, distribution, matrix_product, same_values, with_a_setting),
]


def outcome(function, x):
    """What a call gives, or its exception's type and text; what is left of its argument."""
    given = x.clone()
    try:
        return function(given), given
    except Exception as error:
        return (type(error), str(error)), given


def assert_same(found, wanted):
    assert type(found) is type(wanted), (found, wanted)
    if isinstance(wanted, torch.Tensor):
        torch.testing.assert_close(found, wanted, equal_nan=True)
    elif isinstance(wanted, tuple):
        assert len(found) == len(wanted)
        for left, right in zip(found, wanted, strict=True):
            assert_same(left, right)
    else:
        assert found == wanted


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_one_graph_and_eagers_errors(program):
    with observe(weft.CompileLog()) as log:
        compiled = weft.compile(program, dynamic=False)
        for x in CALLS:
            assert_same(outcome(compiled, x), outcome(program, x))
    assert len(log.graphs) == 1
    assert not log.graph_breaks


@pytest.mark.parametrize("program", [asserted, several, inlined])
def test_sizes_that_change(program):
    with observe(weft.CompileLog()) as log:
        compiled = weft.compile(program, fullgraph=True)
        for x in (GOOD, GOOD[:3], GOOD[:2], -GOOD, -GOOD[:3]):
            assert_same(outcome(compiled, x), outcome(program, x))
    assert len(log.graphs) == 2


@pytest.mark.parametrize("program", [asserted, unless, scaled_and_checked, matrix_product])
def test_gradients(program):
    compiled = weft.compile(program, fullgraph=True)
    leaves = [GOOD.clone().requires_grad_() for _ in range(2)]
    for function, leaf in zip((program, compiled), leaves, strict=True):
        function(leaf).square().sum().backward()
    torch.testing.assert_close(leaves[1].grad, leaves[0].grad)
    with pytest.raises((AssertionError, OverflowError, LookupError)):
        compiled(
            (GOOD * -400).abs().neg().requires_grad_() if program is not unless else GOOD * 400
        )


@pytest.mark.parametrize(
    "program", [handled, written_before, written_after, inside_a_kept_loop, Counting()]
)
def test_what_the_error_leaves(program):
    """The program handles the error, or has changed something: whatever is compiled, all is as in eager."""
    original = Counting() if isinstance(program, Counting) else program
    compiled = weft.compile(program)
    for x in CALLS:
        assert_same(outcome(compiled, x), outcome(original, x))


def test_what_is_written_is_not_copied_at_each_call():
    """A check behind a write to much would cost a copy of it: the graph breaks behind the write."""
    found = []
    for program, x in ((written_before, LARGE), (written_before, GOOD), (written_after, LARGE)):
        with observe(weft.CompileLog()) as log:
            compiled = weft.compile(program)
            for given in (x, x, -3 * x, x):
                assert_same(outcome(compiled, given), outcome(program, given))
        found.append([(one.kind, len(log.graphs)) for one in log.graph_breaks])
    assert found == [[("check of data behind a write", 2)], [], []]
