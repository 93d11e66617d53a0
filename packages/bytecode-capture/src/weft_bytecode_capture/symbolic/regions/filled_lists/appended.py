"""Lists that a loop's body appends to, and looks at from their end, while it is evaluated.

Of what iterations have appended the body knows the last elements: these are carried, as locals are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeGuard

import torch

from ...._torch.symbols import expression_of
from ....unsupported import Unsupported
from ...models.containers.sequences import ListForm, ListVariable
from ...models.numbers.symbolic_integer import SymbolicIntegerVariable
from ...models.torch.tensor import TensorVariable
from ...protocol import Evaluator, Frame
from ...variables.base import Variable
from ..loops.carried import CarriedLocals
from ..loops.counted_loops import Span, value_of
from ..loops.early_exit import flag
from ..state.python_state import difference, stride_difference
from ..subgraph import Carried, give_gradients
from .rows import RowVariable

_LOOKED_AT = "list that a loop appends to and looks at"
_MAX_LEADING = 16  # elements of a list before a loop that become rows of its buffer


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

    def end_iteration(self, evaluator: Frame, added: Sequence[Variable]) -> None:
        """Let the next iteration begin with what is last after this one."""
        if self.is_counted and len(added) != 1:
            raise Unsupported(_LOOKED_AT)
        after = [*(c.parameter for c in reversed(self.elements)), *added]
        for place, carried in enumerate(self.elements if added else (), 1):
            item = after[-place]
            if not isinstance(item, TensorVariable) or item.element is not None:
                raise Unsupported("append of something that is no tensor", repr(item))
            problem = difference(carried.start, item) or stride_difference(carried.start, item)
            if problem is not None:
                raise Unsupported(_LOOKED_AT, problem)
            if item.fake.requires_grad and not carried.parameter.fake.requires_grad:
                give_gradients(evaluator, carried.parameter.fake)
            carried.result = item


@dataclass(eq=False)
class WatchedList(ListForm):
    """What is noted of a list while a loop's body is evaluated: what is appended, and any look at it.

    A look at what is at one place in every iteration, from its beginning or its end, is none.
    """

    target: ListVariable
    last: LastElements
    added: list[Variable] = field(default_factory=list)
    looked_at: bool = False

    @property
    def hides_elements(self) -> bool:  # type: ignore[override]
        return bool(self.added)

    @property
    def held(self) -> list[Variable]:
        return self.target._items

    def state(self) -> tuple[Any, ...]:
        return (self.added,)

    def look(self, target: ListVariable) -> None:
        self.looked_at = True

    def truth(self) -> bool | None:
        return bool(self.held or self.added) or None

    def append(self, item: Variable) -> bool:
        self.added.append(item)
        return True

    def get_item(
        self, evaluator: Evaluator, target: ListVariable, key: Variable
    ) -> Variable | None:
        """The element at ``key``, if it is known in every iteration."""
        place = self._place(key)
        if place is None or place > len(self.held) + len(self.added):
            return None
        if place <= 0:
            return self.held[-place] if -place < len(self.held) else None
        if place <= len(self.added):
            return self.added[-place]
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

    ``if_any`` says whether it does, a tensor: one that leaves the loop may not.
    """

    target: ListVariable
    held: Sequence[Variable]
    added: Sequence[Variable]
    if_any: TensorVariable | None = None

    def leading(self) -> Sequence[TensorVariable]:
        """What the list has held, where it is like what is added: rows of one buffer, with that."""
        if len(self.added) != 1 or not 0 < len(self.held) <= _MAX_LEADING:
            return ()
        item = self.added[0]
        found = [held for held in self.held if isinstance(held, TensorVariable)]
        if len(found) != len(self.held) or not isinstance(item, TensorVariable):
            return ()
        is_alike = all((difference(h, item) or stride_difference(h, item)) is None for h in found)
        return found if is_alike else ()


class AppendedLists:
    """The lists made in the frame that locals and comprehensions hold, watched while a body is evaluated.

    ``carried`` are the tensors of the loop, ``index`` its counter.
    """

    def __init__(
        self, evaluator: Frame, carried: CarriedLocals, span: Span, index: Variable
    ) -> None:
        self._evaluator = evaluator
        self._lists: list[WatchedList] = []
        is_next = span.step.is_constant() and span.step.as_constant() == 1
        passed = value_of(index) - value_of(span.start) if is_next else None
        every = (v for f in evaluator.frames() for v in (*f.locals.values(), *f.stack))
        for variable in filter(_is_watchable, every):
            watched = WatchedList(variable, LastElements(carried, passed))
            variable.form = watched
            if watched.held and isinstance(watched.held[-1], RowVariable):
                _ = watched.held[-1].fake  # made here: inside, a region's graph is at hand
            self._lists.append(watched)

    @property
    def names(self) -> list[tuple[str, str]]:
        return [(f".appended {k}", f".is appended {k}") for k in range(len(self._lists))]

    def lengths(self) -> list[int]:
        return [len(watched.added) for watched in self._lists]

    def end_branch(self, before: Sequence[int]) -> None:
        local_variables = self._evaluator.locals
        for watched, start, (name, is_appended) in zip(
            self._lists, before, self.names, strict=True
        ):
            added = watched.added[start:]
            if not added:
                continue
            if len(added) > 1 or name in local_variables:
                raise Unsupported("list of a length that depends on data")
            del watched.added[start:]
            local_variables[name] = added[0]
            local_variables[is_appended] = flag(self._evaluator, True)

    def _if_any(self, watched: WatchedList, name: str, is_appended: str) -> TensorVariable | None:
        """Take what branches have appended into the list; whether there is any."""
        item = self._evaluator.locals.pop(name, None)
        if item is None:
            return None
        if watched.added:
            raise Unsupported("list of a length that depends on data")
        watched.added.append(item)
        if_any = self._evaluator.locals.pop(is_appended)
        assert isinstance(if_any, TensorVariable)
        return if_any

    def end_iteration(self) -> list[Appended]:
        """What the body has added, which has been evaluated; its graph is at hand.

        :raises Unsupported: it has looked at a list to which it has added.
        """
        found = []
        for watched, names in zip(self._lists, self.names, strict=True):
            if_any = self._if_any(watched, *names)
            watched.last.end_iteration(self._evaluator, watched.added)
            if watched.added and watched.looked_at:
                raise Unsupported(_LOOKED_AT)
            if watched.added:
                held = [watched.last.before(item) for item in watched.held]
                found.append(Appended(watched.target, held, watched.added, if_any))
        return found

    def release(self) -> None:
        """Make them plain lists again."""
        for watched in self._lists:
            del watched.target.form
        self._lists = []


def _is_watchable(variable: Variable | None) -> TypeGuard[ListVariable]:
    return type(variable) is ListVariable and variable.source is None and variable.form is None
