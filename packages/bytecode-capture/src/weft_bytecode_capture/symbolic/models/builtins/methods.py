"""Objects of builtin classes: calls of their methods, and methods bound to a variable."""

from __future__ import annotations

import collections
import types
from typing import Any

from weft_guards import AttributeSource, EqualsConstant, Source, TypeIs

from ....frame.emitter import Emitter
from ....unsupported import Unsupported
from ...protocol import Evaluator
from ...variables.base import Arguments, Keywords, Variable
from ...variables.builder import register_predicate
from ...variables.python_protocols import find_raw, name_in_errors, no_attribute
from ..table import method_model, model_of


class BuiltinVariable(Variable):
    """An object of the builtin class ``kind``, which has no attributes but its methods."""

    def get_attribute(self, evaluator: Evaluator, name: str) -> Variable:
        return method_of(evaluator, self, name)

    def call_method(
        self, evaluator: Evaluator, name: str, arguments: Arguments, keywords: Keywords
    ) -> Variable:
        return call_method_of(evaluator, self.kind, self, name, arguments, keywords)


class ContainerVariable(BuiltinVariable):
    """One that holds others."""

    def truth(self, evaluator: Evaluator) -> bool:
        return self.length(evaluator) > 0

    def contains(self, evaluator: Evaluator, item: Variable) -> bool:
        raise NotImplementedError


_CONTAINERS = (
    list, tuple, collections.deque, set, frozenset, dict, collections.OrderedDict,
    collections.defaultdict, types.MappingProxyType,
)  # fmt: skip


@method_model("__iter__", *_CONTAINERS)
def _iter(evaluator: Evaluator, self: ContainerVariable, /) -> Variable:
    return self.iterator(evaluator)


@method_model("__len__", *_CONTAINERS)
def _len(evaluator: Evaluator, self: ContainerVariable, /) -> Variable:
    return self.length_variable(evaluator)


@method_model("__contains__", *_CONTAINERS)
def _contains(evaluator: Evaluator, self: ContainerVariable, item: Variable, /) -> Variable:
    return evaluator.wrap_constant(self.contains(evaluator, item))


def call_method_of(
    evaluator: Evaluator,
    kind: type,
    receiver: Variable,
    name: str,
    arguments: Arguments,
    keywords: Keywords,
) -> Variable:
    """Call a method of a builtin class on an object of it."""
    raw = find_raw(kind, name)
    if raw is None:
        no_attribute(evaluator, name_in_errors(kind), name)
    model = model_of(raw)
    if model is None:
        raise Unsupported("method of a builtin type", f"{kind.__name__}.{name}")
    is_of_class = type(raw) is types.ClassMethodDescriptorType
    return model.call(evaluator, arguments, keywords, kind if is_of_class else receiver)


class BuiltinMethodVariable(Variable):
    """A method of a builtin type bound to a variable: ``x.append``."""

    def __init__(self, receiver: Variable, name: str, source: Source | None = None) -> None:
        self.receiver = receiver
        self.name = name
        self.source = source

    def python_type(self) -> type:
        raw = find_raw(self.receiver.python_type(), self.name)
        if isinstance(raw, (types.FunctionType, classmethod)):
            return types.MethodType
        return type([].__len__) if type(raw) is types.WrapperDescriptorType else type([].append)

    def call(self, evaluator: Evaluator, arguments: Arguments, keywords: Keywords) -> Variable:
        return self.receiver.call_method(evaluator, self.name, arguments, keywords)

    def equals(self, evaluator: Evaluator, other: Variable) -> bool | None:
        """Methods are equal if they are one method of one object."""
        from ...variables.operations import is_same_object

        if not isinstance(other, BuiltinMethodVariable):
            return None
        return self.name == other.name and is_same_object(evaluator, self.receiver, other.receiver)

    def get_attribute(self, evaluator: Evaluator, name: str) -> Variable:
        if name == "__self__":
            return self.receiver
        if name == "__name__":
            return evaluator.wrap_constant(self.name)
        return super().get_attribute(evaluator, name)

    def reconstruct(self, emitter: Emitter) -> None:
        emitter.load_variable(self.receiver)
        emitter.load_attribute(self.name)

    def __repr__(self) -> str:
        return f"BuiltinMethod({self.receiver!r}.{self.name})"


def method_of(evaluator: Evaluator, variable: Variable, name: str) -> Variable:
    """The attribute of an object of an exact builtin type, which has no attributes but its methods."""
    kind = variable.python_type()
    if name == "__class__":
        return evaluator.wrap_known(kind)
    if find_raw(kind, name) is None:
        no_attribute(evaluator, name_in_errors(kind), name)
    if name == "__doc__":
        return evaluator.wrap_constant(kind.__doc__)
    return BuiltinMethodVariable(variable, name)


def _is_bound(value: Any) -> bool:
    """Whether a builtin function is the method of an instance: ``[].append``."""
    return (
        type(value) is types.BuiltinFunctionType
        and not issubclass(type(value.__self__), (types.ModuleType, type, types.NoneType))
        and hasattr(type(value.__self__), value.__name__)  # pybind11 keeps its records there
    )


@register_predicate(_is_bound, 90)
def _wrap_bound_method(evaluator: Evaluator, value: Any, source: Source) -> Variable:
    """Known by its receiver and name: a new method object is made by every ``x.append``."""
    evaluator.guard(source, TypeIs(types.BuiltinFunctionType))
    evaluator.guard(AttributeSource(source, "__name__"), EqualsConstant(value.__name__))
    receiver = evaluator.builder.wrap(value.__self__, AttributeSource(source, "__self__"))
    return BuiltinMethodVariable(receiver, value.__name__, source)
