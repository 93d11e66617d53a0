"""Lists of numbers, tuples and containers of tensors that a rolled loop has filled: rows of buffers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ....frame.emitter import Emitter
from ....unsupported import Unsupported
from ...models.containers.mappings import DictVariable
from ...models.containers.sequences import ListVariable, TupleVariable
from ...models.numbers.tensor_number import TensorNumberVariable
from ...models.torch.tensor import TensorVariable
from ...protocol import Evaluator
from ...variables.base import Variable
from ...variables.constant import ConstantVariable
from ..state.containers import Opens, is_structure, opened, opens_none, parts
from ..state.python_state import leaves, rebuilt
from .rows import AllRows, LoopRows

_NOTHING = ConstantVariable(None)


@dataclass(frozen=True)
class AllItems(AllRows):
    """A list of things that hold rows of several buffers: numbers, tuples and containers like ``template``.

    ``columns`` are the rows of its tensors, in order; ``opens`` says which containers stand for what they
    hold.
    """

    is_plain = False
    template: Variable = _NOTHING
    columns: tuple[LoopRows, ...] = ()
    opens: Opens = opens_none

    def state(self) -> tuple[Any, ...]:
        return self.columns, self.is_reversed

    @property
    def is_of_values(self) -> bool:
        """Whether its elements have no identity: no one can tell one from another like it."""
        return next(opened(self.template, self.opens), None) is None

    def look(self, target: ListVariable) -> None:
        target.form = None
        columns = [rows.every() for rows in self.columns]
        items = [self.element(each) for each in zip(*columns, strict=True)]
        target._items = items[:: -1 if self.is_reversed else 1]

    def element(self, tensors: Sequence[Variable]) -> Variable:
        """One of the things, which holds ``tensors``."""
        return filled_in(self.template, iter(tensors), self.opens)

    def rebuild(self, emitter: Emitter) -> bool:
        columns = [rows.every_separate() for rows in self.columns]
        known = [column for column in columns if column is not None]
        if len(known) < len(columns):
            return False
        form = form_of(self.template, self.opens)
        emitter.load_call(_listed_things, self.is_reversed, form, *known)
        return True

    def get_item(
        self, evaluator: Evaluator, target: ListVariable, key: Variable
    ) -> Variable | None:
        return super().get_item(evaluator, target, key) if self.is_of_values else None

    def at_end(self, place: int) -> Variable:
        return self.element([rows.row(place) for rows in self.columns])

    def reversed(self) -> AllRows:
        return replace(self, is_reversed=not self.is_reversed)

    @property
    def kind(self) -> type | None:
        """The type of the elements, if they are numbers."""
        return self.template.kind if type(self.template) is TensorNumberVariable else None


def numbers_in_order(
    evaluator: Evaluator, sequence: Variable
) -> tuple[type, TensorVariable] | None:
    """The type of the numbers in such a list, and a tensor of them; None of other things."""
    form = getattr(sequence, "form", None)
    if not isinstance(form, AllItems) or form.kind is None:
        return None
    form.rows.require_some(evaluator)
    return form.kind, form.in_order(evaluator.frame)


def rows_of(template: Variable, columns: Sequence[LoopRows], opens: Opens) -> AllRows:
    """What a list is whose elements are like ``template``, with rows of ``columns`` for its tensors."""
    if isinstance(template, TensorVariable):
        return AllRows(columns[0])
    form_of(template, opens)
    for rows, is_number in zip(columns, _are_numbers(template, opens), strict=True):
        rows.are_numbers = is_number
    return AllItems(columns[0], False, template, tuple(columns), opens)


def holds_numbers(template: Variable, opens: Opens) -> bool:
    """Whether a tensor in a value stands for a number."""
    return any(_are_numbers(template, opens))


def _are_numbers(template: Variable, opens: Opens) -> Iterator[bool]:
    """Of each tensor in a value whether it stands for a number."""
    if isinstance(template, TensorVariable | TensorNumberVariable):
        yield isinstance(template, TensorNumberVariable)
    elif is_structure(template, opens):
        for part in parts(template):
            yield from _are_numbers(part, opens)


def filled_in(template: Variable, tensors: Iterator[Variable], opens: Opens) -> Variable:
    """``template`` with other tensors in it."""
    found = leaves(template, opens) or ()
    items = (next(tensors) if isinstance(item, TensorVariable) else item for item in found)
    return rebuilt(template, items, opens)


Form = Callable[[Iterator[Any]], Any]
"""What makes one of the things in a list, of the objects in it that the graph gives."""


def form_of(template: Variable, opens: Opens) -> Form:
    """What makes things like ``template``.

    :raises Unsupported: of what it is, the code after the graph can make no more.
    """
    if isinstance(template, TensorVariable):
        return next
    if isinstance(template, TensorNumberVariable):
        if template.kind not in (int, float, bool):
            raise Unsupported("append of something that is no tensor", repr(template))
        return next
    if not is_structure(template, opens):
        constant = template.as_constant()
        return lambda _: constant
    inner = [form_of(part, opens) for part in parts(template)]
    if type(template) is TupleVariable:
        return lambda objects: tuple([make(objects) for make in inner])
    if type(template) is ListVariable:
        return lambda objects: [make(objects) for make in inner]
    if type(template) is not DictVariable:
        raise Unsupported("append of something that is no tensor", repr(template))
    keys = [key.python_key[0] for key in template.entries if key.python_key is not None]
    if len(keys) < len(inner):
        raise Unsupported("append of something that is no tensor", repr(template))
    return lambda objects: {key: make(objects) for key, make in zip(keys, inner, strict=True)}


def _listed_things(is_reversed: bool, form: Form, *columns: Sequence[Any]) -> list[Any]:
    every = [form(iter(objects)) for objects in zip(*columns, strict=True)]
    return every[::-1] if is_reversed else every
