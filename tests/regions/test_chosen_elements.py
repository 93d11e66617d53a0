"""Elements that data chooses in a kept loop: copies are kept; other programs are told what would be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from weft_bytecode_capture import CaptureOptions, capture

from .regions_kept import regions_in
from .test_gradients import check
from .test_gradients import compiled_regions as compiled_regions

Program = Callable[[torch.Tensor], Any]


def largest(x: torch.Tensor) -> Any:
    best = x[0]
    for i in range(1, x.shape[0]):
        if x[i].max() > best.max():
            best = x[i]
    return best.clone()


def largest_with_its_sum(x: torch.Tensor) -> Any:
    best, score = x[0], x[0].sum()
    for row in x:
        if row.sum() > score:
            best, score = row, row.sum()
    return best * 2, score


def largest_computed(x: torch.Tensor) -> Any:
    best, where = x[0] + 0, -1
    for i, row in enumerate(x):
        y = torch.sin(row)
        if y.sum() > best.sum():
            best, where = y, i
    return best, where


def marked(x: torch.Tensor) -> Any:
    out, kept = [], []
    for row in x:
        y = row * 2
        test = y.sum() > 0
        out.append(torch.where(test, y, 0))
        kept.append(test)
    return torch.stack(out), torch.stack(kept) * 1


@pytest.mark.parametrize("program", [largest, largest_with_its_sum, largest_computed, marked])
def test_copies_are_kept(program: Program, compiled_regions: list[int]) -> None:
    kept = regions_in(program, [(torch.randn(n, 3),) for n in (6, 8, 5, 9)])
    assert len(kept[-1]) == 2, kept

    def tensors(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        results = program(x)
        results = results if isinstance(results, tuple) else (results,)
        return tuple(map(torch.as_tensor, results))

    make = lambda n: (torch.randn(n, 3, dtype=torch.float64, requires_grad=True),)  # noqa: E731
    check(tensors, make, lengths=(17, 20, 1))


def a_part_of_the_callers(x: torch.Tensor) -> Any:
    best = x[0]
    for i in range(1, x.shape[0]):
        if x[i].max() > best.max():
            best = x[i]
    return best


def test_breaks_name_another_way() -> None:
    """Of what a caller has only Python can give a part."""
    program = a_part_of_the_callers
    regions_in(program, [(torch.randn(n, 3),) for n in (6, 8, 1, 2)])
    captured = capture(program, options=CaptureOptions(rolled_loop_length=4))(torch.randn(6, 3))
    assert any(".clone()" in str(found) for found in captured.breaks)
