"""What operators write to ``out=`` is written, also where their fakes write nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from weft_bytecode_capture import capture

CALLS: dict[str, tuple[Callable[..., Any], int]] = {
    "a fake that writes": (lambda x, out: torch.add(x, x, out=out), 1),
    "several": (lambda x, out: torch.sort(x, out=(out, torch.empty(4, 4, dtype=torch.long)))[0], 1),
    "a fake that writes nothing": (lambda x, out: torch.linalg.matrix_rank(x, out=out), 0),
    "of parts": (lambda x, out: torch.kron(x[:2, :2], x[:2, :2], out=out), 0),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("read", [False, True])
def test_it_is_written_as_in_eager(name: str, read: bool) -> None:
    call, graphs = CALLS[name]

    def program(x: torch.Tensor, out: torch.Tensor) -> Any:
        y = call(x, out)
        return (y * 2, out + 1) if read else x.shape[0]

    x = torch.arange(16.0).reshape(4, 4).sin()
    kind = torch.int64 if name == "a fake that writes nothing" else torch.float32
    size = () if kind == torch.int64 else (4, 4)
    made = [torch.full(size, -7, dtype=kind) for _ in range(2)]
    found, expected = capture(program)(x, made[0]), program(x, made[1])
    torch.testing.assert_close(made[0], made[1])
    torch.testing.assert_close(found.result, expected)
    assert bool(found.breaks) is (graphs == 0)
