"""Fills by a tensor of one element, which the CPU converts: eager's values, or eager's error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import weft
from torch import Tensor

pytestmark = pytest.mark.native

FIRST = torch.tensor([0])

PROGRAMS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "masked_fill": lambda t, v: t.masked_fill(t > 0, v),
    "masked_fill_": lambda t, v: t.clone().masked_fill_(t > 0, value=v),
    "function": lambda t, v: torch.masked_fill(t, t > 0, v) * 1,
    "index_fill": lambda t, v: t.index_fill(0, FIRST, v),
    "index_fill_": lambda t, v: t.clone().index_fill_(0, FIRST, v),
}
VALUES = [
    torch.tensor(n, dtype=dtype)
    for dtype, numbers in (
        (torch.int64, (1, 127, 128, -129, 256, 65505, 2**31, 2**62)),
        (torch.float32, (1.5, -1.5, 300.5, 65520.0, 1e30, float("inf"), float("nan"))),
        (torch.float64, (1e300, -float("inf"))),
        (torch.float16, (1.5, 65504.0)),
        (torch.bool, (True,)),
    )
    for n in numbers
]
DTYPES = (
    torch.int8,
    torch.uint8,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.float32,
    torch.bool,
)


def _outcome(function: Callable[..., Any], *arguments: Tensor) -> Any:
    try:
        return function(*arguments)
    except Exception as error:
        return type(error), str(error)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", PROGRAMS)
def test_like_eager(name: str, dtype: torch.dtype) -> None:
    compiled = weft.compile(PROGRAMS[name], options={"recompile_limit": 20})
    raised = 0
    for value in VALUES:
        t = torch.tensor([0, 1, 1]).to(dtype)
        wanted, found = _outcome(PROGRAMS[name], t, value), _outcome(compiled, t, value)
        if isinstance(wanted, tuple):
            raised += 1
            assert found == wanted
        else:
            torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True)
    assert raised or dtype in (torch.bool, torch.int64, torch.float32)
