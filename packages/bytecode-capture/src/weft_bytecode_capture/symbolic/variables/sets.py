"""Sets and frozen sets made during evaluation."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Self

from weft_guards import ConstantSource, SetIs, Source, TypeIs

from ...unsupported import Unsupported
from ..builder import register_wrapper
from .base import Variable
from .hashing import HashedKey, hashed_key
from .methods import MethodTable, method_of

if TYPE_CHECKING:
    from ...frame.emitter import Emitter
    from ..evaluator import Evaluator


class SetVariable(Variable):
    """An exact set; ``members`` is an ordered set of keys.

    The order of a set's elements is not captured: iteration over more than one element is refused.
    """

    kind: type = set
    methods = MethodTable(set)

    def __init__(self, members: dict[HashedKey, None] | None = None) -> None:
        self.members: dict[HashedKey, None] = {} if members is None else members

    @classmethod
    def of(cls, evaluator: Evaluator, elements: Iterable[Variable | None]) -> Self:
        members: dict[HashedKey, None] = {}
        for element in elements:
            assert element is not None
            members.setdefault(hashed_key(evaluator, element), None)
        return cls(members)

    def python_type(self) -> type:
        return self.kind

    def elements(self) -> list[Variable]:
        return [member.variable for member in self.members]

    def iterate(self, evaluator: Evaluator) -> list[Variable]:
        if len(self.members) > 1:
            raise Unsupported("iteration over a set", repr(self), "its order is not captured")
        return self.elements()

    def length(self, evaluator: Evaluator) -> int:
        return len(self.members)

    def truth(self, evaluator: Evaluator) -> bool:
        return bool(self.members)

    def snapshot(self) -> Any:
        return self.kind(element.snapshot() for element in self.elements())

    def get_attribute(self, evaluator: Evaluator, name: str) -> Variable:
        return method_of(evaluator, self, name)

    def call_method(
        self,
        evaluator: Evaluator,
        name: str,
        arguments: list[Variable],
        keywords: dict[str, Variable],
    ) -> Variable:
        return self.methods.call(evaluator, self, name, arguments, keywords)

    def mutate(self, evaluator: Evaluator) -> dict[HashedKey, None]:
        if self.source is not None:
            raise Unsupported("mutation of a set from outside the frame", repr(self))
        return self.members

    def reconstruct(self, emitter: Emitter) -> None:
        emitter.load_callable(self.kind)
        for element in self.elements():
            emitter.load_variable(element)
        emitter.build("tuple", len(self.members))
        emitter.call(1)

    def __repr__(self) -> str:
        return f"Set({self.elements()!r})"


class FrozenSetVariable(SetVariable):
    """An exact frozenset."""

    kind = frozenset
    methods = MethodTable(frozenset)


def _elements(iterable: Variable, evaluator: Evaluator) -> list[Variable]:
    if isinstance(iterable, SetVariable):
        return iterable.elements()
    return iterable.iterate(evaluator)


@SetVariable.methods.method("__contains__", 1)
@FrozenSetVariable.methods.method("__contains__", 1)
def _contains(evaluator: Evaluator, self: SetVariable, item: Variable) -> Variable:
    return evaluator.wrap_constant(hashed_key(evaluator, item) in self.members)


@SetVariable.methods.method("__len__", 0)
@FrozenSetVariable.methods.method("__len__", 0)
def _length(evaluator: Evaluator, self: SetVariable) -> Variable:
    return evaluator.wrap_constant(len(self.members))


@SetVariable.methods.method("add", 1)
def _add(evaluator: Evaluator, self: SetVariable, item: Variable) -> None:
    self.mutate(evaluator).setdefault(hashed_key(evaluator, item), None)


@SetVariable.methods.method("discard", 1)
def _discard(evaluator: Evaluator, self: SetVariable, item: Variable) -> None:
    self.mutate(evaluator).pop(hashed_key(evaluator, item), None)


@SetVariable.methods.method("update")
def _update(evaluator: Evaluator, self: SetVariable, *iterables: Variable) -> None:
    for iterable in iterables:
        for item in _elements(iterable, evaluator):
            self.mutate(evaluator).setdefault(hashed_key(evaluator, item), None)


@register_wrapper(set, frozenset)
def _wrap_set(evaluator: Evaluator, value: Any, source: Source) -> Variable:
    evaluator.guard(source, TypeIs(type(value)))
    evaluator.guard(source, SetIs(frozenset(value)))
    family = SetVariable if type(value) is set else FrozenSetVariable
    members = (
        evaluator.builder.wrap(item, ConstantSource(f"an element of {source.name()}", item))
        for item in value
    )
    variable = family.of(evaluator, members)
    variable.source = source
    return variable
