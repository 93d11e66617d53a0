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
