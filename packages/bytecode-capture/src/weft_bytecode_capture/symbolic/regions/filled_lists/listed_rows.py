"""Lists that kept loops have filled, whose elements another kept loop reads, one in each iteration.

What it reads is a row of the filled buffer, where eager has the very tensor that was appended.  It is as good
unless something is written to it, or it leaves the graph: then the frame is evaluated without that loop.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...._torch import storage_identity
from ...._torch.symbols import expression_of
from ....unsupported import Unsupported
from ...models.containers.sequences import ListVariable
from ...models.iterators.builtin_iterators import ListIteratorVariable
from ...models.numbers.data_numbers import DataBooleanVariable
from ...models.numbers.symbolic_integer import SymbolicIntegerVariable
from ...protocol import Frame
from ...variables.base import Variable
from ...variables.constant import ConstantVariable
from ..decisions import RegionRefused, refuse
from ..elements import in_range
from ..identity.aliases import storages_of
from ..loops.counted_loops import Span, combined, value_of
from .items import AllItems
from .rows import AllRows, LeavingBuffer, LoopRows, RowVariable


def _element(evaluator: Frame, found: AllRows, index: Variable) -> Variable:
    """The element at a number that is inside the list, whatever the iteration."""
    rows = found.rows
    last = combined(evaluator, "sub", rows.count, ConstantVariable(1))
    if found.is_reversed:
        index = combined(evaluator, "sub", last, index)
    if isinstance(found, AllItems):
        return found.element([_row(evaluator, each, index, last) for each in found.columns])
    return _row(evaluator, rows, index, last)


def _row(evaluator: Frame, rows: LoopRows, index: Variable, last: Variable) -> Variable:
    """The row at a number."""
    if index.is_constant() and rows.count.is_constant():
        return rows.row(index.as_constant())
    if _are_equal(index, last):
        return rows.row(rows.count.as_constant() - 1 if rows.count.is_constant() else -1)
    _note_read(evaluator, rows)
    return evaluator.call_method(rows.buffer, "select", ConstantVariable(0), index)


def _note_read(evaluator: Frame, rows: LoopRows) -> None:
    """Any row is read, in the loop at hand."""
    frame = next((frame for frame in evaluator.frames() if frame.rolled_loop is not None), None)
    if frame is None or frame.rolled_loop is None:
        raise Unsupported("loop of another length in each call, of which all elements are used")
    rows.note_use(is_view=False)
    reason = "write to an element of a list that a loop has filled, or its return"
    refusal = refuse(frame, (frame.code, frame.rolled_loop.at), reason)
    evaluator.state.aliases.copies.append(ReadRows(evaluator, rows, refusal))


def _are_equal(left: Variable, right: Variable) -> bool:
    """Whether two integers are one number, whatever the iteration and the call."""
    distance = value_of(left) - value_of(right)
    return bool(distance == 0) if isinstance(distance, int) else expression_of(distance) == 0


def all_rows(sequence: Variable) -> AllRows | None:
    """All rows of one buffer, if these are what a list has."""
    form = getattr(sequence, "form", None)
    if isinstance(form, AllItems) and not form.is_of_values:
        return None
    if isinstance(form, AllRows):
        return form
    if not isinstance(sequence, ListVariable) or not sequence.is_read or not sequence._items:
        return None
    items = sequence._items
    for is_reversed, last in enumerate((items[-1], items[0])):
        if not isinstance(last, RowVariable) or last.position != len(items) - 1:
            continue
        rows, order = last.rows, reversed(items) if is_reversed else items
        is_all = rows.count.is_constant() and rows.count.as_constant() == len(items)
        if is_all and all(row is rows.row(place) for place, row in enumerate(order)):
            return AllRows(rows, bool(is_reversed))
    return None


def counted_element(evaluator: Frame, sequence: Variable, key: Variable) -> Variable | None:
    """The element that a loop's counter gives, of all rows of a buffer; None for other things."""
    if not isinstance(key, SymbolicIntegerVariable):
        return None
    found = all_rows(sequence)
    if found is None:
        return None
    return _element(evaluator, found, in_range(evaluator, key, value_of(found.rows.count)))


class ListElements:
    """The elements of a list of rows by their numbers, from an iterator's next one on."""

    def __init__(self, iterator: ListIteratorVariable, found: AllRows) -> None:
        self._iterator = iterator
        self._found = found
        self.position = iterator.position

    def element(self, evaluator: Frame, index: Variable) -> Variable:
        return _element(evaluator, self._found, index)

    def exhaust(self) -> None:
        """Go to the end: a loop has used all elements.

        :raises Unsupported: the loop has changed the list.
        """
        if all_rows(self._iterator.iterated) != self._found:
            raise Unsupported("object that a region changes", repr(self._iterator.iterated))
        self._iterator.exhausted = True


def listed_rows(
    evaluator: Frame, iterator: ListIteratorVariable
) -> tuple[ListElements, Span] | None:
    """What a loop over the rest of a list counts, if the list is all rows of a buffer."""
    found = None if iterator.exhausted else all_rows(iterator.iterated)
    if found is None:
        return None
    first, count = ConstantVariable(iterator.position), found.rows.count
    has_some = evaluator.binary_operation("gt", count, first)
    depends = isinstance(has_some, DataBooleanVariable)
    if not depends and not has_some.truth(evaluator):
        return None
    return ListElements(iterator, found), Span(first, count, ConstantVariable(1), True, depends)


class ReadRows:
    """Rows of a buffer that a loop has read by its counter; ``refusal`` is of that loop."""

    def __init__(self, evaluator: Frame, rows: LoopRows, refusal: RegionRefused) -> None:
        self._rows = rows
        self._storage = storage_identity(rows.buffer.fake)
        self._aliases = evaluator.state.aliases
        self._written = len(self._aliases.written)
        self._refusal = refusal

    def check(self, outputs: Sequence[Variable]) -> None:
        """Refuse the loop where one of them was written since, or is among ``outputs`` as another tensor."""
        left = storages_of(v for v in outputs if not self._is_own(v))
        left.update(self._aliases.written[self._written :])
        if self._aliases.may_be_among([self._storage], left, base=self._storage):
            raise self._refusal

    def _is_own(self, variable: Variable) -> bool:
        if not isinstance(variable, RowVariable | LeavingBuffer):
            return False
        return variable.rows is self._rows
