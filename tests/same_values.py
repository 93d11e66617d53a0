"""Compares what a program gave compiled and in eager."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def assert_same(found: Sequence[Any], expected: Sequence[Any]) -> None:
    """Tensors, float64 as a rule, are alike and require gradients alike; other values are equal."""
    assert len(found) == len(expected)
    for mine, its in zip(found, expected, strict=True):
        if isinstance(its, Tensor):
            torch.testing.assert_close(mine, its, rtol=1e-9, atol=1e-11, equal_nan=True)
            assert mine.requires_grad == its.requires_grad
        else:
            assert mine == its
