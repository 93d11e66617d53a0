"""Tuples from outside whose elements are read when one is needed, and longer ones made of them.

A model that gathers hidden states in a tuple hands a longer one to the code behind each break: which only
adds to it, and is right for any.
"""

from __future__ import annotations

import operator as operator_module
from collections.abc import Sequence
from typing import Any, TypeGuard

import torch
from weft_guards import ArgumentSource, Source, TypeIs

from ....frame.emitter import Emitter
from ...protocol import Evaluator
from ...variables.base import Variable
from ...variables.builder import register_wrapper
from ...variables.python_protocols import storage_of
from .sequences import TupleVariable


class UnreadTupleVariable(TupleVariable):
    """An exact tuple, not read yet: one at ``source``, or such a one and the tuples ``added`` to it."""

    def __init__(self, evaluator: Evaluator, value: tuple[Any, ...], source: Source | None) -> None:
        super().__init__((), source)
        self._evaluator = evaluator
        self._first: UnreadTupleVariable = self
        self._added: list[TupleVariable] = []
        self.leave_unread(value)

    def longer(self, added: TupleVariable) -> UnreadTupleVariable:
        """This tuple, which has not been read, and ``added`` behind it."""
        assert self._unread is not None
        made = UnreadTupleVariable(self._evaluator, tuple(self._unread), None)
        made._first = self._first
        made._added = [*self._added, added]
        return made

    @classmethod
    def plain(cls, items: Sequence[Variable]) -> Variable:
        return TupleVariable(items)

    # Whoever takes the elements as they are has them read.

    @property
    def _items(self) -> list[Variable]:
        return self.items(self._evaluator)

    @_items.setter
    def _items(self, items: list[Variable]) -> None:
        self._read = items

    def items(self, evaluator: Evaluator) -> list[Variable]:
        if self._unread is not None and self._first is self:
            super().items(evaluator)
        elif self._unread is not None:
            parts = [self._first, *self._added]
            self._unread = None
            self._read = [item for part in parts for item in part.items(evaluator)]
        return self._read

    def element_types(self) -> set[type]:
        if self._unread is None or self._first is self:
            return super().element_types()
        return set[type]().union(*(p.element_types() for p in (self._first, *self._added)))

    def length(self, evaluator: Evaluator) -> int:
        if self._unread is None or self._first is self:
            return super().length(evaluator)
        return sum(part.length(evaluator) for part in (self._first, *self._added))

    def same_object(self, evaluator: Evaluator, other: Variable) -> bool | None:
        """Nothing and another tuple is that tuple."""
        if isinstance(other, TupleVariable) and self._added:
            known = [part for part in (self._first, *self._added) if part.length(evaluator)]
            if len(known) == 1 and known[0] is not self:
                return known[0] is other or bool(other.same_object(evaluator, known[0]))
        return None

    def binary_operation(
        self, evaluator: Evaluator, operator: str, other: Variable, reflected: bool
    ) -> Variable | None:
        added = storage_of(other)
        is_longer = operator == "add" and not reflected and self._unread is not None
        if is_longer and isinstance(added, TupleVariable) and added.is_read:
            return self.longer(added) if added.length(evaluator) else self
        return super().binary_operation(evaluator, operator, other, reflected)

    def reconstruct(self, emitter: Emitter) -> None:
        if self._unread is None:
            super().reconstruct(emitter)
            return
        for _ in self._added:
            emitter.load_callable(operator_module.add)
        emitter.load_variable(self._first)
        for added in self._added:
            emitter.load_variable(added)
            emitter.call(2)

    def __repr__(self) -> str:
        return super().__repr__() if self._unread is None else "Tuple(...)"


def is_tuple(variable: Variable | None) -> TypeGuard[TupleVariable]:
    """Whether an object is an exact tuple."""
    return type(variable) in (TupleVariable, UnreadTupleVariable)


@register_wrapper(tuple)
def _wrap_tuple(evaluator: Evaluator, value: tuple[Any, ...], source: Source) -> Variable:
    evaluator.guard(source, TypeIs(tuple))
    if value and _holds_tensors(value):
        history = evaluator.state.frame.history
        varies = history.changed_extents(source, "length", (len(value),))
        if varies or (history.is_resumed and isinstance(source, ArgumentSource)):
            return UnreadTupleVariable(evaluator, value, source)
    variable = TupleVariable.from_object(evaluator, value, source)
    variable.items(evaluator)
    return variable


def _holds_tensors(value: tuple[Any, ...]) -> bool:
    """Whether a tuple holds tensors alone, in tuples perhaps: no numbers that code may have to know."""
    return all(
        isinstance(item, torch.Tensor) or (type(item) is tuple and _holds_tensors(item))
        for item in value
    )
