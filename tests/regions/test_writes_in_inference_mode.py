"""Writes in ``torch.inference_mode`` beside numbers and loops that data decides: kept, and as eager's.

Inference tensors count no writes, so that a graph says itself which of its arguments it writes to.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
import weft
from torch import Tensor

MODES = [torch.no_grad, torch.inference_mode]
SIZES = [1, 2, 3, 5, 8, 13]


def suppressed(boxes: Tensor, scores: Tensor, written: Tensor) -> Tensor:
    """Non-maximum suppression of intervals."""
    keep = torch.zeros_like(scores, dtype=torch.bool)
    dropped = torch.zeros_like(scores, dtype=torch.bool)
    for i in scores.argsort(descending=True):
        if dropped[i]:
            continue
        keep[i] = True
        shared = torch.minimum(boxes[i, 1], boxes[:, 1]) - torch.maximum(boxes[i, 0], boxes[:, 0])
        dropped |= shared.clamp(min=0) > 0.5
    return keep


def filled_to_a_size_of_data(boxes: Tensor, scores: Tensor, written: Tensor) -> Tensor:
    keep = torch.zeros_like(scores)
    keep[: int((scores > 0.5).sum())] = 1
    return keep


def filled_while_data_says(boxes: Tensor, scores: Tensor, written: Tensor) -> tuple[Tensor, int]:
    out = torch.zeros_like(scores)
    count = 0
    while scores.sum() > 0:
        out[0] += scores.sum()
        scores = scores - 0.3
        count += 1
    return out, count


def writes_its_argument(boxes: Tensor, scores: Tensor, written: Tensor) -> Tensor:
    written.add_(1)
    keep = scores.new_zeros(scores.shape)
    keep[: int((scores > 0.5).sum())] = 2
    written[:1].mul_(keep[0])
    return keep


def writes_its_argument_in_a_loop(boxes: Tensor, scores: Tensor, written: Tensor) -> Tensor:
    first = written[:1]
    while scores.sum() > 0:
        first += scores.sum()
        scores = scores - 0.3
    return scores


def writes_what_may_be_its_argument(boxes: Tensor, scores: Tensor, written: Tensor) -> Tensor:
    chosen = written if scores.sum() > 1 else boxes
    chosen.mul_(2)
    return chosen[:1] + int(scores.sum())


def writes_by_data(boxes: Tensor, scores: Tensor, written: Tensor) -> Tensor:
    written.data.add_(1)
    return scores[: int((scores > 0.5).sum())] * 2


PROGRAMS = [
    suppressed,
    filled_to_a_size_of_data,
    filled_while_data_says,
    writes_its_argument,
    writes_its_argument_in_a_loop,
    writes_what_may_be_its_argument,
    writes_by_data,
]


def operands(size: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(size)
    boxes = torch.rand(size, 2, generator=generator).sort(1).values * 3
    return [boxes, torch.rand(size, generator=generator), torch.ones(size, 2)]


@pytest.mark.parametrize("inside", [False, True], ids=["made outside", "made inside"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("program", PROGRAMS)
def test_results_and_arguments_are_eagers(
    program: Callable[..., Any], mode: Callable[[], AbstractContextManager[None]], inside: bool
) -> None:
    compiled = weft.compile(program, backend="eager", fullgraph=True)
    for size in SIZES:
        outcomes = []
        for function in (program, compiled):
            given = [] if inside else operands(size)
            with mode():
                given = given or operands(size)
                outcomes.append((function(*given), given))
        torch.testing.assert_close(outcomes[1], outcomes[0])


def fails_behind_a_write(x: Tensor, written: Tensor) -> Tensor:
    written.add_(1)
    made = torch.zeros(3)
    made += x[: int((x > 0).sum())]
    written.mul_(2)
    return made


def fails_behind_a_loop(x: Tensor, written: Tensor) -> Tensor:
    while written.sum() < 10:
        written += 1
    made = torch.zeros(3)
    made += x[: int((x > 0).sum())]
    return made


@pytest.mark.parametrize("program", [fails_behind_a_write, fails_behind_a_loop])
@pytest.mark.parametrize("mode", MODES)
def test_what_fails_leaves_eagers_writes(
    program: Callable[..., Any], mode: Callable[[], AbstractContextManager[None]]
) -> None:
    compiled = weft.compile(program, fullgraph=True)
    for count in (3, 2, 3, 4, 5, 6):
        outcomes = []
        for function in (program, compiled):
            with mode():
                x = torch.zeros(6)
                x[:count] = 1
                written = torch.ones(2)
                try:
                    outcomes.append((function(x, written), written, None))
                except RuntimeError as error:
                    outcomes.append((None, written, str(error)))
        assert outcomes[0][2] == outcomes[1][2]
        torch.testing.assert_close(outcomes[1][:2], outcomes[0][:2])
