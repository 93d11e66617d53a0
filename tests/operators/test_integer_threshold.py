"""``threshold`` of integers: the kernel takes whole parts of its numbers, and keeps large integers."""

from __future__ import annotations

import pytest
import torch
import weft
from torch.nn import functional as F

INTEGERS = {
    torch.int8: [0, 1, -1, 127, -128, 3],
    torch.uint8: [0, 1, 2, 255, 128, 3],
    torch.int32: [0, 1, -1, 2**24 + 1, -(2**31), 3],
    torch.int64: [0, 1, -1, 2**53 + 1, 2**63 - 1, -(2**63)],
}


@pytest.mark.parametrize(("threshold", "value"), [(0.5, 20.0), (-0.5, -2.7), (1, 0), (2.9, 100.9)])
@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_like_eager(dtype: torch.dtype, threshold: float, value: float) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return F.threshold(x, threshold, value)

    x = torch.tensor(INTEGERS[dtype]).to(dtype)
    compiled = weft.compile(function)
    try:
        expected = function(x)
    except RuntimeError as error:  # a number that the dtype does not hold
        with pytest.raises(RuntimeError, match=str(error)[:40]):
            compiled(x)
    else:
        found = compiled(x)
        assert found.dtype == dtype and torch.equal(found, expected)
