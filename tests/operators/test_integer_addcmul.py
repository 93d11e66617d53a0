"""``addcmul`` of integers by a float takes the float's whole part; so in eager."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import weft

VALUES = (0.5, 2.7, -1.5, 3)
PROGRAMS: dict[str, Any] = {
    "addcmul": lambda k, value: torch.addcmul(k, k, k, value=value),
    "in place": lambda k, value: k.clone().addcmul_(k, k, value=value),
    "foreach": lambda k, value: torch._foreach_addcmul([k], [k], [k], value=value)[0],
    "of two dtypes": lambda k, value: torch.addcmul(k.long(), k, k, value=value),
    "float": lambda k, value: torch.addcmul(k.float(), k.float(), k.float(), value=value),
}


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8])
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("dynamic", [True, None])
def test_whole_part_of_a_float(name: str, dtype: torch.dtype, dynamic: bool | None) -> None:
    program = PROGRAMS[name]
    compiled = weft.compile(program, dynamic=dynamic)
    k = torch.arange(-4, 4).to(dtype)
    for value in VALUES:
        if dtype is torch.uint8 and value < 0:
            continue
        found, wanted = compiled(k, value), program(k, value)
        assert found.dtype == wanted.dtype
        assert torch.equal(found, wanted)
    weft.reset()


def test_beside_gradients() -> None:
    def program(x: Any, k: Any) -> Any:
        return x * 2, torch.addcmul(k, k, k, value=1.5)

    x, k = torch.ones(3, requires_grad=True), torch.arange(3)
    doubled, whole = weft.compile(program)(x, k)
    doubled.sum().backward()
    assert x.grad is not None and torch.equal(x.grad, torch.full((3,), 2.0))
    assert torch.equal(whole, program(x, k)[1])
