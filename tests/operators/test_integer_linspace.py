"""``linspace`` and ``logspace`` of integers between floats, whose kernel cuts the ends to integers first."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import weft


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int8, torch.bool, torch.float32])
@pytest.mark.parametrize("end", [2.7, -1.5, 7, 9.9])
@pytest.mark.parametrize("function", [torch.linspace, torch.logspace])
def test_ends_between_integers(function: Any, end: float, dtype: torch.dtype) -> None:
    def program(x: torch.Tensor) -> Any:
        return function(0.5, end, 5, dtype=dtype), x + 1

    x = torch.ones(3)
    try:
        wanted = program(x)
    except (RuntimeError, NotImplementedError) as error:
        with pytest.raises(type(error)):
            weft.compile(program)(x)
    else:
        for found, value in zip(weft.compile(program)(x), wanted, strict=True):
            torch.testing.assert_close(found, value)
    weft.reset()
