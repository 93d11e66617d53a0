"""Instances of classes defined in Python."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

from weft_guards import (
    AttributeSource,
    ConstantSource,
    DictContains,
    InstanceDictSource,
    Source,
    TypeIs,
)

from ...unsupported import Unsupported
from ..builder import register_predicate
from .base import Variable
from .class_attributes import (
    bind_attribute,
    is_builtin_descriptor,
    is_data_descriptor,
    raise_no_attribute,
)
from .exceptions import ExceptionVariable

if TYPE_CHECKING:
    from ...frame.emitter import Emitter
    from ..evaluator import Evaluator


class UserObjectVariable(Variable):
    """An instance whose state is its instance dict; ``value`` is None for an object made in the frame."""

    def __init__(self, kind: type, value: Any = None, source: Source | None = None) -> None:
        self.kind = kind
        self.value = value
        self.source = source
        self.attributes: dict[str, Variable] = {}  # written during evaluation

    def python_type(self) -> type:
        return self.kind

    # Attributes.

    def get_attribute(self, evaluator: Evaluator, name: str) -> Variable:
        kind = self.kind
        self._require_plain(evaluator, "__getattribute__")
        if name == "__class__":
            return evaluator.wrap_known(kind)
        if name == "__dict__":
            raise Unsupported("instance dictionary", repr(self))
        found = evaluator.state.find_in_type(kind, name)
        if found is not None and is_data_descriptor(found[1]):
            if isinstance(found[1], types.MemberDescriptorType):
                return self._slot(evaluator, name)
            return bind_attribute(evaluator, kind, found[0], name, found[1], self)
        if name in self.attributes:
            return self.attributes[name]
        if self.source is not None:
            dictionary = self._dictionary()
            if name in dictionary:
                return evaluator.builder.wrap(
                    dictionary[name], InstanceDictSource(self.source, name)
                )
            if hasattr(self.value, "__dict__"):
                evaluator.guard(AttributeSource(self.source, "__dict__"), DictContains(name, False))
        if found is not None:
            if is_builtin_descriptor(found[1]):
                raise Unsupported("method of a builtin type", f"{kind.__qualname__}.{name}")
            return bind_attribute(evaluator, kind, found[0], name, found[1], self)
        fallback = evaluator.state.find_in_type(kind, "__getattr__")
        if fallback is None:
            raise_no_attribute(evaluator, kind, name)
        method = bind_attribute(evaluator, kind, fallback[0], "__getattr__", fallback[1], self)
        return method.call(evaluator, [evaluator.wrap_constant(name)], {})

    def _dictionary(self) -> dict[str, Any]:
        try:
            dictionary = object.__getattribute__(self.value, "__dict__")
        except AttributeError:
            return {}
        assert isinstance(dictionary, dict)
        return dictionary

    def _slot(self, evaluator: Evaluator, name: str) -> Variable:
        if name in self.attributes:
            return self.attributes[name]
        if self.source is None:
            raise_no_attribute(evaluator, self.kind, name)
        try:
            value = getattr(self.value, name)
        except AttributeError:
            raise Unsupported("empty slot", f"{self!r}.{name}") from None
        return evaluator.builder.wrap(value, AttributeSource(self.source, name))

    def _require_plain(self, evaluator: Evaluator, special: str) -> None:
        found = evaluator.state.find_in_type(self.kind, special)
        if found is not None and found[0] is not object:
            raise Unsupported("attribute access by a method", f"{self.kind.__qualname__}.{special}")

    def set_attribute(self, evaluator: Evaluator, name: str, value: Variable) -> None:
        self._require_plain(evaluator, "__setattr__")
        if name.startswith("__") and name.endswith("__"):
            raise Unsupported("attribute write", f"{self!r}.{name}")
        found = evaluator.state.find_in_type(self.kind, name)
        if found is not None and is_data_descriptor(found[1]):
            raw = found[1]
            if type(raw) is property and raw.fset is not None:
                setter = evaluator.builder.wrap(
                    raw.fset, ConstantSource(f"{self.kind.__qualname__}.{name}.fset", raw.fset)
                )
                setter.call(evaluator, [self, value], {})
                return
            if not isinstance(raw, types.MemberDescriptorType):
                raise Unsupported("attribute write", f"{self!r}.{name}")
        elif self.kind.__dictoffset__ == 0:
            raise_no_attribute(evaluator, self.kind, name)
        self.attributes[name] = value
        if self.source is not None:
            evaluator.side_effects.mutated(self)

    # Special methods.

    def _special(self, evaluator: Evaluator, name: str) -> Variable | None:
        """A special method of the class bound to this object; None where the class has none."""
        found = evaluator.state.find_in_type(self.kind, name)
        if found is None or found[1] is None or found[0] is object:
            return None
        if is_builtin_descriptor(found[1]):
            raise Unsupported("method of a builtin type", f"{self.kind.__qualname__}.{name}")
        return bind_attribute(evaluator, self.kind, found[0], name, found[1], self)

    def call(
        self, evaluator: Evaluator, arguments: list[Variable], keywords: dict[str, Variable]
    ) -> Variable:
        method = self._special(evaluator, "__call__")
        if method is None:
            evaluator.raise_error(TypeError, f"{self.kind.__name__!r} object is not callable")
        return method.call(evaluator, arguments, keywords)

    def truth(self, evaluator: Evaluator) -> bool:
        for name in ("__bool__", "__len__"):
            method = self._special(evaluator, name)
            if method is not None:
                return method.call(evaluator, [], {}).truth(evaluator)
        return True

    def length(self, evaluator: Evaluator) -> int:
        method = self._special(evaluator, "__len__")
        if method is None:
            evaluator.raise_error(TypeError, f"object of type {self.kind.__name__!r} has no len()")
        return int(method.call(evaluator, [], {}).as_constant())

    def iterator(self, evaluator: Evaluator) -> Variable:
        method = self._special(evaluator, "__iter__")
        if method is None:
            raise Unsupported("iteration", repr(self))
        return method.call(evaluator, [], {})

    def iterate(self, evaluator: Evaluator) -> list[Variable]:
        iterator = self.iterator(evaluator)
        if iterator is self:
            raise Unsupported("iteration", repr(self))
        return iterator.iterate(evaluator)

    def binary_operation(
        self, evaluator: Evaluator, operator: str, other: Variable, reflected: bool
    ) -> Variable | None:
        name = operator
        if reflected:
            name = _REFLECTED_COMPARISONS.get(operator, "r" + operator)
        method = self._special(evaluator, f"__{name}__")
        if method is None:
            return None
        result = method.call(evaluator, [other], {})
        if result.is_constant() and result.as_constant() is NotImplemented:
            return None
        return result

    # Emission.

    def emit_mutation(self, emitter: Emitter) -> None:
        for name, value in self.attributes.items():
            emitter.load_callable(object.__setattr__)
            emitter.load_variable(self)
            emitter.load_constant(name)
            emitter.load_variable(value)
            emitter.call(3)
            emitter.pop()

    def reconstruct(self, emitter: Emitter) -> None:
        emitter.load_callable(_new_object)
        emitter.load_object(self.kind)
        for name, value in self.attributes.items():
            emitter.load_constant(name)
            emitter.load_variable(value)
        emitter.build("map", len(self.attributes))
        emitter.call(2)

    def __repr__(self) -> str:
        return f"{self.kind.__qualname__} object"


_REFLECTED_COMPARISONS = {
    "lt": "gt", "gt": "lt", "le": "ge", "ge": "le", "eq": "eq", "ne": "ne",
}  # fmt: skip


def _new_object(kind: type, attributes: dict[str, Any]) -> Any:
    instance: Any = object.__new__(kind)
    for name, value in attributes.items():
        object.__setattr__(instance, name, value)
    return instance


def new_instance(
    evaluator: Evaluator, kind: type, arguments: list[Variable], keywords: dict[str, Variable]
) -> Variable:
    """The instance that calling a class gives."""
    make = evaluator.state.find_in_type(kind, "__new__")
    start = evaluator.state.find_in_type(kind, "__init__")
    assert make is not None
    assert start is not None
    if issubclass(kind, BaseException):
        if keywords or not (is_builtin_descriptor(start[1]) and is_builtin_descriptor(make[1])):
            raise Unsupported("exception class with a constructor", kind.__qualname__)
        if issubclass(kind, (OSError, UnicodeError, ImportError, SyntaxError, BaseExceptionGroup)):
            raise Unsupported("exception class with a constructor", kind.__qualname__)
        return ExceptionVariable(kind, arguments)
    if type(kind) is not type or make[0] is not object or not _is_heap_class(kind):
        raise Unsupported("construction of an instance", kind.__qualname__)
    instance = UserObjectVariable(kind)
    if start[0] is object:
        if arguments or keywords:
            evaluator.raise_error(TypeError, f"{kind.__name__}() takes no arguments")
        return instance
    method = bind_attribute(evaluator, kind, start[0], "__init__", start[1], instance)
    result = method.call(evaluator, arguments, keywords)
    if not (result.is_constant() and result.as_constant() is None):
        raise Unsupported("__init__ that returns a value", kind.__qualname__)
    return instance


_HEAP_CLASS = 1 << 9


def _is_heap_class(kind: type) -> bool:
    """Whether a class and all its bases but object are made by Python code, with nothing hidden in C."""
    return all(base is object or base.__flags__ & _HEAP_CLASS for base in kind.__mro__) and (
        "__dict__" in dir(kind) or kind.__dictoffset__ == 0
    )


def _is_plain_instance(value: Any) -> bool:
    kind = type(value)
    return not isinstance(value, type) and _is_heap_class(kind)


@register_predicate(_is_plain_instance, -100)
def _wrap_instance(evaluator: Evaluator, value: Any, source: Source) -> Variable:
    evaluator.guard(source, TypeIs(type(value)))
    return UserObjectVariable(type(value), value, source)
