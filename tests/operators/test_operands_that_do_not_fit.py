"""Operands whose sizes or dtypes eager refuses, and fakes let pass: eager's error, no values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import weft
from torch import Tensor

Program = Callable[..., Any]
MASK = torch.tensor([True, False, True, True, False])
LOGITS, TARGETS = torch.randn(5, 2, 4).log_softmax(-1), torch.ones(2, 2, dtype=torch.int64)
LENGTHS = torch.tensor([5, 5])


def put(x: Tensor, mask: Tensor, values: Tensor) -> Tensor:
    return x.index_put((mask,), values)


def added(x: Tensor, mask: Tensor, values: Tensor) -> Tensor:
    return x.clone().index_put_((mask,), values, accumulate=True)


def assigned(x: Tensor, mask: Tensor, values: Tensor) -> Tensor:
    y = x.clone()
    y[mask] = values
    return y


def assigned_columns(x: Tensor, mask: Tensor, values: Tensor) -> Tensor:
    y = x.clone()
    y[:, mask] = values
    return y


REFUSED: list[tuple[Program, tuple[Any, ...]]] = [
    *((program, (torch.randn(5, 6), MASK, torch.randn(5))) for program in (put, added, assigned)),
    (assigned, (torch.randn(5, 6), MASK, torch.randn(3, 5))),
    (assigned, (torch.randn(5, 6, 2), MASK, torch.randn(2, 2))),
    (assigned_columns, (torch.randn(6, 5), MASK, torch.randn(5, 1))),
    (lambda x: x.squeeze((0, 0)), (torch.randn(1, 3, 4),)),
    (lambda x: x.squeeze((0, -2)), (torch.randn(1, 3),)),
    (F.ctc_loss, (LOGITS, TARGETS, LENGTHS, LENGTHS / 5)),
    (F.ctc_loss, (LOGITS, TARGETS, LENGTHS.double(), LENGTHS // 5)),
    (F.ctc_loss, (LOGITS, TARGETS, LENGTHS > 0, LENGTHS // 5)),
]


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize(("program", "operands"), REFUSED)
def test_refused(program: Program, operands: tuple[Any, ...], dynamic: bool) -> None:
    with pytest.raises(RuntimeError) as wanted:
        program(*operands)
    with pytest.raises(RuntimeError) as got:
        weft.compile(program, dynamic=dynamic)(*operands)
    assert str(got.value) == str(wanted.value)


TAKEN: list[tuple[Program, tuple[Any, ...]]] = [
    *((program, (torch.randn(5, 6), MASK, torch.randn(6))) for program in (put, added, assigned)),
    (assigned, (torch.randn(5, 6), MASK, torch.randn(3, 6))),
    (assigned, (torch.randn(5, 6), MASK, torch.randn(3, 1))),
    (assigned, (torch.randn(5, 6), torch.rand(5, 6) > 0.5, torch.tensor(2.0))),
    (assigned_columns, (torch.randn(6, 5), MASK, torch.randn(6, 3))),
    (assigned_columns, (torch.randn(6, 5), MASK, torch.randn(6, 1))),
    (lambda x: x.squeeze((0, -1)), (torch.randn(1, 3, 1),)),
    *(
        (lambda x: torch.bincount(x) + 1, (torch.tensor([1, 2, 2], dtype=dtype),))
        for dtype in (torch.uint8, torch.int32, torch.int64)
    ),
    *(
        (lambda x, w: torch.bincount(x, weights=w), (torch.tensor([1, 2, 2]), weights))
        for weights in (torch.randn(3), torch.randn(3).double(), torch.tensor([1, 2, 3]))
    ),
]


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize(("program", "operands"), TAKEN)
def test_taken(program: Program, operands: tuple[Any, ...], dynamic: bool) -> None:
    torch.testing.assert_close(
        weft.compile(program, dynamic=dynamic)(*operands), program(*operands)
    )
