"""How tensors lie in their storages: layouts, versions, overlaps, changes of what a tensor shows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

import torch
import torch.fx
from weft_guards import Source, StoragesApart, StorageShared, storage_address

from ..._torch import OpOverloadPacket, storage_identity
from ...unsupported import Unsupported
from ..protocol import Evaluator


class Tensor(Protocol):
    """A tensor of the graph."""

    fake: torch.Tensor

    @property
    def node(self) -> Any: ...


def node_values(nodes: Iterable[torch.fx.Node]) -> list[Any]:
    """What nodes give during capture: fakes, for tensors."""
    return [node.meta.get("example_value") for node in nodes]


def leaves(value: Any) -> Iterator[Any]:
    """What is in nested tuples and lists, or the value itself."""
    if isinstance(value, (tuple, list)):
        for part in value:
            yield from leaves(part)
    else:
        yield value


def storages(values: Iterable[Any]) -> set[int]:
    """The identities of the storages of the tensors among ``values``."""
    return {storage_identity(value) for value in values if isinstance(value, torch.Tensor)}


class Layout:
    """What ``unsqueeze_``, ``t_`` and the like change of a tensor.

    Symbols may be found equal in the meantime: texts are made when two layouts are compared.
    """

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, fake: torch.Tensor) -> None:
        strided = fake.layout is torch.strided  # others have no strides
        place = (tuple(fake.stride()), fake.storage_offset()) if strided else ((), 0)
        self._numbers = tuple(fake.shape), *place

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Layout) and str(self._numbers) == str(other._numbers)


# Version counters: whatever writes to a tensor, or to a view of it, moves its counter.


UNCOUNTED = -1


def version_of(tensor: torch.Tensor) -> int:
    """A tensor's version counter, which all its views share; inference tensors have none."""
    return UNCOUNTED if tensor.is_inference() else tensor._version


# Guards on which inputs of a graph share storage with one that it writes to.


Given = tuple[Source, torch.Tensor, bool]  # where an input is from, and whether it is written to


def guard_overlap(evaluator: Evaluator, inputs: Sequence[Given]) -> None:
    """Guard that storages that are written to are shared as they are now: by whom, and at which places.

    Who shares a storage that is only read does not matter.
    """
    if len(inputs) < 2 or not any(written for _, _, written in inputs):
        return
    storages: dict[object, list[Given]] = {}
    for given in inputs:
        address = storage_address(given[1])
        storages.setdefault(address or given[0], []).append(
            given
        )  # without memory: shared by nobody
    apart_written: list[Source] = []
    apart_read: list[Source] = []
    for sharing in storages.values():
        sources = tuple(source for source, _, _ in sharing)
        if not any(written for _, _, written in sharing):
            apart_read.extend(sources)
            continue
        apart_written.append(sources[0])
        if len(sharing) > 1:
            offsets = tuple(int(tensor.storage_offset()) for _, tensor, _ in sharing)
            evaluator.guard(sources[0], StorageShared(sources, offsets))
    if len(apart_written) + len(apart_read) > 1:
        evaluator.guard(apart_written[0], StoragesApart(tuple(apart_written), tuple(apart_read)))


# Calls that make a tensor another view of its storage: ``x.squeeze_()``, ``x.t_()``, ``x.detach_()``.


def _changing() -> frozenset[str]:
    """The names of ATen's operators that change no element, but what a tensor is."""
    found = set()
    for name in dir(torch.Tensor):
        packet = getattr(torch.ops.aten, name, None) if name.endswith("_") else None
        if isinstance(packet, OpOverloadPacket) and any(
            torch.Tag.inplace_view in getattr(packet, overload).tags
            for overload in packet.overloads()
        ):
            found.add(name)
    return frozenset(found)


CHANGES_OF_METADATA = _changing()


def refuse_change_by_eager(evaluator: Evaluator, target: Any, fakes: tuple[Any, ...]) -> None:
    """Leave to eager what changes a tensor of the caller, or its history.

    A graph gives new tensors.  The one that the caller has can only be changed between two of them, since
    backward of the first still reads it as it was, and backward of the second as it is.  A tensor that
    leaves autograd's graph in place has a history until then; one of ``no_grad`` keeps that of its old shape.
    """
    name = target if isinstance(target, str) else getattr(target, "__name__", "")
    name = name.partition(".")[0]
    if name not in CHANGES_OF_METADATA or not fakes or not isinstance(fakes[0], torch.Tensor):
        return
    if any(fake is fakes[0] for _, _, fake in evaluator.graph.given):
        raise Unsupported("change of a tensor's metadata", f"{name} of a tensor from outside")
    if fakes[0].requires_grad and (name == "detach_" or not torch.is_grad_enabled()):
        raise Unsupported("change of a tensor's metadata", f"{name} of a tensor with a history")
