"""Which tensors of a call lie in one storage: what a graph that writes to its inputs relies on."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import torch

from .. import _torch
from ..operations import NativeStep, Operation, Registers
from ..sources import Scope, Source
from .base import Predicate


@dataclass(frozen=True)
class StoragesApart(Predicate):
    """No tensor at ``written`` shares storage with another one of these, or with one at ``read``.

    A tensor without elements, or without memory, shares none.  The guard's own value is not looked at.
    """

    written: tuple[Source, ...]
    read: tuple[Source, ...]

    cost = 8
    advice = "pass copies where an input that is written to shares memory with another one"

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

    def native_step(self, registers: Registers) -> NativeStep | None:
        sources = (*self.written, *self.read)
        if not all(map(registers.is_plain_tensor, sources)):
            return None
        return (
            Operation.CHECK_OVERLAP,
            -1,
            0,
            (len(self.written), tuple(map(registers.of, sources))),
        )


@dataclass(frozen=True)
class StorageShared(Predicate):
    """The tensors at ``sources`` lie in one storage, each at its place in ``offsets``.

    Offsets are in elements of the tensor from the storage's start.  The guard's own value is not looked at.
    """

    tensors: tuple[Source, ...]
    offsets: tuple[int, ...]

    cost = 8
    advice = (
        "pass parts of one tensor that lie alike in every call, or copies where one is written to"
    )

    def sources(self) -> tuple[Source, ...]:
        """The tensors' sources."""
        return self.tensors

    def holds(self, value: Any, scope: Scope) -> bool:
        return self._strayed(scope) is None

    def identity(self) -> Hashable:
        return self.tensors, self.offsets

    def expected_text(self) -> str:
        places = zip(self.tensors, self.offsets, strict=True)
        names = ", ".join(f"{source.name()} at {offset}" for source, offset in places)
        return f"{names} in one storage, of which one is written to"

    def found_text(self, value: Any, scope: Scope) -> str:
        source = self._strayed(scope)
        assert source is not None
        return f"{source.name()} in another place"

    def _strayed(self, scope: Scope) -> Source | None:
        """A tensor that is not at its place."""
        storage = storage_address(self.tensors[0].evaluate(scope))
        for source, offset in zip(self.tensors, self.offsets, strict=True):
            tensor = source.evaluate(scope)
            address = storage_address(tensor)
            with _torch.without_torch_function():
                if not address or address != storage or int(tensor.storage_offset()) != offset:
                    return source
        return None

    def native_step(self, registers: Registers) -> NativeStep | None:
        if not all(map(registers.is_plain_tensor, self.tensors)):
            return None
        return Operation.CHECK_SHARED, -1, 0, (tuple(map(registers.of, self.tensors)), self.offsets)


def storage_address(tensor: Any) -> int:
    """Where the storage of a tensor that has elements begins; 0 for another tensor.

    :raises TypeError: not a tensor.
    """
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"not a tensor but {type(tensor).__qualname__}")
    with _torch.without_torch_function():
        first = tensor.data_ptr()
        return first - int(tensor.storage_offset()) * tensor.element_size() if first else 0
