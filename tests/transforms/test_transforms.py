"""Programs that use function transforms are one graph, and compute what they compute in eager."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import weft
from torch import Tensor
from torch.utils import _pytree as pytree

from tests.staged_backend import by_operators

from .programs import NET, PROGRAMS, STACKED

PARAMETERS = (*NET.parameters(), *STACKED.values())


def arguments(rows: int = 4, *, train: bool = False) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(rows)
    x = torch.randn(rows, 3, dtype=torch.float64, generator=generator)
    y = torch.randn(3, 5, dtype=torch.float64, generator=generator)
    return x.requires_grad_(train), y.requires_grad_(train)


def assert_same(found: Any, expected: Any) -> None:
    """Equal trees; their tensors have equal values, strides and needs of gradients."""
    leaves, tree = pytree.tree_flatten(expected)
    others, other_tree = pytree.tree_flatten(found)
    assert other_tree == tree
    for other, leaf in zip(others, leaves, strict=True):
        torch.testing.assert_close(
            other, leaf, rtol=1e-11, atol=1e-11, check_stride=isinstance(leaf, Tensor)
        )
        assert not isinstance(leaf, Tensor) or other.requires_grad == leaf.requires_grad


def gradients(function: Callable[..., Any], given: Sequence[Tensor]) -> tuple[Any, ...]:
    """The results of a call, and the gradients of all that it is made of."""
    results = function(*given)
    leaves = [leaf for leaf in pytree.tree_leaves(results) if isinstance(leaf, Tensor)]
    wanted = [leaf for leaf in leaves if leaf.requires_grad]
    made = (*given, *PARAMETERS)
    total = sum((leaf * torch.ones_like(leaf).cumsum(-1)).sum() for leaf in wanted if leaf.dim())
    total = total + sum(leaf * 2 for leaf in wanted if not leaf.dim())
    found = torch.autograd.grad(total, made, allow_unused=True) if wanted else ()  # type: ignore[arg-type]
    return results, found


@pytest.mark.parametrize("name", PROGRAMS)
def test_results(name: str) -> None:
    program = PROGRAMS[name]
    compiled = weft.compile(program, fullgraph=True, backend=by_operators)
    for rows in (4, 4, 6):
        if name == "indexed" and rows != 4:
            continue
        given = arguments(rows)
        assert_same(compiled(*given), program(*given))


@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients(name: str) -> None:
    program = PROGRAMS[name]
    given = arguments(train=True)
    found = gradients(weft.compile(program, fullgraph=True, backend=by_operators), given)
    assert_same(found, gradients(program, given))


@pytest.mark.parametrize("name", PROGRAMS)
def test_without_gradients(name: str) -> None:
    program = PROGRAMS[name]
    given = arguments(train=True)
    with torch.no_grad():
        assert_same(
            weft.compile(program, fullgraph=True, backend=by_operators)(*given), program(*given)
        )
