"""``[tensor] * count`` of a number that data decides: in the graph where it is stacked, or leaves it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves
from weft_bytecode_capture import CaptureOptions, capture

OPTIONS = CaptureOptions(assume_decisions=None, read_contents=False)


def padded(x: torch.Tensor, length: int, padding: torch.Tensor, dim: int = 0) -> torch.Tensor:
    missing = length - x.shape[dim]
    if missing > 0:
        rest = torch.stack([padding] * missing, dim)
        x = torch.cat([x, rest], dim)
    return x


def pad_rows(x: torch.Tensor) -> Any:
    return torch.stack([padded(row[row > 0], x.shape[1], row.mean()) for row in x])


def pad_columns(x: torch.Tensor) -> Any:
    chosen = (x[0] > 0).nonzero()[:, 0]
    return padded(x.index_select(1, chosen), x.shape[1], x[:, 0], 1)


def joined(x: torch.Tensor) -> Any:
    count = (x > 0).sum().item()
    return torch.cat([x.mT] * count), torch.cat([x] * count, 1)


def left(x: torch.Tensor) -> Any:
    y = x * 2
    return [y] * (x > 0).sum().item(), y


FUNCTIONS = [pad_rows, pad_columns, joined, left]


def examples() -> list[torch.Tensor]:
    """Matrices that have a negative number and a positive one in each row, the last not contiguous."""
    generator = torch.Generator().manual_seed(5)
    found = [torch.rand(2, 4, generator=generator) - 0.4 for _ in range(3)]
    for x in found:
        x[:, 1], x[:, 2] = -1.0, 1.0
    return [*found, found[0].mT.contiguous().mT]


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_results_are_eagers_in_one_graph(
    function: Callable[[torch.Tensor], Any], gradients: bool
) -> None:
    compiled = capture(function, options=OPTIONS)
    for x in examples():
        x.requires_grad_(gradients)
        called = compiled(x)
        assert not called.breaks
        wanted, found = tree_leaves(function(x)), tree_leaves(called.result)
        assert len(wanted) == len(found)
        for one, other in zip(wanted, found, strict=True):
            torch.testing.assert_close(one, other)
            assert one.stride() == other.stride()
        assert len({id(each) for each in found}) == len({id(each) for each in wanted})
        if gradients:
            total = [sum((y * y).sum() for y in tree) for tree in (wanted, found)]
            assert torch.allclose(*[torch.autograd.grad(y, x)[0] for y in total])


def test_elements_rely_on_the_number() -> None:
    def elements(x: torch.Tensor) -> Any:
        total = x * 0
        for each in [x] * (x > 0).sum().item():
            total = total + each
        return total

    compiled = capture(elements, options=OPTIONS)
    for x in examples():
        assert torch.equal(compiled(x).result, elements(x))


def test_none_at_all_raises_eagers_error() -> None:
    def stacked(x: torch.Tensor) -> torch.Tensor:
        return torch.stack([x] * (x > 0).sum().item())

    compiled = capture(stacked, options=OPTIONS)
    assert compiled(torch.ones(2)).result.shape == (2, 2)
    assert compiled(-torch.ones(2) + 2 * torch.eye(2)[0]).result.shape == (1, 2)
    with pytest.raises(RuntimeError, match="non-empty TensorList"):
        compiled(-torch.ones(2))
