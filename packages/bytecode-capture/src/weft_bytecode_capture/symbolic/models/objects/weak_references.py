"""Weak references: from outside, and made in captured code, again where the code after it needs one."""

from __future__ import annotations

import gc
import weakref
from typing import Any

from weft_guards import IsObject, Source, TypeIs

from ....frame.emitter import Emitter
from ....sources import ConvertedSource
from ....unsupported import Unsupported
from ...protocol import Evaluator
from ...variables.base import Arguments, Keywords, Variable
from ...variables.builder import register_wrapper
from ...variables.constant import ConstantVariable
from ...variables.hashing import hashed_key
from ...variables.keys import HashedKey
from ...variables.operations import values_equal
from ...variables.python_protocols import find_raw
from ..functions.tracing import FrameIsSeen
from ..table import model
from .held_objects import is_held
from .opaque import OpaqueVariable

# Weak references from outside the frame.


class WeakReferenceVariable(OpaqueVariable):
    """A weak reference."""

    def python_type(self) -> type:
        return type(self.value)

    def binary_operation(
        self, evaluator: Evaluator, operator: str, other: Variable, reflected: bool
    ) -> Variable | None:
        """References are equal as what they refer to is, as long as that lives."""
        raise Unsupported("dead weak reference", f"{self!r} {operator} {other!r}")

    def hashed_key(self, evaluator: Evaluator) -> HashedKey:
        """References to live objects are keys as these are: what is hashed by its address, by that."""
        kind = type(self.value())
        if self.value() is None or find_raw(kind, "__eq__") is not find_raw(object, "__eq__"):
            raise Unsupported("hash of a value", repr(self))
        assert self.source is not None
        evaluator.guard(self.source, IsObject(self.value, weak=True))
        return HashedKey(self, (self.value,))

    def call(self, evaluator: Evaluator, arguments: Arguments, keywords: Keywords) -> Variable:
        """What it refers to, known by another path or read through the reference; None once that is gone."""
        if arguments or keywords:
            raise Unsupported("arguments of a builtin function", repr(self))
        assert self.source is not None
        require_kept(evaluator, self.value())
        return evaluator.builder.wrap(self.value(), ConvertedSource(self.source, referent))


def referent(reference: weakref.ReferenceType[Any]) -> Any:
    """What a weak reference refers to, None once it is gone."""
    return reference()


@register_wrapper(weakref.ReferenceType)
@register_wrapper(weakref.KeyedRef)
def _wrap_weak_reference(evaluator: Evaluator, value: Any, source: Source) -> Variable:
    evaluator.guard(source, TypeIs(type(value)))
    return WeakReferenceVariable(value, source)


class WeakProxyVariable(OpaqueVariable):
    """A weak proxy: attributes and calls are those of what it refers to, which is known to live.

    It has two classes, its own and the one that ``isinstance`` is told: questions about them are left to
    CPython.
    """

    def get_attribute(self, evaluator: Evaluator, name: str) -> Variable:
        return self._referent(evaluator).get_attribute(evaluator, name)

    def set_attribute(self, evaluator: Evaluator, name: str, value: Variable) -> None:
        self._referent(evaluator).set_attribute(evaluator, name, value)

    def delete_attribute(self, evaluator: Evaluator, name: str) -> None:
        self._referent(evaluator).delete_attribute(evaluator, name)

    def call(self, evaluator: Evaluator, arguments: Arguments, keywords: Keywords) -> Variable:
        return self._referent(evaluator).call(evaluator, arguments, keywords)

    def call_method(
        self, evaluator: Evaluator, name: str, arguments: Arguments, keywords: Keywords
    ) -> Variable:
        return self._referent(evaluator).call_method(evaluator, name, arguments, keywords)

    def _referent(self, evaluator: Evaluator) -> Variable:
        assert self.source is not None
        found = proxied(self.value)
        if found is None:
            raise Unsupported("dead weak reference", repr(self))
        evaluator.guard(self.source, TypeIs(type(self.value)))
        require_kept(evaluator, found)
        return evaluator.builder.wrap(found, ConvertedSource(self.source, proxied))


def proxied(proxy: Any) -> Any:
    """What a weak proxy stands for; None once it is gone, or where it does not tell."""
    try:
        found = getattr(proxy.__init__, "__self__", None)
    except ReferenceError:
        return None
    return found if any(known is proxy for known in weakref.getweakrefs(found)) else None


@register_wrapper(weakref.ProxyType)
@register_wrapper(weakref.CallableProxyType)
def _wrap_weak_proxy(evaluator: Evaluator, value: Any, source: Source) -> Variable:
    return WeakProxyVariable(value, source)


# Weak references that the frame makes.


class NewWeakReferenceVariable(Variable):
    """A reference to ``referent``, with or without a function that is called when that is gone."""

    kind: Any = weakref.ReferenceType

    def __init__(self, evaluator: Evaluator, referent: Variable, callback: Variable) -> None:
        self.referent = referent
        self.callback = callback
        self._outside = None if referent.source is None else evaluator.builder.value_of(referent)
        # What lets go of the object sees that it has a reference.
        self._reference = None if self._outside is None else weakref.ref(self._outside)
        if self._outside is None and not callback.is_none():
            raise FrameIsSeen("dead weak reference", f"{self!r} with a function")

    def call(self, evaluator: Evaluator, arguments: Arguments, keywords: Keywords) -> Variable:
        if arguments or keywords:
            raise Unsupported("arguments of a builtin function", repr(self))
        self._require_alive(evaluator)
        return self.referent

    def _require_alive(self, evaluator: Evaluator) -> None:
        """Leave a frame to CPython that may have let go of the object.

        One made here lives as long as a frame has it, or what a frame has.
        """
        if self._outside is not None:
            require_kept(evaluator, self._outside)
        elif not is_held(evaluator, self.referent):
            raise FrameIsSeen("dead weak reference", repr(self))

    def get_attribute(self, evaluator: Evaluator, name: str) -> Variable:
        if name == "__callback__":
            return self.callback
        return super().get_attribute(evaluator, name)

    def same_object(self, evaluator: Evaluator, other: Variable) -> bool | None:
        """References without a function to one object are one object."""
        if type(other) is not type(self):
            return False if other.is_constant() else None
        if self.callback.is_none() and other.callback.is_none():
            return self.referent is other.referent
        return self is other

    def equals(self, evaluator: Evaluator, other: Variable) -> bool | None:
        """References to live objects are equal as these are."""
        if type(other) is not NewWeakReferenceVariable:
            raise Unsupported("dead weak reference", f"{self!r} == {other!r}")
        self._require_alive(evaluator)
        other._require_alive(evaluator)
        return values_equal(evaluator, self.referent, other.referent)

    def hashed_key(self, evaluator: Evaluator) -> HashedKey:
        self._require_alive(evaluator)
        known = hashed_key(evaluator, self.referent).python_key
        if (
            known is None
            or self._reference is None
            or find_raw(type(known[0]), "__eq__") is not find_raw(object, "__eq__")
        ):
            raise Unsupported("hash of a value", repr(self))
        return HashedKey(self, (weakref.ref(known[0]),))

    def truth(self, evaluator: Evaluator) -> bool:
        return True

    def reconstruct(self, emitter: Emitter) -> None:
        if (
            self._outside is None
        ):  # which lives longer in the frame than in the code after the graph
            raise FrameIsSeen("dead weak reference", repr(self))
        emitter.load_callable(weakref.ref)
        emitter.load_variable(self.referent)
        emitter.load_variable(self.callback)
        emitter.call(2)

    def __repr__(self) -> str:
        return f"WeakReference({self.referent!r})"


class NewWeakProxyVariable(NewWeakReferenceVariable):
    """A proxy, which does as ``referent`` does, as long as that lives."""

    kind = weakref.ProxyType

    def get_attribute(self, evaluator: Evaluator, name: str) -> Variable:
        return self._living(evaluator).get_attribute(evaluator, name)

    def set_attribute(self, evaluator: Evaluator, name: str, value: Variable) -> None:
        self._living(evaluator).set_attribute(evaluator, name, value)

    def delete_attribute(self, evaluator: Evaluator, name: str) -> None:
        self._living(evaluator).delete_attribute(evaluator, name)

    def call(self, evaluator: Evaluator, arguments: Arguments, keywords: Keywords) -> Variable:
        raise Unsupported("weak proxy", repr(self))

    def call_method(
        self, evaluator: Evaluator, name: str, arguments: Arguments, keywords: Keywords
    ) -> Variable:
        return self._living(evaluator).call_method(evaluator, name, arguments, keywords)

    def truth(self, evaluator: Evaluator) -> bool:
        return self._living(evaluator).truth(evaluator)

    def length(self, evaluator: Evaluator) -> int:
        return self._living(evaluator).length(evaluator)

    def iterator(self, evaluator: Evaluator) -> Variable:
        return self._living(evaluator).iterator(evaluator)

    def iterate(self, evaluator: Evaluator) -> list[Variable]:
        return self._living(evaluator).iterate(evaluator)

    def equals(self, evaluator: Evaluator, other: Variable) -> bool | None:
        raise Unsupported("weak proxy", f"{self!r} == {other!r}")

    def hashed_key(self, evaluator: Evaluator) -> HashedKey:
        evaluator.raise_error(TypeError, f"unhashable type: {self.kind.__name__!r}")

    def reconstruct(self, emitter: Emitter) -> None:
        if self._outside is None:
            raise FrameIsSeen("dead weak reference", repr(self))
        emitter.load_call(weakref.proxy, self.referent)

    def _living(self, evaluator: Evaluator) -> Variable:
        self._require_alive(evaluator)
        return self.referent

    def __repr__(self) -> str:
        return f"WeakProxy({self.referent!r})"


def require_kept(evaluator: Evaluator, referent: Any) -> None:
    """Leave a frame to CPython that has changed what held an object from outside."""
    for changed in evaluator.side_effects.mutated_variables():
        value = next((v for v, known, _ in evaluator.builder.wrapped() if known is changed), None)
        if any(attribute is referent for attribute in _left_alone(value, changed)):
            continue
        held = gc.get_referents(value, getattr(value, "__dict__", None))
        if any(part is referent for part in held):
            raise FrameIsSeen("dead weak reference", f"to what {changed!r} held")


def _left_alone(value: Any, changed: Variable) -> list[Any]:
    """The attributes of an object from outside that the frame has not written to."""
    written = getattr(changed, "attributes", None)
    dictionary = getattr(value, "__dict__", None)
    if not isinstance(written, dict) or type(dictionary) is not dict:
        return []
    return [attribute for name, attribute in dictionary.items() if name not in written]


@model(weakref.ref)
def _reference(
    evaluator: Evaluator, referent: Variable, callback: Variable | None = None, /
) -> Variable:
    kind: Any = referent.python_type()
    if referent.is_constant() or kind.__weakrefoffset__ == 0:
        raise Unsupported("construction of an instance", f"weak reference to {referent!r}")
    return NewWeakReferenceVariable(evaluator, referent, callback or ConstantVariable(None))


@model(weakref.proxy)
def _proxy(
    evaluator: Evaluator, referent: Variable, callback: Variable | None = None, /
) -> Variable:
    kind: Any = referent.python_type()
    refers = not referent.is_constant() and kind.__weakrefoffset__ != 0
    if not refers or find_raw(kind, "__call__") is not None:
        raise Unsupported("construction of an instance", f"weak proxy of {referent!r}")
    return NewWeakProxyVariable(evaluator, referent, callback or ConstantVariable(None))
