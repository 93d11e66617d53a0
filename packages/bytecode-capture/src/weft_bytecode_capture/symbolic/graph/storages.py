"""How tensors lie in their storages: layouts, versions, overlaps, changes of what a tensor shows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

import torch
import torch.fx
from weft_guards import Source, StoragesApart, StorageShared, storage_address

from ..._torch import storage_identity
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


def has_history(tensor: torch.Tensor) -> bool:
    """Whether autograd records what a tensor was made from, or refuses to say."""
    try:
        return tensor.requires_grad and not tensor.is_leaf
    except RuntimeError:  # a view that was made without gradients, of what was written to since
        return True


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
        # What has no memory is shared by nobody.
        storages.setdefault(address or given[0], []).append(given)
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
