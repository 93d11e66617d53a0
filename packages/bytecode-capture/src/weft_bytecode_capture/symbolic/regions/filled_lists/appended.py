"""Lists that a loop's body appends to, and looks at from their end, while it is evaluated.

Of what iterations have appended the body knows the last elements: these are carried, as locals are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeGuard

import torch

from ...._torch.symbols import expression_of
from ....unsupported import Unsupported
from ...models.containers.list_forms import ListForm
from ...models.containers.sequences import ListVariable
from ...models.numbers.symbolic_integer import SymbolicIntegerVariable
from ...models.torch.tensor import TensorVariable, tensor_of
from ...protocol import Evaluator, Frame
from ...variables.base import Variable
from ..loops.carried import CarriedLocals, numbers_in_tensors
from ..loops.counted_loops import Span, value_of
from ..loops.early_exit import RolledLoop
from ..state.containers import Opens, opens_none
from ..state.python_state import (
    difference,
    leaves,
    rebuilt,
    same_constant,
    same_structure,
    stride_difference,
)
from ..subgraph import Carried, give_gradients
from .rows import RowVariable
from .rows_so_far import FilledBuffer, RowsSoFar

_LOOKED_AT = "list that a loop appends to and looks at"
_MAX_LEADING = 16  # elements of a list before a loop that become rows of its buffer


@dataclass(frozen=True)
class Entry:
    """What an iteration appends to a list.

    ``if_any`` says whether it does, a tensor; None where every one does.  ``is_only_last``: an iteration that
    does not is the last one.
    """

    item: Variable
    if_any: TensorVariable | None = None
    is_only_last: bool = True

    @property
    def may_be_left_out(self) -> bool:
        """Whether there may be an iteration without it before one that has it."""
        return self.if_any is not None and not self.is_only_last


@dataclass
class LastElements:
    """The last elements of a list as an iteration begins, the last one first.

    ``passed`` is how many iterations have been before, None where that is not known as a number.
    """

    carried: CarriedLocals
    passed: Any
    elements: list[Carried] = field(default_factory=list)
    is_counted: bool = False  # whether each iteration has to append one element

    def element(self, held: Sequence[Variable], place: int) -> Variable | None:
        """The one at a ``place`` counted from 1; None if there is no tensor in the first iteration.

        ``held`` is what the list has held before the loop.
        """
        while len(self.elements) < place <= len(held):
            start = self.before(held[-1 - len(self.elements)])
            if not isinstance(start, TensorVariable):
                return None
            self.elements.append(self.carried.add("last", start, None))
        return self.elements[place - 1].parameter if place <= len(self.elements) else None

    def before(self, item: Variable) -> Variable:
        """What stands in its place before the loop, for an element that is carried itself."""
        starts = (c.start for c in self.carried.tensors if c.parameter is item)
        return next(starts, item)

    def end_iteration(self, evaluator: Frame, added: Sequence[Entry]) -> None:
        """Let the next iteration begin with what is last after this one."""
        may_be_left_out = any(entry.may_be_left_out for entry in added)
        if self.is_counted and (len(added) != 1 or may_be_left_out):
            raise Unsupported(_LOOKED_AT)
        if may_be_left_out and (len(added) > 1 or len(self.elements) > 1):
            raise Unsupported(_LOOKED_AT)
        after = [*(c.parameter for c in reversed(self.elements)), *(entry.item for entry in added)]
        for place, carried in enumerate(self.elements if added else (), 1):
            item = after[-place]
            if not isinstance(item, TensorVariable) or item.element is not None:
                raise Unsupported("append of something that is no tensor", repr(item))
            problem = difference(carried.start, item) or stride_difference(carried.start, item)
            if problem is not None:
                raise Unsupported(_LOOKED_AT, problem)
            if item.fake.requires_grad and not carried.parameter.fake.requires_grad:
                give_gradients(evaluator, carried.parameter.fake)
            if may_be_left_out:
                item = tensor_of(evaluator, torch.where, added[0].if_any, item, carried.parameter)
            carried.result = item


@dataclass(eq=False)
class WatchedList(ListForm):
    """What is noted of a list while a loop's body is evaluated: what is appended, and any look at it.

    A look at what is at one place in every iteration, from its beginning or its end, is none, and neither is
    one at all of it as one tensor: ``rows`` are its elements then.
    """

    target: ListVariable
    last: LastElements
    rows: RowsSoFar | None = None
    added: list[Entry] = field(default_factory=list)
    looked_at: bool = False

    @property
    def hides_elements(self) -> bool:  # type: ignore[override]
        return bool(self.added)

    @property
    def held(self) -> list[Variable]:
        return self.target._items

    def state(self) -> tuple[Any, ...]:
        return tuple(value for entry in self.added for value in (entry.item, entry.if_any))

    def look(self, target: ListVariable) -> None:
        self.looked_at = True

    def truth(self, evaluator: Evaluator) -> bool | None:
        return bool(self.held) or any(e.if_any is None for e in self.added) or None

    def append(self, item: Variable) -> bool:
        self.added.append(Entry(item))
        return True

    def joined(self) -> TensorVariable | None:
        """All elements so far as rows of one tensor, to be read; None where they are no such rows."""
        if self.rows is None or len(self.added) != 1 or self.added[0].if_any is not None:
            return None
        (entry,) = self.added
        held = [self.last.before(item) for item in self.held]
        leading = Appended(self.target, held, [entry], opens_none).leading()
        if not isinstance(entry.item, TensorVariable) or (held and not leading):
            return None
        return self.rows.read(entry.item, leading)

    def take(self, start: int) -> list[Entry]:
        """Take out what a branch has appended, from the place ``start`` on."""
        taken = self.added[start:]
        del self.added[start:]
        return taken

    def get_item(
        self, evaluator: Evaluator, target: ListVariable, key: Variable
    ) -> Variable | None:
        """The element at ``key``, if it is known in every iteration."""
        place = self._place(key)
        if place is None or place > len(self.held) + len(self.added):
            return None
        if place > 0 and any(entry.may_be_left_out for entry in self.added[-place:]):
            return None
        if place <= 0:
            return self.held[-place] if -place < len(self.held) else None
        if place <= len(self.added):
            return self.added[-place].item
        return self.last.element(self.held, place - len(self.added))

    def _place(self, key: Variable) -> int | None:
        """How far from the end a subscript is: 1 is the last; 0, -1 ... count from the beginning."""
        if key.is_constant() and type(key.as_constant()) is int:
            return -int(key.as_constant())
        if not isinstance(key, SymbolicIntegerVariable) or self.last.passed is None:
            return None
        distance = self.last.passed + len(self.held) + len(self.added) - key.value
        if isinstance(distance, torch.SymInt):
            expression = expression_of(distance)
            distance = int(expression) if expression.is_Integer else 0
        if distance <= 0:
            return None
        self.last.is_counted = True
        return int(distance)


@dataclass(frozen=True)
class Appended:
    """What one iteration adds to a list, and what that has held before the loop.

    ``opens``: which containers the iteration has made.  ``buffer`` is what it fills, where the body has read
    that.
    """

    target: ListVariable
    held: Sequence[Variable]
    added: Sequence[Entry]
    opens: Opens
    buffer: FilledBuffer | None = None

    @property
    def may_leave_gaps(self) -> bool:
        """Whether an iteration may append less than a later one."""
        return any(entry.may_be_left_out for entry in self.added)

    @property
    def may_be_none(self) -> bool:
        return not self.held and all(entry.if_any is not None for entry in self.added)

    def are_alike(self) -> bool:
        """Whether all that it adds fits into rows of the same buffers."""
        first = self.added[0].item
        return all(is_alike(first, entry.item, self.opens) for entry in self.added[1:])

    def leading(self) -> Sequence[TensorVariable]:
        """What the list has held, where it is like what is added: rows of one buffer, with that."""
        if not 0 < len(self.held) <= _MAX_LEADING or not self.are_alike():
            return ()
        item = self.added[0].item
        found = [held for held in self.held if isinstance(held, TensorVariable)]
        if len(found) != len(self.held) or not isinstance(item, TensorVariable):
            return ()
        return found if all(is_alike(held, item, self.opens) for held in found) else ()


def is_alike(left: Variable, right: Variable, opens: Opens) -> bool:
    """Whether two values differ in their tensors alone, which have the same metadata."""
    pairs = [leaves(value, opens) for value in (left, right)]
    if not same_structure(left, right, opens) or pairs[0] is None or pairs[1] is None:
        return False
    return all(_is_alike(*pair) for pair in zip(*pairs, strict=True))


def _is_alike(left: Variable, right: Variable) -> bool:
    if isinstance(left, TensorVariable) and isinstance(right, TensorVariable):
        return (difference(left, right) or stride_difference(left, right)) is None
    return same_constant(left, right)


class AppendedLists:
    """The lists made in the frame that locals and comprehensions hold, watched while a body is evaluated.

    ``carried`` are the tensors of the loop, ``index`` its counter, if it has one, within ``span``.
    """

    def __init__(
        self,
        evaluator: Frame,
        carried: CarriedLocals,
        span: Span | None = None,
        index: Variable | None = None,
    ) -> None:
        self._evaluator = evaluator
        self.every: list[WatchedList] = []
        passed = None
        if span is not None and index is not None:
            is_next = span.step.is_constant() and span.step.as_constant() == 1
            passed = value_of(index) - value_of(span.start) if is_next else None
        every = (v for f in evaluator.frames() for v in (*f.locals.values(), *f.stack))
        for variable in filter(_is_watchable, every):
            watched = WatchedList(variable, LastElements(carried, passed))
            if span is not None and index is not None:
                watched.rows = RowsSoFar(evaluator, span, index, carried.body)
            variable.form = watched
            if watched.held and isinstance(watched.held[-1], RowVariable):
                _ = watched.held[-1].fake  # made here: inside, a region's graph is at hand
            self.every.append(watched)

    def end_iteration(self, opens: Opens) -> list[Appended]:
        """What the body has added, which has been evaluated; its graph is at hand.

        :raises Unsupported: it has looked at a list to which it has added, or read it and added another.
        """
        found = []
        for watched in self.every:
            watched.last.end_iteration(self._evaluator, watched.added)
            if watched.added and watched.looked_at:
                raise Unsupported(_LOOKED_AT)
            if watched.added:
                held = [watched.last.before(item) for item in watched.held]
                added = [self._in_tensors(entry, opens) for entry in watched.added]
                buffer = None if watched.rows is None else watched.rows.buffer
                if buffer is not None and (len(added) > 1 or added[0].if_any is not None):
                    raise Unsupported(_LOOKED_AT)
                found.append(Appended(watched.target, held, added, opens, buffer))
        return found

    def _in_tensors(self, entry: Entry, opens: Opens) -> Entry:
        """With the numbers that vary in tensors; those that do not stay beside others."""
        items = leaves(entry.item, opens)
        if items is None or all(isinstance(item, TensorVariable) for item in items):
            return entry
        if all(item.is_constant() for item in items):
            item = numbers_in_tensors(self._evaluator, entry.item, opens)
        else:
            made = (i if i.is_constant() else numbers_in_tensors(self._evaluator, i) for i in items)
            item = rebuilt(entry.item, iter(made), opens)
        return Entry(item, entry.if_any, entry.is_only_last)

    def release(self) -> None:
        """Make them plain lists again."""
        for watched in self.every:
            del watched.target.form
        self.every = []


def lists_of_loops(evaluator: Frame) -> list[WatchedList]:
    """The lists that the loops watch whose bodies are being evaluated, in this frame and its callers."""
    return [watched for loop in _loops_around(evaluator) for watched in loop.lists]


def _loops_around(evaluator: Frame) -> Iterator[RolledLoop]:
    for frame in evaluator.frames():
        loop = frame.rolled_loop
        while loop is not None:
            yield loop
            loop = loop.around


def _is_watchable(variable: Variable | None) -> TypeGuard[ListVariable]:
    return type(variable) is ListVariable and variable.source is None and variable.form is None
