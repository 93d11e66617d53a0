"""Numbers beyond a dtype: refused exactly where eager raises an error for them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.fx
from beside_eager import check
from torch.nn import functional as F
from weft_functionalize import Unsupported, functionalize

FIRST = torch.tensor([0])

PROGRAMS: dict[str, Any] = {
    "add": lambda t, n: t + n,
    "add with alpha": lambda t, n: torch.add(t, t, alpha=n),
    "addcmul": lambda t, n: torch.addcmul(t, t, t, value=n),
    "clamp": lambda t, n: t.clamp(n, n),
    "clamp_": lambda t, n: t.clone().clamp_(max=n),
    "clamp_min": lambda t, n: t.clamp(min=n),
    "elu": lambda t, n: F.elu(t, n),
    "fill_": lambda t, n: t.clone().fill_(n),
    "full": lambda t, n: torch.full((3,), n, dtype=t.dtype),
    "full of one": lambda t, n: torch.full((1,), n, dtype=t.dtype),
    "full_like": lambda t, n: torch.full_like(t, n),
    "greater": lambda t, n: t > n,
    "hardtanh": lambda t, n: torch.ops.aten.hardtanh(t, -1, abs(n)),
    "index_fill": lambda t, n: t.index_fill(0, FIRST, n),
    "leaky_relu": lambda t, n: F.leaky_relu(t, n),
    "lerp": lambda t, n: torch.lerp(t, t, n),
    "linspace": lambda t, n: torch.linspace(0, n, 3, dtype=t.dtype),
    "masked_fill": lambda t, n: t.masked_fill(t > 0, n),
    "multiply": lambda t, n: t * n,
    "new_full": lambda t, n: t.new_full((2,), n),
    "pad": lambda t, n: F.pad(t, (1, 1), value=n),
    "pow": lambda t, n: t**n,
    "rsub": lambda t, n: torch.rsub(t, t, alpha=n),
    "scatter": lambda t, n: t.scatter(0, FIRST, n),
    "softplus": lambda t, n: F.softplus(t, n),
    "sub_": lambda t, n: t.clone().sub_(t, alpha=n),
    "threshold": lambda t, n: F.threshold(t, 0, n),
    "where": lambda t, n: torch.where(t > 0, t, n),
}
CLAMPS = {"clamp", "clamp_", "clamp_min", "hardtanh"}
TAKES_BOUNDS_BEYOND = torch.__version__ >= "2.15"
"""Whether eager clamps integers to bounds beyond their dtype, where only one side has to fit."""

INFINITY, NAN = float("inf"), float("nan")
NUMBERS: dict[torch.dtype, tuple[float, ...]] = {
    torch.uint8: (255, 256, -1, -256, -1.5, -1.0),
    torch.int8: (127, 128, -128, 300.5, NAN),
    torch.int32: (2**31, 1e39, INFINITY),
    torch.float16: (65504, 65505, -1e9, -INFINITY, NAN),
    torch.bfloat16: (65505, 1e39),
    torch.float32: (2**62, 1e39, INFINITY),
    torch.float64: (1e39,),
    torch.bool: (2,),
}


class Program(torch.nn.Module):
    def __init__(self, function: Any, number: float) -> None:
        super().__init__()
        self.function = function
        self.number = number

    def forward(self, t: torch.Tensor) -> Any:
        return (self.function(t, self.number),)


@pytest.mark.parametrize("name", PROGRAMS)
def test_refused_where_eager_raises(name: str) -> None:
    refused = 0
    for dtype, numbers in NUMBERS.items():
        t = torch.tensor([0, 1, 1]).to(dtype)
        for number in numbers:
            module = torch.fx.symbolic_trace(Program(PROGRAMS[name], number))
            try:
                module(t)
            except RuntimeError as error:
                if "without overflow" in str(error):  # else it is the dtype that is refused
                    refused += 1
                    with pytest.raises((Unsupported, RuntimeError, ValueError, OverflowError)):
                        functionalize(module, [t])
            else:
                if name in CLAMPS and TAKES_BOUNDS_BEYOND and not dtype.is_floating_point:
                    continue  # refused, and then eager's own
                check(module, t)
    assert (refused > 0) == (name not in ("add", "greater", "multiply")), refused


def test_what_fits_is_no_matter_of_symbols() -> None:
    """A number of elements that varies is more than one."""

    def full(t: torch.Tensor) -> Any:
        return (torch.full((t.shape[0],), 7e4, dtype=torch.float16),)

    with pytest.raises(Unsupported, match=r"cannot hold|operator refuses"):
        functionalize(torch.fx.symbolic_trace(full), [torch.ones(3)])
