"""When gradients of attention are left apart because a few programs would do all the work."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import sympy
from weft_codegen_triton.attention.suitability import has_enough_programs
from weft_codegen_triton.gpu import REFERENCE


def kernel(batches: int, group: int, queries: int, keys: int, *, is_sum: bool) -> Any:
    """The extents of a kernel that goes through ``group`` of its ``batches`` matrices in each program."""
    return SimpleNamespace(
        total=object() if is_sum else None,
        group=SimpleNamespace(count=sympy.Integer(group)),
        score_rows=SimpleNamespace(batches=sympy.Integer(batches), queries=sympy.Integer(queries)),
        key_loop=SimpleNamespace(size=sympy.Integer(keys)),
    )


@pytest.mark.parametrize(
    ("batches", "group", "queries", "is_enough"),
    [
        (2048 * 3, 2048, 49, False),  # windows of a Swin-T
        (64 * 12, 64, 49, True),
        (8 * 8, 8, 512, True),  # a bias of a T5
        (512 * 12, 512, 1024, True),
        (2048 * 8, 2048, 196, False),
        (2048 * 9, 2048, 196, True),  # four programs for the rows, four for the columns
        (512 * 12, 512, 64, False),
    ],
)
def test_sums_over_many_matrices(batches: int, group: int, queries: int, is_enough: bool) -> None:
    assert (
        has_enough_programs(kernel(batches, group, queries, queries, is_sum=True), REFERENCE)
        is is_enough
    )


@pytest.mark.parametrize(
    ("batches", "group", "keys", "is_enough"),
    [(32, 4, 8192, True), (32, 4, 64, False), (6144, 1, 49, True)],
)
def test_groups_of_heads(batches: int, group: int, keys: int, is_enough: bool) -> None:
    assert (
        has_enough_programs(kernel(batches, group, keys, keys, is_sum=False), REFERENCE)
        is is_enough
    )
