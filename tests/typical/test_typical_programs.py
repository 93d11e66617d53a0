"""Typical programs do compiled what they do in eager, over several calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import weft

from . import (
    generation_programs,
    model_programs,
    python_programs,
    reported_programs,
    training_programs,
)

MODULES = (
    training_programs,
    model_programs,
    generation_programs,
    python_programs,
    reported_programs,
)
PROGRAMS: dict[str, Callable[[Any], Any]] = {
    name: program for module in MODULES for name, program in module.PROGRAMS.items()
}


def parts(value: Any) -> Iterator[Any]:
    """Tensors and other values, in order, out of containers."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from parts(item)
    elif isinstance(value, (list, tuple)):
        yield len(value)
        for item in value:
            yield from parts(item)
    else:
        yield value


@pytest.mark.parametrize("name", PROGRAMS)
def test_as_in_eager(name: str) -> None:
    outcomes = []
    for compile in (lambda function: function, weft.compile):
        torch.manual_seed(0)
        outcomes.append(list(parts(PROGRAMS[name](compile))))
    plain, found = outcomes
    assert len(found) == len(plain)
    for expected, value in zip(plain, found, strict=True):
        if isinstance(expected, torch.Tensor):
            assert (value.dtype, value.shape) == (expected.dtype, expected.shape)
            torch.testing.assert_close(value, expected, rtol=2e-4, atol=2e-5, equal_nan=True)
        else:
            assert value == expected
