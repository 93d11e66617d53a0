"""What tensors of a region may share storage with: the control-flow dependencies around one operator.

A result of a region may be one of its operands, or what an iteration before left.  Such dependencies are
may-aliases, while TensorSSA handles memory dependencies, which must alias.  Here they are kept by storage:
sets of storages, any two of which may be one.  Inside a region, an operand has its own storage in the sense
of fake tensors or that of the block around it, and the two are joined.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.fx

from ._torch import OpOverload, storage_identity
from .aten_recorder import AtenRecorder
from .tensor_ssa.block_propagation import region_clobbers, region_writes
from .tensor_ssa.functional_counterparts import written_arguments
from .tensor_ssa.rewrite_mutation import written_variables


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
        for result, other in recorder.region_aliases:
            self.join(_storage(result), _storage(other))


def _storage(node: torch.fx.Node) -> int:
    return storage_identity(node.meta["val"])


def storage_of(value: Any) -> int | None:
    """A tensor's storage; None for other values."""
    return storage_identity(value) if isinstance(value, torch.Tensor) else None


def written_storages(recorder: AtenRecorder) -> set[int]:
    """The storages that the recorded program writes, or whose content its regions leave undefined."""
    written: set[int] = set()
    for node in recorder.graph.nodes:
        if isinstance(node.target, OpOverload):
            variables = written_variables(node, written_arguments(node.target))
            written.update(map(_storage, variables))
        written.update(_storage(variable) for variable, _ in region_writes(node))
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


def reached(
    results: Sequence[Any],
    inside: Callable[[int, int], bool],
    names: dict[int, int],
    carried: Iterable[int] = (),
) -> dict[int, set[int]]:
    """The operands that each tensor among a region's ``results`` may be after it.

    ``inside`` tells whether two storages may be one in one run of the region.  An operand in ``carried`` is
    in later iterations what the result at its position was in the one before.
    """
    found: dict[int, set[int]] = {}
    carried = frozenset(carried)
    for k, result in enumerate(results):
        if isinstance(result, torch.Tensor):
            pending, seen = [k], {k}
            found[k] = set()
            while pending:
                storage = storage_of(results[pending.pop()])
                for position, other in names.items():
                    if storage is not None and inside(storage, other):
                        found[k].add(position)
                        if position in carried and position not in seen:
                            seen.add(position)
                            pending.append(position)
    return found


def shared_results(
    results: Sequence[Any], inside: Callable[[int, int], bool]
) -> list[tuple[int, int]]:
    """Pairs of positions of results that may share storage."""
    storages = {k: storage_of(result) for k, result in enumerate(results)}
    known = {k: storage for k, storage in storages.items() if storage is not None}
    return [
        (k, other) for k in known for other in known if other < k and inside(known[k], known[other])
    ]
