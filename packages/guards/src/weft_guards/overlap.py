"""Which tensors of a call lie in one storage: what a graph that writes to its inputs relies on."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import torch

from . import _torch
from .predicates import Predicate
from .sources import Scope, Source


@dataclass(frozen=True)
class StoragesApart(Predicate):
    """No tensor at ``written`` shares storage with another one of these, or with one at ``read``.

    A tensor without elements, or without memory, shares none.  The guard's own value is not looked at.
    """

    written: tuple[Source, ...]
    read: tuple[Source, ...]

    def sources(self) -> tuple[Source, ...]:
        """All sources, the written ones first, without repetition."""
        return tuple(dict.fromkeys((*self.written, *self.read)))

    def holds(self, value: Any, scope: Scope) -> bool:
        return self._sharing(scope) is None

    def identity(self) -> Hashable:
        return self.written, self.read

    def expected_text(self) -> str:
        names = ", ".join(source.name() for source in self.written)
        return f"{names}, written to, in no storage of another input"

    def found_text(self, value: Any, scope: Scope) -> str:
        pair = self._sharing(scope)
        assert pair is not None
        return f"{pair[0].name()} and {pair[1].name()} in one storage"

    def _sharing(self, scope: Scope) -> tuple[Source, Source] | None:
        """A written tensor and another one in its storage."""
        owners: dict[int, Source] = {}
        for source in self.written:
            address = storage_address(source.evaluate(scope))
            if address and address in owners:
                return owners[address], source
            owners[address] = source
        owners.pop(0, None)
        for source in self.read:
            owner = owners.get(storage_address(source.evaluate(scope)))
            if owner is not None:
                return owner, source
        return None


def storage_address(tensor: Any) -> int:
    """Where the storage of a tensor that has elements begins; 0 for another tensor.

    :raises TypeError: not a tensor.
    """
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"not a tensor but {type(tensor).__qualname__}")
    with _torch.without_torch_function():
        first = tensor.data_ptr()
        return first - int(tensor.storage_offset()) * tensor.element_size() if first else 0


def storages_are_apart(written: list[torch.Tensor], read: list[torch.Tensor]) -> bool:
    """What :class:`StoragesApart` says, of tensors at hand."""
    addresses = [address for tensor in written if (address := storage_address(tensor))]
    own = set(addresses)
    return len(own) == len(addresses) and own.isdisjoint(map(storage_address, read))
