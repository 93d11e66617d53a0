"""What eager refuses and fake tensors let pass raises eager's error, there and after what came before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import weft

CALLS: dict[str, Callable[[torch.Tensor], Any]] = {
    "product": lambda x: torch.mm(x, x.double()),
    "product of a vector": lambda x: x @ x[0].double(),
    "linear": lambda x: torch.nn.functional.linear(x, x.long()),
    "product in place": lambda x: x.addmm_(x, x.half()),
    "result in place": lambda x: x.long().mul_(1.5),
    "part": lambda x: x.select(0, 3),
    "part of a part": lambda x: x[1:].select(0, -3),
}


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("backend", ["weft", "eager"])
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_errors_where_nobody_reads_the_result(
    call: Callable[[torch.Tensor], Any], backend: str, dynamic: bool | None
) -> None:
    def program(x: torch.Tensor, done: list[str]) -> torch.Tensor:
        done.append("before")
        x.add_(1)
        call(x)
        done.append("after")
        return x + 1

    compiled = weft.compile(program, backend=backend, dynamic=dynamic)
    outcomes = []
    for function in (program, compiled):
        x, done = torch.ones(3, 3), list[str]()
        with pytest.raises((RuntimeError, IndexError)) as raised:
            function(x, done)
        outcomes.append((raised.type, str(raised.value), x.tolist(), done))
    assert outcomes[0] == outcomes[1]
    assert outcomes[0][3] == ["before"]


def test_autocast_makes_dtypes_one() -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu"):
            return x @ y

    x = torch.rand(3, 3)
    compiled = weft.compile(program, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(x, x.bfloat16()), program(x, x.bfloat16()))
