"""One of several views that a loop or branch leaves, whose base is written to behind it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import weft

PARTS: dict[str, Callable[[Any], Any]] = {
    "split": lambda y: y.split(2, 1)[-1],
    "chunk": lambda y: y.chunk(2, 1)[0],
    "unbind": lambda y: y.unbind(1)[2],
    "hsplit": lambda y: y.hsplit(2)[1],
    "slice": lambda y: y[:, 1:],
}


def loop(y: Any, part: Callable[[Any], Any]) -> Any:
    for _ in range(30):
        found = part(y)
    return found


def branch(y: Any, part: Callable[[Any], Any]) -> Any:
    return part(y) if y.sum() > 0 else part(y) * 2


@pytest.mark.parametrize("gradients", [True, False])
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("around", [loop, branch])
@pytest.mark.parametrize("asked", [True, False])
def test_values_and_errors_are_those_of_eager(
    asked: bool, around: Callable[..., Any], part: str, gradients: bool
) -> None:
    """Autograd raises where it is asked for such a view's history (``asked``), and not before."""

    def program(x: Any) -> tuple[Any, ...]:
        y = x * 2
        found = around(y, PARTS[part])
        y -= 2
        return (y, found, found * 3) if asked else (y, found)

    def outcome(function: Callable[[Any], Any]) -> Any:
        x = torch.arange(24.0).view(4, 6).requires_grad_(gradients)
        try:
            return [result.detach() for result in function(x)]
        except RuntimeError as error:
            return "refused" if "has been modified" in str(error) else str(error)

    found, expected = outcome(weft.compile(program)), outcome(program)
    if expected == "refused" or isinstance(found, str):
        assert found == expected
    else:
        torch.testing.assert_close(found, expected)
