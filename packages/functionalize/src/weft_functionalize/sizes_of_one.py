"""Operators that leave out dimensions of one element: ``x.nonzero().squeeze()``.

Shape rules take a size that depends on data for another number than one.  That is checked in each call, and a
call where it does not hold runs as it was written.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ._torch import OpOverload, is_data_dependent, known_equal

_LEAVE_OUT = frozenset({"aten::squeeze", "aten::squeeze_", "aten::squeeze_copy"})


def check_sizes_of_one(operator: OpOverload, arguments: Sequence[Any]) -> None:
    """Rely on sizes that depend on data not being one where ``operator`` would leave them out."""
    if operator._schema.name not in _LEAVE_OUT:
        return
    tensor, dims = arguments[0], arguments[1:]
    given = dims[0] if dims else range(tensor.dim())
    for dim in [given] if isinstance(given, int) else given:
        if not -tensor.dim() <= dim < tensor.dim():
            continue
        size = tensor.shape[dim]
        if is_data_dependent(size) and not known_equal(size, 1):
            torch._check(size != 1)
