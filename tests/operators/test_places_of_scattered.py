"""Where results of functional writes to a part lie in their storage: as in eager, gaps and offset kept."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import weft

Written = Callable[[torch.Tensor], torch.Tensor]

SCATTERS: dict[str, Written] = {
    "select": lambda x: x.select_scatter(x.select(0, 0) * 2, 0, -1),
    "slice": lambda x: x.slice_scatter(x[:1] * 2, 0, 0, 1),
    "diagonal": lambda x: x.diagonal_scatter(x.diagonal() * 2),
    "as strided": lambda x: x.as_strided_scatter(x[0] * 2, x[0].shape, x[0].stride(), 20),
    "of a result": lambda x: (x * 2)[1:].slice_scatter(x[:1] * 2, 0, 0, 1),
}

USES: dict[str, Written] = {
    "returned": lambda y: y,
    "added to": lambda y: y.add_(1),
    "masked": lambda y: y.masked_fill_(y > 5, 1.0),
    "viewed": lambda y: y[1:],
    "computed with": lambda y: y + 1,
}

BASE = torch.arange(48.0)

OPERANDS = {
    "plain": BASE[:24].view(4, 6),
    "transposed": BASE[:24].view(6, 4).T,
    "with gaps": BASE.view(4, 12)[:, ::2],
    "with an offset": BASE[3:27].view(4, 6),
    "with both": BASE.view(4, 12)[1:, 1::2],
}


def placed(tensor: torch.Tensor) -> Any:
    return tensor.tolist(), tensor.stride(), tensor.storage_offset()


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("scatter", SCATTERS)
def test_results_lie_as_in_eager(scatter: str, use: str) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return USES[use](SCATTERS[scatter](x))

    compiled = weft.compile(program)
    for name, operand in OPERANDS.items():
        assert placed(compiled(operand)) == placed(program(operand)), name


def test_a_view_is_not_detached_in_place_behind_a_break() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        view = (x * 2)[0]
        time.sleep(0)
        return view.detach_()

    with pytest.raises(RuntimeError, match="Can't detach views in-place"):
        weft.compile(program)(torch.ones(2, 3))


@pytest.mark.parametrize("count", [0, 3])
def test_one_hot_of_no_classes_raises_eagers_error(count: int) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return F.one_hot(x, 0)

    values = torch.zeros(count, dtype=torch.int64)
    with pytest.raises(RuntimeError) as expected:
        program(values)
    with pytest.raises(RuntimeError) as found:
        weft.compile(program)(values)
    assert str(found.value) == str(expected.value)
