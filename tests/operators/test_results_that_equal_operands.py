"""Results that equal an operand have memory of their own where eager's have, be there dims or not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import weft

PROGRAMS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "cumsum": lambda x: x.cumsum(0),
    "cumprod": lambda x: x.cumprod(0),
    "cummax": lambda x: x.cummax(0)[0],
    "logcumsumexp": lambda x: x.logcumsumexp(0),
    "sum of no dims": lambda x: x.sum([]) if x.dim() == 0 else x.sum(0, keepdim=True),
    "amax": lambda x: x.amax(0),
    "sort": lambda x: x.sort(0)[0],
    "flip": lambda x: x.flip(0),
    "roll": lambda x: x.roll(1, 0) if x.dim() else x.roll(1),
    "repeat": lambda x: x.repeat([1] * x.dim()),
    "cat": lambda x: torch.cat([x]) if x.dim() else x.clone(),
    "index_select": lambda x: x.index_select(0, torch.tensor([0])),
    "gather": lambda x: x.gather(0, torch.zeros(x.shape, dtype=torch.int64)),
    "where": lambda x: torch.where(x == x, x, x),
    "masked_fill": lambda x: x.masked_fill(x != x, 0.0),
    "clamp": lambda x: x.clamp(min=-9.0),
    "softmax times": lambda x: x * torch.softmax(x * 0, 0).sum(),
    "tril": lambda x: x.tril() if x.dim() > 1 else x.round(decimals=9),
    "nan_to_num": lambda x: x.nan_to_num(),
    "slice_scatter": lambda x: x.slice_scatter(x) if x.dim() else x + 0,
}


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)], ids=str)
@pytest.mark.parametrize("program", PROGRAMS)
def test_storages_are_apart_as_eagers(program: str, shape: tuple[int, ...]) -> None:
    def run(function: Callable[[torch.Tensor], torch.Tensor]) -> tuple[list[float], float, bool]:
        x = torch.full(shape, 0.5, dtype=torch.float64)
        result = function(x)
        result.add_(1)
        storages = result.untyped_storage()._cdata, x.untyped_storage()._cdata
        return result.flatten().tolist(), x.sum().item(), storages[0] == storages[1]

    assert run(weft.compile(PROGRAMS[program])) == run(PROGRAMS[program])
