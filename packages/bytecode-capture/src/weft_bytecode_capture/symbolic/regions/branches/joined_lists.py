"""What the branches of a conditional append to lists that a kept loop fills: joined one by one, in order.

Where only one branch appends, the other has something alike that nobody sees, and a flag says which it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...models.numbers.tensor_number import number_kind
from ...models.torch.tensor import TensorVariable, tensor_of
from ...protocol import Frame
from ...variables.base import Variable
from ...variables.constant import ConstantVariable
from ..filled_lists.appended import Entry, WatchedList, lists_of_loops
from ..loops.early_exit import LEFT, flag, like_result
from ..state.containers import Opens
from ..state.python_state import leaves, rebuilt
from .branch_ends import BranchEnd, on_one_device

_Both = tuple[BranchEnd, BranchEnd]


@dataclass(frozen=True)
class _Joined:
    """An entry of both branches, whose items are at ``item`` in what either has appended.

    ``if_any`` is where their flags are, or what says already whether there is one.
    """

    watched: WatchedList
    item: int
    if_any: int | TensorVariable | None
    is_only_last: bool


class ListsOfBranches:
    """The lists that loops around a conditional watch, as its branches are evaluated one after the other."""

    def __init__(self, evaluator: Frame) -> None:
        self._evaluator = evaluator
        self._lists = lists_of_loops(evaluator)
        self._before = [len(watched.added) for watched in self._lists]
        self._taken: list[list[list[Entry]]] = []  # by branch and list
        self._joined: list[_Joined] = []

    def take(self) -> None:
        """Take out what a branch has appended."""
        pairs = zip(self._lists, self._before, strict=True)
        self._taken.append([watched.take(start) for watched, start in pairs])

    def complete(self, predicate: TensorVariable, ends: _Both, opens: Opens) -> None:
        """Let both branches have as many entries, in what they have appended."""
        for watched, *both in zip(self._lists, *self._taken, strict=True):
            for place in range(max(map(len, both))):
                entries = [entries[place] if place < len(entries) else None for entries in both]
                self._complete(watched, predicate, entries, ends, opens)

    def _complete(
        self,
        watched: WatchedList,
        predicate: TensorVariable,
        entries: Sequence[Entry | None],
        ends: _Both,
        opens: Opens,
    ) -> None:
        evaluator = self._evaluator
        found = [entry for entry in entries if entry is not None]
        is_only_last = all(entry.is_only_last for entry in found)
        items: list[Variable] = []
        for entry, end in zip(entries, ends, strict=True):
            if entry is None:
                is_only_last &= LEFT in end.locals
            with end.subgraph.active():
                items.append(_unseen(evaluator, found[0], opens) if entry is None else entry.item)
        number = _put(ends, items)
        if any(entry.if_any is not None for entry in found):
            flags = []
            for entry, end in zip(entries, ends, strict=True):
                with end.subgraph.active():
                    known = None if entry is None else entry.if_any
                    flags.append(known or flag(evaluator, entry is not None))
            pair = on_one_device(evaluator, ends, (flags[0], flags[1]))
            if_any: int | TensorVariable | None = _put(ends, pair)
        elif len(found) == 2:
            if_any = None
        elif entries[0] is None:
            if_any = tensor_of(evaluator, "logical_not", predicate)
        else:
            if_any = predicate
        self._joined.append(_Joined(watched, number, if_any, is_only_last))

    def finish(self, resolved: Callable[[int], Variable]) -> None:
        """Append the entries to their lists; ``resolved`` gives what either branch has, by its place."""
        for each in self._joined:
            flag_of_both = resolved(each.if_any) if isinstance(each.if_any, int) else each.if_any
            assert flag_of_both is None or isinstance(flag_of_both, TensorVariable)
            item = resolved(each.item)
            each.watched.added.append(Entry(item, flag_of_both, each.is_only_last))


def _put(ends: _Both, values: Sequence[Variable]) -> int:
    """Let either branch have its value; the place that both are at."""
    for end, value in zip(ends, values, strict=True):
        end.appended[len(end.appended)] = value
    return len(ends[0].appended) - 1


def _unseen(evaluator: Frame, entry: Entry, opens: Opens) -> Variable:
    """What stands for an entry in the branch that has none, in its graph."""
    items = leaves(entry.item, opens)
    if items is None:
        return entry.item
    plain = (_plain_number(item) for item in items)
    return like_result(evaluator, rebuilt(entry.item, plain, opens), opens)


def _plain_number(item: Variable) -> Variable:
    """A constant in the place of a number that the other branch computes."""
    kind = number_kind(item)
    is_computed = kind is not None and not item.is_constant()
    return ConstantVariable(kind(0)) if kind is not None and is_computed else item
