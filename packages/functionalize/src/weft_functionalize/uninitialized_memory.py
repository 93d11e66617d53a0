"""What ``torch.empty`` and its like give under deterministic algorithms, where eager fills it."""

from __future__ import annotations

import torch

from ._torch import OpOverload

aten = torch.ops.aten

_MAKERS = frozenset(
    {
        aten.empty.memory_format,
        aten.empty_like.default,
        aten.empty_permuted.default,
        aten.empty_strided.default,
        aten.new_empty.default,
        aten.new_empty_strided.default,
    }
)


def fill_uninitialized(operator: OpOverload, result: torch.Tensor) -> None:
    """Write to what ``operator`` gives what eager writes to it: the greatest integer, or no number."""
    if operator not in _MAKERS or not torch.are_deterministic_algorithms_enabled():
        return
    if not torch.utils.deterministic.fill_uninitialized_memory:  # type: ignore[attr-defined]
        return
    if result.dtype.is_floating_point or result.dtype.is_complex:
        result.fill_(torch.nan)
    else:
        result.fill_(True if result.dtype == torch.bool else torch.iinfo(result.dtype).max)
