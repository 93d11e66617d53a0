"""Memory of a recording that is donated to its callers, and that who reads it last may use again.

What forward saves for backward is donated.  When backward has read a part of it for the last time, that part
is free: the recording of backward takes its own buffers from there, as a program that runs step by step takes
them from the allocator.  So both recordings together hold little more than the most that is alive at a time.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

import torch

from weft_codegen_triton._torch import HeldStorages, holders, is_view

_DATA = operator.attrgetter("data")

_DONATIONS: WeakValueDictionary[int, Donation] = WeakValueDictionary()
"""The donation to which the storage at an address belongs."""


@dataclass
class _Donated:
    """A storage that is donated: ``memory`` does not own it, ``owner`` does until it is handed over.

    ``before`` counts the holders of ``memory`` that are the donation's own.
    """

    memory: torch.UntypedStorage
    owner: torch.UntypedStorage | None
    before: int = 0


class Donation:
    """The tensors that a recording on ``stream`` donates, in ``pool``, which ``graph`` keeps alive.

    Callers get tensors that do not own their memory, so that the recording of who reuses them can free
    it inside the pool.
    """

    def __init__(
        self, tensors: Sequence[torch.Tensor], graph: torch.cuda.CUDAGraph, pool: Any, stream: int
    ) -> None:
        self.pool = pool
        self.stream = stream
        self.is_handed_over = False
        """Whether there is, or was, a recording that overwrites what it has read of the donation."""
        self._storages: dict[int, _Donated] = {}
        for tensor in tensors:
            owner = tensor.untyped_storage()
            if owner.nbytes() and owner.data_ptr() not in self._storages:
                self._storages[owner.data_ptr()] = _Donated(unowned(owner, graph), owner)
        self._tensors = [
            _on(self._storages[address].memory, tensor) if address in self._storages else tensor
            for tensor in tensors
            for address in [tensor.untyped_storage().data_ptr()]
        ]
        memories = [donated.memory for donated in self._storages.values()]
        before = holders(memories)
        self._held = HeldStorages(memories, before)
        for donated, count in zip(self._storages.values(), before, strict=True):
            donated.before = count
        _DONATIONS.update(dict.fromkeys(self._storages, self))

    def donate(self) -> tuple[torch.Tensor, ...]:
        """The tensors, for one caller."""
        return tuple(map(_DATA, self._tensors))

    def is_out(self) -> bool:
        """Whether somebody holds any of the tensors."""
        return self._held.are_held_by_others()


class SharedResults:
    """Results in memory of a recording's own, which callers hold until the next replay at most."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._tensors = [*tensors]
        self._held: HeldStorages | None = None

    def share(self) -> list[torch.Tensor]:
        """The tensors, for one caller."""
        if self._held is None:  # not sooner: who has recorded them holds them too
            storages = [tensor.untyped_storage() for tensor in self._tensors]
            self._held = HeldStorages(storages, holders(storages))
        return [*map(_DATA, self._tensors)]

    def is_out(self) -> bool:
        """Whether somebody holds any of the tensors."""
        return self._held is not None and self._held.are_held_by_others()


class DonatedInputs:
    """The tensors among the ``inputs`` of a call that belong to ``donation``, at ``positions``."""

    def __init__(self, donation: Donation, inputs: Sequence[Any]) -> None:
        self.donation = donation
        addresses = [_address(value) for value in inputs]
        self._donated = {
            k: donation._storages[address]
            for k, address in enumerate(addresses)
            if address in donation._storages
        }
        self.positions = frozenset(self._donated)
        most: Counter[int] = Counter()
        for k in self._donated:
            most[addresses[k]] += 2 if is_view(inputs[k]) else 1  # with the tensor that it views
        reused = {address: donation._storages[address] for address in most}
        self.nbytes = sum(donated.memory.nbytes() for donated in reused.values())
        self._held = HeldStorages(
            [donated.memory for donated in reused.values()],
            [donated.before + most[address] for address, donated in reused.items()],
        )

    def is_sole_holder(self) -> bool:
        """Whether nobody but such a call holds what is donated to it."""
        return not self._held.are_held_by_others()

    def hand_over(self, inputs: Sequence[Any]) -> list[Any]:
        """``inputs``, with tensors that own what is donated, once: it is free when they are dropped."""
        assert not self.donation.is_handed_over
        self.donation.is_handed_over = True
        owning = list(inputs)
        for k, donated in self._donated.items():
            assert donated.owner is not None
            owning[k] = _on(donated.owner, inputs[k])
        for donated in self._donated.values():
            donated.owner = None
        return owning


def find_donated_inputs(inputs: Sequence[Any], stream: int) -> DonatedInputs | None:
    """What of ``inputs`` was donated by a recording on ``stream``, if nobody else holds that."""
    for value in inputs:
        donation = _DONATIONS.get(_address(value))
        if donation is not None and donation.stream == stream:
            donated_inputs = DonatedInputs(donation, inputs)
            return donated_inputs if donated_inputs.is_sole_holder() else None
    return None


def _address(value: Any) -> int:
    """Where the storage of a tensor begins; 0 for what has no memory."""
    return value.untyped_storage().data_ptr() if isinstance(value, torch.Tensor) else 0


def _on(storage: torch.UntypedStorage, tensor: torch.Tensor) -> torch.Tensor:
    """A tensor that lies in ``storage`` as ``tensor`` does in its own."""
    empty = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return empty.set_(storage, tensor.storage_offset(), tensor.size(), tensor.stride())


class _Memory:
    """Bytes of a GPU for :func:`torch.as_tensor`; what they lie in lives as long as ``keeper``."""

    def __init__(self, address: int, size: int, keeper: object) -> None:
        self.keeper = keeper
        self.__cuda_array_interface__ = {
            "shape": (size,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
        }


def alias(tensor: torch.Tensor, keeper: object) -> torch.Tensor:
    """The same elements, as long as ``keeper`` is held, in memory that the result does not own."""
    storage = tensor.untyped_storage()
    return _on(unowned(storage, keeper), tensor) if storage.nbytes() else tensor


def unowned(storage: torch.UntypedStorage, keeper: object) -> torch.UntypedStorage:
    """The same memory of a GPU, which stays allocated while ``keeper`` is held only."""
    memory = _Memory(storage.data_ptr(), storage.nbytes(), keeper)
    return torch.as_tensor(memory, device=storage.device).untyped_storage()
