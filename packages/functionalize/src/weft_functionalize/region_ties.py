"""Operands of a region that may be one with others: made views of one tensor inside, or tied by flags."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from .aten_recorder import AtenRecorder
from .region_recorder import RegionRecorder, Tie, ViewPath, view_path
from .region_sharing import Identity, storage_of

End = int | torch.Tensor


@dataclass
class Sharing:
    """What a region is told of its operands, ``values``, which are the parent's.

    Operands in ``views`` are not passed, but made inside of the tensor that owns their storage.  ``ties`` are
    pairs that may be one, by both ends.  ``may_detach``: an iteration may leave what autograd does not know
    to be one with what it was given.
    """

    values: Sequence[Any]
    views: dict[int, ViewPath] = field(default_factory=dict)
    ties: dict[tuple[int, int], Tie] = field(default_factory=dict)
    may_detach: bool = False

    def regenerate(self, parent: AtenRecorder, positions: Collection[int]) -> bool:
        """Make these operands, which share storage, inside the region; False if that is done already."""
        new = [p for p in positions if p < len(self.values) and p not in self.views]
        for position in new:
            self.views[position] = view_path(parent, self.values[position])
        return bool(new)

    def regenerate_sharing(
        self, parent: AtenRecorder, positions: Collection[int], taken: Sequence[Any]
    ) -> bool:
        """As :meth:`regenerate`, for those of the positions that have one storage with another of them."""
        values = [*self.values, *taken]
        storages = [storage_of(values[p]) for p in positions]
        groups = [
            {p for p, other in zip(positions, storages, strict=True) if other == storage}
            for storage in set(storages)
        ]
        changed = [self.regenerate(parent, group) for group in groups if len(group) > 1]
        return any(changed)

    def tie(self, parent: AtenRecorder, left: End, right: End, is_carried: bool) -> bool:
        """Note that two operands may be one, if they may; whether that is new."""
        key = _key(left), _key(right)
        if key in self.ties or key[::-1] in self.ties or key[0] == key[1]:
            return False
        first, second = (self.values[e] if isinstance(e, int) else e for e in (left, right))
        identity = Identity(parent, first, second)
        flag = identity.flag()
        if flag is False and not is_carried:
            return False
        unseen = (is_carried and self.may_detach) or identity.may_be_unseen()
        self.ties[key] = Tie(left, right, flag, is_carried and flag is not None, unseen)
        return True

    def tie_all(
        self,
        parent: AtenRecorder,
        positions: Iterable[int],
        taken: Sequence[Any],
        carried: Collection[int] = (),
    ) -> bool:
        """As :meth:`tie`, for each pair of the positions among operands and ``taken``."""
        count = len(self.values)
        found = []
        for pair in itertools.combinations(sorted(positions), 2):
            left, right = (p if p < count else taken[p - count] for p in pair)
            found.append(self.tie(parent, left, right, not set(pair).isdisjoint(carried)))
        return any(found)

    def find(self, left: End, right: End) -> Tie | None:
        key = _key(left), _key(right)
        return self.ties.get(key) or self.ties.get(key[::-1])


def _key(end: End) -> int:
    """Positions are small numbers, and no addresses."""
    return end if isinstance(end, int) else id(end)


def identity_inside(
    recorder: RegionRecorder, left: torch.Tensor, right: torch.Tensor
) -> torch.Tensor | bool | None:
    """As :meth:`Identity.flag`, for tensors of a recorded region."""
    with recorder.parent.paused(), recorder:
        return Identity(recorder, left, right).flag()


def flag_inside(recorder: RegionRecorder, flag: torch.Tensor | bool | None) -> torch.Tensor:
    """A flag that is known as a tensor of a recorded region."""
    with recorder.parent.paused(), recorder:
        return flag_tensor(flag)


def flag_tensor(flag: torch.Tensor | bool | None) -> torch.Tensor:
    """A flag that is known as a tensor of the active recorder."""
    assert flag is not None
    return flag if isinstance(flag, torch.Tensor) else torch.full((), flag, dtype=torch.bool)
