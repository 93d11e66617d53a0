"""How a tensor lies in its storage, for comparison."""

from __future__ import annotations

import torch


class Layout:
    """What ``unsqueeze_``, ``t_`` and the like change of a tensor.

    Symbols may be found equal in the meantime: texts are made when two layouts are compared.
    """

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, fake: torch.Tensor) -> None:
        self._numbers = tuple(fake.shape), tuple(fake.stride()), fake.storage_offset()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Layout) and str(self._numbers) == str(other._numbers)
