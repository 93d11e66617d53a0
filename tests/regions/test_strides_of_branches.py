"""Results of branches lie as in eager, also where data says which of two layouts that is."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
import weft

from tests.staged_backend import by_operators

MAKERS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "rows": lambda x: x * 2,
    "columns": lambda x: x.T.contiguous().T,
    "gaps": lambda x: torch.cat([x, x], 1)[:, ::2],
    "expanded": lambda x: (x[:, :1] * 3).expand_as(x),
}


def branches(true: str, false: str) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    def program(x: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
        if p.sum() > 0:
            y = MAKERS[true](x)
        else:
            y = MAKERS[false](x)
        return y

    return program


def choices(true: str, false: str) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """As branches, of two tensors that are there before."""

    def program(x: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
        y, z = MAKERS[true](x), MAKERS[false](x)
        if p.sum() > 0:
            return y
        return z

    return program


@pytest.mark.parametrize("kind", [branches, choices])
@pytest.mark.parametrize("pair", list(itertools.permutations(MAKERS, 2)))
def test_strides_are_those_of_the_branch_taken(
    pair: tuple[str, str], kind: Callable[..., Callable[..., torch.Tensor]]
) -> None:
    program = kind(*pair)
    x = torch.randn(3, 4)
    compiled = weft.compile(program, backend=by_operators)
    for sign in (1.0, -1.0):
        found, expected = (f(x, torch.tensor([sign])) for f in (compiled, program))
        assert found.stride() == expected.stride()
        torch.testing.assert_close(found, expected)


GIVEN: dict[str, Callable[[torch.Tensor], torch.Tensor | tuple[torch.Tensor, ...]]] = {
    "itself": lambda row: row,
    "data": lambda row: row.data,
    "detached": lambda row: row.detach(),
    "part": lambda row: row[1:],
    "matrix": lambda row: row.view(2, 2).t(),
    "both": lambda row: (row, row.view(2, 2)),
    "two parts": lambda row: (row[:2], row[2:]),
}


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("given", GIVEN)
@pytest.mark.parametrize("length", [4, 25])
def test_views_of_a_row_that_a_loop_leaves_lie_in_its_columns(
    length: int, given: str, gradients: bool
) -> None:
    """A loop of few iterations with a break is branches inside one another."""

    def program(x: torch.Tensor) -> list[torch.Tensor]:
        columns = x + 1
        for row in columns:  # noqa: B007
            if length < 9 and columns.sum() > 0:
                break
        found = GIVEN[given](row)
        return list(found) if isinstance(found, tuple) else [found]

    compiled = weft.compile(program, backend=by_operators)
    for sign in (1.0, -1.0):
        x = (sign * torch.rand(4, length) * 8).t().requires_grad_(gradients)
        found, expected = compiled(x), program(x)
        assert [t.stride() for t in found] == [t.stride() for t in expected]
        assert [t.requires_grad for t in found] == [t.requires_grad for t in expected]
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other)
        assert len({t.untyped_storage().data_ptr() for t in found}) == 1


def test_transposed_results_of_loops_keep_gaps() -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        for _ in range(25):
            y = x.diagonal_scatter(x.diagonal() * 2)
        return y.T, y.T.data

    x = torch.randn(5, 20)[:, ::4]
    found, expected = weft.compile(program, backend=by_operators)(x), program(x)
    assert [t.stride() for t in found] == [t.stride() for t in expected] == [(4, 20)] * 2
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)
