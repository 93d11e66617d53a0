"""What tensors of a region may share storage with: the control-flow dependencies around one operator.

A result of a region may be one of its operands, or what an iteration before left.  Such dependencies are
may-aliases, while TensorSSA handles memory dependencies, which must alias.  Here they are kept by storage:
sets of storages, any two of which may be one; and by flags, computed with the program, that say which are.
Inside a region, an operand has its own storage in the sense of fake tensors or that of the block around it,
and the two are joined.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from ._torch import storage_identity
from .aten_recorder import AtenRecorder
from .tensor_ssa.alias_graph import build_alias_graph
from .tensor_ssa.block_propagation import region_clobbers
from .tensor_ssa.region_aliases import SharedValues, any_of, is_whole
from .tensor_ssa.writes import block_writes

ONE_OF_SEVERAL = "write in a region to one of several tensors"


class StorageGroups:
    """Sets of storages, joined where they may be one."""

    def __init__(self) -> None:
        self._parents: dict[int, int] = {}

    def find(self, storage: int) -> int:
        """The representative of a storage's set."""
        while storage in self._parents:
            storage = self._parents[storage]
        return storage

    def join(self, left: int, right: int) -> None:
        first, second = self.find(left), self.find(right)
        if first != second:
            self._parents[first] = second

    def joined(self, left: int, right: int) -> bool:
        return self.find(left) == self.find(right)

    def join_region_results(self, recorder: AtenRecorder) -> None:
        """Join the results of the regions that ``recorder`` has seen with what each may be."""
        for pair in recorder.region_aliases:
            if pair.flag is False:
                continue
            self.join(_storage(pair.result), _storage(pair.other))


def _storage(node: torch.fx.Node) -> int:
    return storage_identity(node.meta["val"])


class Identity:
    """What a recorder that is active knows of two of its tensors that may be one."""

    def __init__(self, recorder: AtenRecorder, left: torch.Tensor, right: torch.Tensor) -> None:
        graph = recorder.graph
        self._aliases = build_alias_graph(graph)
        self._shared = SharedValues(graph, self._aliases, recorder.region_aliases)
        self._nodes = [recorder.node_of(tensor) for tensor in (left, right)]
        self._origins = [self._aliases.origin(node) for node in self._nodes]
        self._is_one_origin = self._origins[0] is self._origins[1]

    def flag(self) -> torch.Tensor | bool | None:
        """Whether they are one, by operators that are recorded where data decides that.

        None where it isn't known, or where they share storage without being one tensor.
        """
        ways = [[]] if self._is_one_origin else self._shared.ways(*self._origins)
        if not ways:
            return None if ways is None else False
        if not all(is_whole(self._aliases, node) for node in self._nodes):
            return None
        return any_of(ways, _fake, torch.logical_and, torch.logical_or)

    def may_be_unseen(self) -> bool:
        """Whether autograd may not know that they are one."""
        paths = (edge for node in self._nodes for edge in self._aliases.path_to_origin(node))
        if any(edge.is_unseen for edge in paths):
            return True
        return not self._is_one_origin and self._shared.seen(*self._origins) is not True


def _fake(node: torch.fx.Node) -> torch.Tensor:
    tensor: torch.Tensor = node.meta["val"]
    return tensor


def storage_of(value: Any) -> int | None:
    """A tensor's storage; None for other values."""
    return storage_identity(value) if isinstance(value, torch.Tensor) else None


def written_storages(recorder: AtenRecorder) -> set[int]:
    """The storages that the recorded program writes, or whose content its regions leave undefined."""
    written: set[int] = set()
    for node in recorder.graph.nodes:
        written.update(map(_storage, block_writes(node)))
        written.update(map(_storage, region_clobbers(node)))
    return written


def conflicts(groups: StorageGroups, names: dict[int, int], touched: set[int]) -> list[set[int]]:
    """The sets of operands, of two or more, that may share storage which the region writes.

    ``names`` maps an operand's position to its storage inside the region; the region writes at least those
    at the positions ``touched``.
    """
    written = {groups.find(names[position]) for position in touched}
    by_group: dict[int, set[int]] = {}
    for position, storage in names.items():
        by_group.setdefault(groups.find(storage), set()).add(position)
    return [found for group, found in by_group.items() if group in written and len(found) > 1]


@dataclass(frozen=True, order=True)
class MaybeOne:
    """The result of a region at ``result`` may be the operand at ``position``, or the result there."""

    result: int
    position: int
    is_operand: bool


def may_be_one(
    results: Sequence[Any],
    inside: Callable[[int, int], bool],
    names: dict[int, int],
    carried: Iterable[int] = (),
) -> list[MaybeOne]:
    """What each tensor among a region's ``results`` may be after it.

    ``inside`` tells whether two storages may be one in one run of the region; ``names`` maps operands'
    positions to storages.  An operand in ``carried`` is in later iterations what the result at its position
    was in the one before.
    """
    found: list[MaybeOne] = []
    storages = {
        k: storage for k, storage in enumerate(map(storage_of, results)) if storage is not None
    }
    for k, storage in storages.items():
        operands = _reached(storages, k, inside, names, frozenset(carried))
        found += [MaybeOne(k, position, True) for position in sorted(operands)]
        shared = [other for other in storages if other < k and inside(storage, storages[other])]
        found += [MaybeOne(k, other, False) for other in shared]
    return found


def _reached(
    results: dict[int, int],
    k: int,
    inside: Callable[[int, int], bool],
    names: dict[int, int],
    carried: Set[int],
) -> set[int]:
    """The operands that the result ``k`` may be."""
    found: set[int] = set()
    pending, seen = [k], {k}
    while pending:
        storage = results.get(pending.pop())
        for position, other in names.items():
            if storage is not None and inside(storage, other):
                found.add(position)
                if position in carried and position not in seen:
                    seen.add(position)
                    pending.append(position)
    return found
