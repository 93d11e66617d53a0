"""``A | B | C`` in the code that is captured: a union is the constant that it is in eager."""

import pytest
import torch
from weft_bytecode_capture import capture


class First: ...


class Second(First): ...


class Third: ...


def asked(x, value):
    if isinstance(value, Third | First | None):
        x = x + 1
    if isinstance(value, int | float | str):
        x = x * 2
    if isinstance(value, (int | str) | list):
        x = x * 3
    if isinstance(value, list | (int | str)):
        x = x * 5
    return x, str(list[int] | dict[str, int] | First)


@pytest.mark.parametrize(
    "value", [First(), Second(), Third(), 1, 2.0, "text", [1], None], ids=lambda v: str(type(v))
)
def test_like_eager_without_breaks(value):
    x = torch.ones(2)
    found, wanted = capture(asked)(x, value), asked(x, value)
    assert torch.equal(found.result[0], wanted[0]) and found.result[1] == wanted[1]
    assert not found.breaks
