"""Programs as users write them: eager's results and effects, and how many graphs and regions each gives.

Where a program has no region, or is more than one graph, its table says why.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from weft_bytecode_capture import CaptureOptions, capture

from . import numerical_programs, python_in_regions, sequence_programs

PROGRAMS: dict[str, Callable[..., Any]] = {
    function.__name__: function
    for module in (numerical_programs, sequence_programs, python_in_regions)
    for function in module.PROGRAMS
}

KEPT: dict[str, int] = {
    "newton": 1,
    "newton_with_a_limit": 1,
    "bisection": 1,
    "power_iteration": 1,
    "fixed_point": 1,
    "anderson": 1,
    "runge_kutta": 1,
    "adaptive_steps": 1,
    "conjugate_gradient": 1,
    "cholesky": 1,
    "cholesky_by_columns": 1,
    "forward_substitution": 1,
    "back_substitution": 1,
    "jacobi_until_still": 1,
    "gradient_descent": 1,
    "adam_by_hand": 1,
    "line_search": 1,
    "sinkhorn": 1,
    "kalman": 1,
    "greedy_decoding": 1,
    "decoding_while": 1,
    "batched_decoding": 1,
    "beam_search": 1,
    "key_value_cache": 1,
    "viterbi": 2,
    "ctc_alpha": 1,
    "k_means": 1,
    "k_means_cluster_by_cluster": 1,
    "mixture_of_gaussians": 1,
    "particle_filter": 1,
    "rollout": 1,
    "returns": 1,
    "q_learning": 1,
    "routed_row_by_row": 1,
    "suppression": 1,
    "bubble_sort": 1,
    "union_find": 1,
    "sampling_steps": 1,
    "try_in_a_loop": 1,
    "except_in_a_loop": 1,
    "with_in_a_loop": 1,
    "own_context_in_a_loop": 1,
    "try_around_a_branch": 1,
    "with_around_a_branch": 1,
    "break_inside_with": 1,
    "return_from_a_while": 2,
    "return_from_nested_loops": 2,
    "first_place": 1,
    "break_of_an_inner_loop": 1,
    "break_of_both_loops": 1,
    "while_in_a_while": 1,
    "while_in_a_for": 1,
    "continue_by_a_value": 1,
    "while_with_continue": 1,
    "conditional_expressions": 2,
    "and_or_not": 1,
    "chained_comparison": 1,
    "float_that_grows": 1,
    "float_in_a_while": 1,
    "number_by_side": 0,
    "float_by_side": 0,
    "flag_by_side": 1,
    "flag_in_a_loop": 1,
    "counted_in_branches": 1,
    "count_that_is_used": 1,
    "patience": 1,
    "count_in_the_test": 1,
    "write_at_a_count": 1,
    "position_of_the_greatest": 1,
    "position_as_an_int": 1,
    "item_in_a_loop": 1,
    "sliding_pairs": 1,
    "closure_in_a_loop": 1,
    "previous_and_current": 1,
    "first_iteration_differs": 1,
    "every_second": 1,
    "asserts": 1,
    "euler": 1,
    "comprehension_in_a_loop": 1,
    "comprehension_that_hides_a_local": 1,
    "comprehension_over_rows": 1,
    "nonlocal_state": 1,
    "cell_of_a_loop": 1,
    "lambda_in_a_loop": 1,
    "attributes_of_an_object": 1,
    "attribute_by_side": 1,
    "dict_of_counts": 1,
    "return_the_places": 1,
    "edit_distance": 1,
    "time_warping": 1,
    "viterbi_with_lists": 1,
    "last_of_a_list": 1,
    "break_inside_try": 1,
}
"""Programs of one graph: how many branches and loops are outermost in it.

Branches that only choose a number are none: both numbers are computed.
"""

GIVEN_ON_3_12: dict[str, tuple[int, int]] = {
    "k_means": (1, 2),
    "return_the_places": (3, 0),
}
"""Graphs and regions of those that Python 3.12 compiles to other bytecode."""

GIVEN_ON_3_14: dict[str, tuple[int, int]] = GIVEN_ON_3_12 | {
    "return_the_places": (1, 1),
}
"""And of those that Python 3.14 compiles to other bytecode again."""

UNROLLED: dict[str, str] = {
    "advantages": "object that a region changes",
    "generator_in_a_loop": "loop in a generator",
    "sum_over_rows": "loop in a generator",
    "list_of_tensors": "loop over neither a range nor a tensor's rows",
    "unbound_rows": "loop over neither a range nor a tensor's rows",
    "chunks": "loop over neither a range nor a tensor's rows",
    "while_by_numbers": "while loop whose test is on no tensor",
}
"""Programs of one graph whose loop is not kept, with what is reported of it."""

SHORT = ("mixture_of_experts", "while_by_two_pointers", "halving_strides", "gram_schmidt")
"""Programs of one graph whose loops are shorter than ``rolled_loop_length``: nothing is reported."""

BROKEN: dict[str, str] = {
    "any_of_rows": "generator that outlives the graph",
    "min_and_max": "branch on a tensor's value",
    "list_that_a_branch_appends_to": "branch on a tensor's value",
}
"""Programs that break, with the kind of the first break."""


def rows(scale: float) -> torch.Tensor:
    generator = torch.Generator().manual_seed(int(abs(scale) * 10))
    return torch.randn(20, 4, generator=generator) * scale


def captured(name: str) -> Any:
    """What is captured at the first of several inputs; at each of them it gives what eager gives."""
    function = PROGRAMS[name]
    compiled = capture(function)
    found = []
    for scale in (1.0, -1.0, 0.3):
        mine, theirs = rows(scale), rows(scale)
        with torch.no_grad():
            wanted = function(theirs)
            found.append(compiled(mine))
        torch.testing.assert_close(found[-1].result, wanted, equal_nan=True)
        torch.testing.assert_close(mine, theirs, equal_nan=True)
    return found[0]


def regions_in(found: Any) -> int:
    names = [str(n.target) for g in found.graphs for n in g.graph_module.graph.nodes]
    return names.count("cond") + names.count("while_loop")


def test_every_program_is_in_the_table() -> None:
    assert {*KEPT, *UNROLLED, *SHORT, *BROKEN} == PROGRAMS.keys()


@pytest.mark.parametrize("name", KEPT)
def test_programs_that_are_kept_whole(name: str) -> None:
    found = captured(name)
    given = {} if sys.version_info < (3, 12) else GIVEN_ON_3_12
    given = given if sys.version_info < (3, 14) else GIVEN_ON_3_14
    assert (len(found.graphs), regions_in(found)) == given.get(name, (1, KEPT[name]))


@pytest.mark.parametrize("name", UNROLLED)
def test_programs_that_are_unrolled(name: str) -> None:
    found = captured(name)
    assert (len(found.graphs), regions_in(found), found.breaks) == (1, 0, ())
    reasons = [region.reason for report in found.reports for region in report.unkept_regions]
    assert any(UNROLLED[name] in reason for reason in reasons)


@pytest.mark.parametrize("name", SHORT)
def test_short_loops_are_unrolled(name: str) -> None:
    found = captured(name)
    assert (len(found.graphs), regions_in(found), found.breaks) == (1, 0, ())
    assert not any(report.unkept_regions for report in found.reports)


@pytest.mark.parametrize("name", BROKEN)
def test_programs_that_are_broken(name: str) -> None:
    found = captured(name)
    assert found.breaks[0].kind == BROKEN[name]


def test_nothing_is_kept_without_the_option() -> None:
    compiled = capture(PROGRAMS["patience"], options=CaptureOptions(keep_control_flow=False))
    with torch.no_grad():
        found, wanted = compiled(rows(1.0)), PROGRAMS["patience"](rows(1.0))
    torch.testing.assert_close(found.result, wanted)
    assert regions_in(found) == 0 and found.breaks
