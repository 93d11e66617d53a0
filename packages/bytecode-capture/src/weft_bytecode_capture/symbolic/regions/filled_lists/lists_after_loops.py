"""Lists that a kept loop has filled, as they are after it: rows of buffers, that anyone may ask for."""

from __future__ import annotations

import abc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch.fx

from ....unsupported import Unsupported
from ...models.torch.tensor import TensorVariable
from ...protocol import Frame
from ...variables.base import Variable
from ..branches.assumed_decisions import require
from ..decisions import ProgramPoint, refuse
from ..loops.carried import CarriedLocals
from ..state.containers import Opens, opened
from ..state.python_state import leaves
from .appended import Appended, Entry
from .items import filled_in, rows_of
from .rows import LoopRows
from .shared_rows import LeadingRows, RowSharing

OF_DATA = "list of a length that depends on data"
NO_TENSOR = "append of something that is no tensor"


@dataclass
class Buffers:
    """Buffers for the tensors in what is appended: with a row for each of ``entries`` of an iteration.

    ``items`` are the tensors of the last entry, one for each of ``tensors``, the buffers.
    """

    entries: Sequence[Entry]
    tensors: list[TensorVariable] = field(default_factory=list)
    items: list[TensorVariable] = field(default_factory=list)


@dataclass
class FilledList:
    """A list that a loop appends to, and its buffers, whose first rows are its ``leading`` elements."""

    appending: Appended
    leading: Sequence[TensorVariable]
    buffers: list[Buffers]

    def tensors(self) -> Iterator[TensorVariable]:
        """All buffers, in order."""
        return (tensor for buffers in self.buffers for tensor in buffers.tensors)

    def items(self) -> Iterator[TensorVariable]:
        """What the body puts into each of them."""
        return (item for buffers in self.buffers for item in buffers.items)


def tensors_of(entry: Entry, opens: Opens) -> list[TensorVariable]:
    """The tensors in what is appended.

    :raises Unsupported: there is none, or what else there is differs by iteration.
    """
    found = leaves(entry.item, opens) or ()
    tensors = [item for item in found if isinstance(item, TensorVariable)]
    others = [item for item in found if not isinstance(item, TensorVariable)]
    if not tensors or not all(item.is_constant() for item in others):
        raise Unsupported(NO_TENSOR, repr(entry.item))
    return tensors


class FilledLists(abc.ABC):
    """The lists that the body of the loop at ``place`` appends to.

    ``written`` is how many writes there were before the body.
    """

    def __init__(
        self,
        evaluator: Frame,
        place: ProgramPoint,
        carried: CarriedLocals,
        appended: Sequence[Appended],
        written: int,
    ) -> None:
        self.evaluator = evaluator
        self.place = place
        self.carried = carried
        self.appended = appended
        self._body_start = written
        self._written = evaluator.state.aliases.written[written:]
        self._outer = evaluator.graph.graph

    @abc.abstractmethod
    def lists(self) -> Sequence[FilledList]:
        """What the body has filled."""

    @abc.abstractmethod
    def may_be_empty(self, each: FilledList) -> bool:
        """Whether it may have no element after the loop."""

    @abc.abstractmethod
    def taken_out(
        self, number: int, loop: torch.fx.Node
    ) -> tuple[Variable, list[TensorVariable], torch.fx.Node]:
        """How many rows a list has, in which tensors, and the node behind which these are at hand."""

    def finish(self, loop: torch.fx.Node, taken: Sequence[torch.fx.Node]) -> None:
        """Put the rows that ``loop`` has filled into the lists."""
        lists = self.lists()
        if not lists:
            return
        self._require_own()
        evaluator = self.evaluator
        found = [self.taken_out(number, loop) for number in range(len(lists))]
        rows = [
            (buffer, item)
            for each, (_, buffers, _) in zip(lists, found, strict=True)
            for buffer, item in zip(buffers, each.items(), strict=True)
        ]
        raw = [buffer for each in lists for buffer in each.tensors()]
        sharing = RowSharing(evaluator, self.place, self.carried.tensors, taken, self._written, raw)
        shared = iter(sharing.note(rows))
        for each, (count, buffers, node) in zip(lists, found, strict=True):
            leading = (each.leading, self._leading_rows(each))
            one = partial(require, operator="ge", number=count, bound=1)
            depends = self.may_be_empty(each) and not count.is_constant()
            given = (*leading, one if depends else None)
            made = iter(
                LoopRows(evaluator, self.place, buffer, count, node, next(shared), *given)
                for buffer in buffers
            )
            parts = [[next(made) for _ in b.tensors] for b in each.buffers]
            self._put(each, parts)

    def _require_own(self) -> None:
        """
        :raises Unsupported: a container that is appended is one that a local has, or another list.
        """
        met = set(self.carried.met)
        for each in self.appended:
            for entry in each.added:
                for container in opened(entry.item, each.opens):
                    if id(container) in met:
                        raise Unsupported(NO_TENSOR, repr(container))
                    met.add(id(container))

    def _put(self, each: FilledList, parts: Sequence[Sequence[LoopRows]]) -> None:
        target = each.appending.target
        templates = [buffers.entries[0].item for buffers in each.buffers]
        if not parts[0][0].count.is_constant():
            target.form = rows_of(templates[0], parts[0], each.appending.opens)
            return
        columns = [[list(rows.every()) for rows in group] for group in parts]
        added: list[Variable] = []
        for number in range(len(columns[0][0])):
            for template, group in zip(templates, columns, strict=True):
                tensors = iter([column[number] for column in group])
                added.append(filled_in(template, tensors, each.appending.opens))
        target._items[len(target._items) - len(each.leading) :] = added

    def _leading_rows(self, each: FilledList) -> LeadingRows | None:
        """What watches over the copies, in a buffer, of what a list has held."""
        if not each.leading:
            return None
        refusal = refuse(self.evaluator, self.place, "write to a tensor that is in a list")
        made = LeadingRows(self.evaluator, each.leading, self._body_start, refusal)
        if each.appending.buffer is not None:
            made.note_read()
        self.evaluator.state.aliases.copies.append(made)
        return made
