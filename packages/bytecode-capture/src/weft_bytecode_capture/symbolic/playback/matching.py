"""Whether a call is like one that was recorded: everything that was read then is read now, and is as it was.

The proof is by the guards.  They are all that evaluation relied on of the objects from outside, as for a
compiled call that finds other objects at the same places.  So each is asked of what is found where the other
call's objects lead.  A module, a tensor, or a tuple or dict of such may be another; any other object is the
very same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft_guards import (
    AttributeSource,
    CellContentsSource,
    DictContains,
    DictKeysAre,
    EqualsConstant,
    HasAttribute,
    InstanceDictSource,
    IsObject,
    ItemSource,
    LengthIs,
    Predicate,
    SameObject,
    Scope,
    Source,
    TensorMatches,
    TypeIs,
    TypeSource,
    is_constant,
)

from ...sources import EqualsScalar
from ..models.containers.mappings import DictVariable
from ..models.containers.sequences import ListVariable, TupleVariable
from ..models.objects.user_objects import UserObjectVariable
from ..models.torch.nn_module import ModuleInstanceVariable
from ..models.torch.tensor import TensorVariable
from ..protocol import Evaluator
from ..variables.base import Variable
from ..variables.builder import is_constant_value, same_constant
from ..variables.constant import ConstantVariable
from .events import Event, Guarded, Identified, IdentifiedAt, Wrapped
from .span import Span

_MAY_DIFFER = frozenset(
    {ModuleInstanceVariable, TensorVariable, TupleVariable, ListVariable, DictVariable}
)
_CHECKED = (
    TypeIs,
    HasAttribute,
    LengthIs,
    DictKeysAre,
    DictContains,
    EqualsConstant,
    EqualsScalar,
    TensorMatches,
)
"""Predicates that say of a value how it looks."""

_STEPS = (AttributeSource, InstanceDictSource, ItemSource, CellContentsSource, TypeSource)


class Differs(Exception):
    """The call is not like the one that was recorded."""


class Matching:
    """What stands in a call for the objects and places of one that was recorded."""

    def __init__(self, evaluator: Evaluator, span: Span, operands: list[Variable]) -> None:
        """:raises Differs: the call has to be evaluated."""
        self._evaluator = evaluator
        frame = evaluator.state.frame
        self._scope = Scope(frame.arguments, frame.globals, frame.builtins, frame.closure)
        self._sources: dict[Source, Source] = {}
        self._resolved: dict[Source, Any] = {}
        self._objects: dict[int, Any] = {}  # by the other call's
        self._taken: dict[int, Any] = {}
        # Others than these are compared by how often any was written to (:mod:`.surroundings`).
        mutated = evaluator.side_effects.mutated_variables()
        self._mutated = {id(v.value) for v in mutated if isinstance(v, UserObjectVariable)}
        if self._mutated:
            self._require(self._mutated.isdisjoint(_objects_met(span, self._scope)))
        for old, new in zip(span.operands, operands, strict=True):
            if isinstance(new, UserObjectVariable):
                self._require(id(new.value) not in self._mutated)
            if isinstance(old, ModuleInstanceVariable):
                assert isinstance(new, ModuleInstanceVariable)
                self._bind(old.value, new.value)
                if old.source != new.source:
                    self._sources[old.source] = new.source
        self.is_same = not self._sources
        if not self.is_same:
            for event in span.events:
                self._compare(event)
            for event in span.events:
                if isinstance(event, Identified):
                    self._require(self._stand_in(event.value) is event.value)
                elif isinstance(event, IdentifiedAt):
                    self._require(self.source(event.source) is event.source)

    def _require(self, condition: bool) -> None:
        if not condition:
            raise Differs

    def _bind(self, old: Any, new: Any) -> None:
        """Let one object stand for the other, and for no further one."""
        self._require(self._objects.setdefault(id(old), new) is new)
        self._require(self._taken.setdefault(id(new), old) is old)

    def _stand_in(self, value: Any) -> Any:
        return self._objects.get(id(value), value)

    def source(self, source: Source) -> Source:
        """Where what was read at ``source`` is found for this call; the very source where that is there."""
        known = self._sources.get(source)
        if known is not None:
            return known
        base = getattr(source, "base", None)
        if base is None:
            return source
        if isinstance(source, ItemSource) and not is_constant(source.key):
            self._require(self._stand_in(source.key) is source.key)
        found = self.source(base)
        if found is base:
            made = source
        else:
            self._require(type(source) in _STEPS)
            made = _on(source, found)
        self._sources[source] = made
        return made

    def value(self, source: Source) -> Any:
        """What is at a place now."""
        if source in self._resolved:
            return self._resolved[source]
        base: Source | None = getattr(source, "base", None)
        try:
            if base is None or type(source) not in _STEPS:
                found = source.evaluate(self._scope)
            else:
                found = _step(source, self.value(base))
        except Exception as error:  # there is none: eager would find something else
            raise Differs from error
        self._require(id(found) not in self._mutated)
        self._resolved[source] = found
        return found

    def _compare(self, event: Event) -> None:
        if isinstance(event, (Identified, IdentifiedAt)):
            return
        source = self.source(event.source)
        if isinstance(event, Guarded):
            self._compare_guard(event, source)
            return
        if source is event.source:
            if not is_constant_value(event.value):
                self._bind(event.value, event.value)
            return
        self._compare_object(event, self.value(source))

    def _compare_object(self, event: Wrapped, value: Any) -> None:
        if is_constant_value(event.value):
            self._require(isinstance(event.variable, ConstantVariable))
            self._require(is_constant_value(value) and same_constant(event.value, value))
            return
        if value is event.value:
            self._bind(value, value)
            return
        if id(event.value) not in self._objects:
            known = self._evaluator.builder.known(value)
            self._require(not event.was_known and known is None)
            self._require(type(event.variable) in _MAY_DIFFER and type(value) is type(event.value))
        self._bind(event.value, value)

    def _compare_guard(self, event: Guarded, source: Source) -> None:
        predicate = event.predicate
        if isinstance(predicate, SameObject):
            other = self.source(predicate.other)
            if source is not event.source or other is not predicate.other:
                self._require(self.value(source) is self.value(other))
            return
        if isinstance(predicate, IsObject):
            expected = predicate.expected
            wanted = self._stand_in(expected)
            if wanted is not expected:  # else what follows may depend on which object it is
                self._require(event.is_nested and source is not event.source)
            if source is not event.source:
                self._require(self.value(source) is wanted)
            return
        if source is event.source:
            self._require(not any(self.source(s) is not s for s in predicate.sources()))
            return
        self._require(isinstance(predicate, _CHECKED))
        self._require(predicate.holds(self.value(source), self._scope))

    def predicate(self, predicate: Predicate) -> Predicate:
        """The predicate of a guard of the call's own."""
        if isinstance(predicate, SameObject):
            return SameObject(self.source(predicate.other))
        return predicate


def _objects_met(span: Span, scope: Scope) -> set[int]:
    """The identities of what a call that was recorded was given, read, and read from."""
    if not span.met:
        met: list[Any] = [v.value for v in span.operands if isinstance(v, UserObjectVariable)]
        seen = set[Source]()
        for event in span.events:
            if isinstance(event, Wrapped):
                met.append(event.value)
            source = None if isinstance(event, (Identified, IdentifiedAt)) else event.source
            while source is not None and source not in seen:
                seen.add(source)
                source = getattr(source, "base", None)
                if source is not None:
                    met.append(source.evaluate(scope))
        span.met.update(map(id, met))
    return span.met


def _on(source: Source, base: Source) -> Source:
    """The same step from another place."""
    if isinstance(source, AttributeSource):
        return AttributeSource(base, source.attribute)
    if isinstance(source, InstanceDictSource):
        return InstanceDictSource(base, source.key)
    if isinstance(source, ItemSource):
        return ItemSource(base, source.key)
    if isinstance(source, TypeSource):
        return TypeSource(base)
    assert isinstance(source, CellContentsSource)
    return CellContentsSource(base)


def _step(source: Any, base: Any) -> Any:
    if isinstance(source, InstanceDictSource):
        dictionary: Mapping[str, Any] = object.__getattribute__(base, "__dict__")
        return dictionary if source.key is None else dictionary[source.key]
    if isinstance(source, ItemSource):
        return base[source.key]
    if isinstance(source, AttributeSource):
        return getattr(base, source.attribute)
    return type(base) if isinstance(source, TypeSource) else base.cell_contents
