"""What a rolled loop appends to lists, where others have it too: a local, a tensor outside, another list.

In eager a list holds the very tensors.  The graph has copies, in the rows of a buffer, which are as good
until one of a pair is written: then the frame is evaluated without the loop.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
import torch.fx

from ...._torch import storage_identity
from ....unsupported import Unsupported
from ...graph.storages import node_values, storages
from ...models.torch.tensor import TensorVariable
from ...protocol import Frame
from ...variables.base import Variable
from ..decisions import ProgramPoint, RegionRefused, refuse
from ..identity.aliases import storages_of
from ..subgraph import Carried


class SharedRows:
    """The rows of one buffer, which in eager may be tensors of others.

    ``are_distinct``: no two of them are one tensor.
    """

    def __init__(self, evaluator: Frame, buffer: TensorVariable, refusal: RegionRefused) -> None:
        self.are_distinct = True
        self._storage = storage_identity(buffer.fake)
        self._graph = evaluator.graph
        self._aliases = evaluator.state.aliases
        self._refusal = refusal
        self._written = len(self._aliases.written)
        self._has_view = False

    def note_use(self, is_view: bool) -> None:
        """The rows are read; ``is_view``: by what may be read again later."""
        self._has_view |= is_view or self._graph.is_in_region
        self._check(True)

    def check(self, outputs: Sequence[Variable]) -> None:
        """Refuse the loop where eager's rows have other values, or are not the tensors of ``outputs``."""
        is_left = self._storage in storages_of(outputs)
        self._check(self._has_view or is_left)
        if is_left and not self.are_distinct:
            raise self._refusal

    def _check(self, are_used: bool) -> None:
        written = self._aliases.written[self._written :]
        if self._storage in written or (
            are_used and self._aliases.may_be_among([self._storage], written)
        ):
            raise self._refusal


class LeadingRows:
    """Copies, in the first rows of a buffer, of what a list has held before the loop that fills the others.

    The list keeps what it has held; the copies are read with all rows, and are as good until one of these is
    written.  ``written``: how many writes there had been when they were made.
    """

    def __init__(
        self,
        evaluator: Frame,
        held: Sequence[TensorVariable],
        written: int,
        refusal: RegionRefused,
    ) -> None:
        self._graph = evaluator.graph
        self._aliases = evaluator.state.aliases
        self._storages = [storage_identity(tensor.fake) for tensor in held]
        self._written = written
        self._refusal = refusal
        self._is_read_again = False

    def note_read(self) -> None:
        """All rows are read."""
        self._is_read_again |= self._graph.is_in_region
        self._check()

    def check(self, outputs: Sequence[Variable]) -> None:
        """Refuse the loop where what the copies are of is written before they are read once more."""
        if self._is_read_again:
            self._check()

    def _check(self) -> None:
        if self._aliases.may_be_among(self._storages, self._aliases.written[self._written :]):
            raise self._refusal


class RowSharing:
    """What a loop's body appends to lists, compared with all that is there beside.

    ``written`` are the storages of tensors that the body writes to; ``taken`` the nodes that it takes;
    ``buffers`` the tensors that it fills.
    """

    def __init__(
        self,
        evaluator: Frame,
        place: ProgramPoint,
        carried: Sequence[Carried],
        taken: Sequence[torch.fx.Node],
        written: Sequence[int],
        buffers: Sequence[TensorVariable],
    ) -> None:
        self._evaluator = evaluator
        self._place = place
        self._aliases = evaluator.state.aliases
        self._current = self._aliases.current
        own = {id(buffer) for buffer in buffers}
        carried = [c for c in carried if id(c.parameter) not in own]
        self._outer = storages(node_values(taken)) | storages(c.start.fake for c in carried)
        self._outer -= storages(buffer.fake for buffer in buffers)  # of which only the lists know
        kept = [c for c in carried if c.result is not None]
        self._states = {storage_identity(c.parameter.fake): c for c in kept}
        left = storages(c.result.fake for c in kept if c.result is not None)
        self._is_handed_on = any(map(self._is_old, left))  # from one state to another
        self._written = {
            storage for storage in map(self._current, written) if self._is_old(storage)
        }

    def _is_old(self, storage: int) -> bool:
        """Whether a tensor in the body may be older than the iteration."""
        known = self._outer | self._states.keys()
        storage = self._current(storage)
        return storage in known or (
            self._aliases.is_result(storage)
            and any(self._may_be(storage, other) for other in known)
        )

    def _may_be(self, left: int, right: int) -> bool:
        return left == right or self._aliases.uniting(left, right) is not None

    def note(
        self, rows: Sequence[tuple[TensorVariable, TensorVariable]]
    ) -> list[SharedRows | None]:
        """Note, of each buffer, what is appended to it; None for rows that nobody else has.

        :raises Unsupported: an iteration may write to what an earlier one has appended.
        """
        for buffer, item in rows:
            self._aliases.note_view(self._place, buffer, item)
            if item.element is not None:  # eager's is a view
                self._aliases.note_view(self._place, buffer, item.element.place[0])
            state = self._states.get(storage_identity(item.fake))
            if state is not None:
                self._aliases.note_view(self._place, buffer, state.start)
        return [self._noted(buffer, item, rows) for buffer, item in rows]

    def _noted(
        self,
        buffer: TensorVariable,
        item: TensorVariable,
        rows: Sequence[tuple[TensorVariable, TensorVariable]],
    ) -> SharedRows | None:
        storage = storage_identity(buffer.fake)
        others = {storage_identity(other.fake) for other, _ in rows if other is not buffer}
        states = {other for other in self._states if self._may_be(storage, other)}
        seen = item if item.element is None else item.element.place[0]
        is_old = self._is_old(storage_identity(seen.fake))
        if not states and not is_old and not any(self._may_be(storage, s) for s in others):
            return None
        if any(self._changes_rows(storage, states, written) for written in self._written):
            raise Unsupported("write to a tensor that is in a list", repr(item))
        refusal = refuse(self._evaluator, self._place, "write to a tensor that is in a list")
        shared = SharedRows(self._evaluator, buffer, refusal)
        shared.are_distinct = not is_old
        self._aliases.copies.append(shared)
        return shared

    def _changes_rows(self, rows: int, states: Collection[int], written: int) -> bool:
        """Whether a write changes ``rows``, or what an earlier iteration has left in ``states``."""
        state = self._states.get(written)
        if state is None:
            is_left = bool(states) and self._aliases.is_result(written)
            return is_left or self._may_be(rows, written)
        is_left = written in states or (bool(states) and self._is_handed_on)
        return is_left or self._may_be(rows, storage_identity(state.start.fake))
