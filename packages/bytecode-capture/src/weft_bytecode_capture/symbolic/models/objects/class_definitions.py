"""Classes that captured code defines: built for the capture, and known to nobody once the graph has run.

The body is evaluated as a function is.  What it leaves becomes a class of CPython's: its functions stand for
the variables that they are here, its other values are found as what the program has written to the class.
No guard is on such a class, and an object of it, or the class itself, that outlives the graph makes the graph
end before the definition: each call has a class of its own.
"""

from __future__ import annotations

import abc
import builtins
import collections
import dataclasses
import inspect
import itertools
import types
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from weft_guards import AttributeSource, ConstantSource, Source, TypeIs

from ....unsupported import Unsupported
from ...captured_exception import CapturedException
from ...protocol import Evaluator
from ...variables.base import Arguments, Keywords, Variable
from ...variables.builder import register_wrapper
from ...variables.constant import ConstantVariable
from ...variables.python_protocols import find_raw
from ..builtins.methods import BuiltinMethodVariable
from ..containers.mappings import DictVariable
from ..containers.sequences import ListVariable
from ..containers.unread_tuples import is_tuple
from ..functions.cells import CellVariable
from ..functions.python_functions import VALUES, KnownFunctionVariable, NewFunctionVariable
from ..table import model, models
from .class_attributes import WrittenAttribute, is_builtin_descriptor
from .classes import ClassVariable
from .opaque import OpaqueVariable
from .user_objects import UserObjectVariable

_KIND = "class definition"
_ELSEWHERE = object()  # what is found as written to the class


@model(builtins.__build_class__)
def _build_class(
    evaluator: Evaluator, body: Variable, name: Variable, /, *bases: Variable, **keywords: Variable
) -> Variable:
    metaclass = keywords.pop("metaclass", None)
    if keywords or not isinstance(body, NewFunctionVariable):
        raise Unsupported(_KIND, f"{name!r}, with arguments that are not known")
    if metaclass is not None and not _makes_plainly(getattr(metaclass, "value", None)):
        raise Unsupported(_KIND, f"{name!r}, by {metaclass!r}")
    kinds = _plain_bases(evaluator, bases, name)
    cell, namespace = evaluator.class_namespace(body)
    maker = type if metaclass is None else metaclass.value  # type: ignore[attr-defined]
    made = _made_of(evaluator, maker, name.as_constant(), kinds, namespace)
    if isinstance(cell, CellVariable):
        cell.write(evaluator, made)
    return made


@model(type)
def _type(
    evaluator: Evaluator,
    value: Variable,
    bases: Variable | None = None,
    namespace: Variable | None = None,
    /,
) -> Variable:
    """The class of an object, or a new class."""
    if bases is None:
        return evaluator.wrap_known(value.python_type())
    if not value.is_constant() or type(namespace) is not DictVariable:
        raise Unsupported("arguments of a builtin function", "type")
    kinds = _plain_bases(evaluator, bases.iterate(evaluator), value)
    entries = namespace.all_entries(evaluator).items()
    names = {key.variable.as_constant(): entry for key, entry in entries}
    if not _CELLS.isdisjoint(names):
        raise Unsupported(_KIND, f"{value!r}, with the body of another class")
    module = ConstantVariable(evaluator.globals.dictionary.get("__name__", "builtins"))
    names.setdefault("__module__", module)
    return _made_of(evaluator, type, value.as_constant(), kinds, names)


def _made_of(
    evaluator: Evaluator,
    maker: type,
    name: str,
    kinds: tuple[type, ...],
    namespace: dict[str, Variable],
) -> Variable:
    """The class that a namespace makes."""
    found: dict[str, Any] = {}
    written: dict[str, Variable] = {}
    for key, value in namespace.items():
        if key in _CELLS:
            continue
        if key in _LAZY_ANNOTATIONS:
            written |= {"__annotate__": value, "__annotations__": LazyAnnotationsVariable(value)}
            continue
        known = _object_of(evaluator, value)
        if key == "__slots__" and type(value) is ListVariable:
            names = _objects_of(evaluator, value.items(evaluator))
            known = None if names is None else (names,)
        if known is not None and type(known[0]) in (dict, list):
            written[key] = value  # the program may change it
        elif known is None:
            _require_no_descriptor(evaluator, value, f"{name}.{key}")
            written[key] = value
        found[key] = _ELSEWHERE if known is None else known[0]
    kind = evaluator.pure(maker, name, kinds, found)
    made = made_class(evaluator, kind)
    for key, value in written.items():
        evaluator.state.write_to_class(kind, key, WrittenAttribute(value))
    return made


_CELLS = frozenset({"__classcell__", "__classdictcell__"})
"""What the body of a class leaves for the class that is made of it."""
_LAZY_ANNOTATIONS = frozenset({"__annotate__", "__annotate_func__"})  # functions, since 3.14


class LazyAnnotationsVariable(Variable):
    """Annotations of a new class that nothing has asked for yet: till then names may be bound anew."""

    def __init__(self, annotate: Variable) -> None:
        self.annotate = annotate

    def evaluated(self, evaluator: Evaluator, kind: Any) -> dict[str, Any]:
        """What the function gives, which is the class's own from then on."""
        text = f"{kind.__qualname__}, with annotations that are not known"
        try:
            values = evaluator.call_function(self.annotate, [ConstantVariable(VALUES)])
        except CapturedException as error:  # of a name that nothing is bound to yet
            raise Unsupported(_KIND, text) from error
        known = _object_of(evaluator, values)
        if known is None:
            raise Unsupported(_KIND, text)
        kind.__annotations__ = known[0]
        evaluator.state.write_to_class(kind, "__annotations__", WrittenAttribute(values))
        return kind.__annotations__  # type: ignore[no-any-return]


def made_class(evaluator: Evaluator, kind: type) -> Variable:
    """The variable of a class that was made for this capture."""
    source = ConstantSource(kind.__qualname__, kind)
    evaluator.state.note_made(kind)
    variable = ClassVariable(kind, source)
    evaluator.builder.remember(kind, variable, source)
    return variable


def _plain_bases(
    evaluator: Evaluator, bases: Sequence[Variable], name: Variable
) -> tuple[type, ...]:
    """The classes that a new one derives from; none whose own code takes part in making it."""
    if evaluator.graph.is_in_region:
        raise Unsupported("effect inside a region", f"definition of {name!r}")
    kinds = []
    for base in bases:
        kind = base.value if isinstance(base, ClassVariable) else None
        if kind is None or not _makes_plainly(type(kind)):
            raise Unsupported(_KIND, f"{name!r}, from {base!r}")
        found = evaluator.state.find_in_type(kind, "__init_subclass__")
        if found is not None and not is_builtin_descriptor(found[1]):
            raise Unsupported(_KIND, f"{name!r}, by {kind.__qualname__}.__init_subclass__")
        kinds.append(kind)
    return tuple(kinds)


_KNOWN_METACLASSES = (type, abc.ABCMeta, type(torch.autograd.Function))


def _makes_plainly(metaclass: Any) -> bool:
    """Whether no code of the program's takes part where ``metaclass`` makes a class."""
    if metaclass in _KNOWN_METACLASSES:
        return True
    order = metaclass.__mro__ if type(metaclass) is type else ()
    own = itertools.takewhile(lambda kind: kind not in _KNOWN_METACLASSES, order)
    return type in order and not any(name in vars(kind) for kind in own for name in _MAKING)


_MAKES = ("__new__", "__init__", "__call__", "__prepare__", "mro", "__del__")
_LOOKS = ("__eq__", "__hash__", "__getattribute__", "__setattr__")
_CHECKS = ("__instancecheck__", "__subclasscheck__")
_MAKING = (*_MAKES, *_LOOKS, *_CHECKS)
"""What asks the metaclass where a class is made, compared or looked up."""


def _object_of(evaluator: Evaluator, value: Variable) -> tuple[Any] | None:
    """What stands for a value in the namespace of the class, in a tuple; None for what is not known."""
    if value.is_constant():
        return (value.as_constant(),)
    if isinstance(value, (ClassVariable, KnownFunctionVariable)):
        return (value.value,)
    if isinstance(value, NewFunctionVariable):
        return (_stand_in(evaluator, value),)
    if isinstance(value, NewDescriptorVariable):
        return value.object_of(evaluator)
    if is_tuple(value):
        items = _objects_of(evaluator, value.items(evaluator))
        return None if items is None else (tuple(items),)
    if type(value) is DictVariable:  # annotations
        entries = value.all_entries(evaluator)
        items = _objects_of(evaluator, [*(key.variable for key in entries), *entries.values()])
        half = len(entries)
        return None if items is None else (dict(zip(items[:half], items[half:], strict=True)),)
    if isinstance(value, UserObjectVariable) and value.kind is dataclasses.Field:
        return _field(evaluator, value)
    return None


def _objects_of(evaluator: Evaluator, values: Iterable[Variable]) -> list[Any] | None:
    found = [_object_of(evaluator, value) for value in values]
    known = [part[0] for part in found if part is not None]
    return known if len(known) == len(found) else None


def _stand_in(evaluator: Evaluator, function: NewFunctionVariable) -> types.FunctionType:
    """A function of CPython's for one made in captured code, which is found by it."""
    code = function.code(evaluator)
    cells = tuple(types.CellType() for _ in code.co_freevars)
    defaults = (None,) * function.default_count(evaluator)
    made = types.FunctionType(
        code, function.globals_dictionary(evaluator), None, defaults or None, cells or None
    )
    made.__qualname__ = function.qualified_name()
    for name, value in function.attributes.items():
        if value is not None and value.is_constant():
            setattr(made, name, value.as_constant())
    evaluator.state.note_made(made)
    evaluator.builder.remember(made, function, ConstantSource(made.__qualname__, made))
    return made


def _require_no_descriptor(evaluator: Evaluator, value: Variable, name: str) -> None:
    """Refuse a value of which the class asks more than what it is."""
    kind = value.python_type()
    for method in ("__get__", "__set__", "__delete__", "__set_name__"):
        if find_raw(kind, method) is not None or name.endswith(("__slots__", "__dict__")):
            raise Unsupported(_KIND, f"{name}, {value!r}")


# Static methods, class methods and properties, as bodies of classes make them.


class NewDescriptorVariable(Variable):
    """One of ``kind`` around functions: a property's getter, setter and deleter."""

    def __init__(self, evaluator: Evaluator, kind: type, functions: list[Variable]) -> None:
        self.kind = kind
        self.functions = functions
        root = evaluator.state.root
        self.created_at = None if root is None else root.index

    def object_of(self, evaluator: Evaluator) -> tuple[Any] | None:
        parts = [_object_of(evaluator, function) for function in self.functions]
        known = [part[0] for part in parts if part is not None]
        if len(known) < len(parts):
            raise Unsupported(_KIND, repr(self))
        return (self.kind(*known),)

    def get_attribute(self, evaluator: Evaluator, name: str) -> Variable:
        if self.kind is property and name in _ACCESSORS:
            return BuiltinMethodVariable(self, name)
        if self.kind is property and name in _PARTS:
            return self.functions[_PARTS.index(name)]
        if self.kind is not property and name in ("__func__", "__wrapped__"):
            return self.functions[0]
        return super().get_attribute(evaluator, name)

    def call(self, evaluator: Evaluator, arguments: Arguments, keywords: Keywords) -> Variable:
        if self.kind is not staticmethod:
            return super().call(evaluator, arguments, keywords)
        return self.functions[0].call(evaluator, arguments, keywords)

    def call_method(
        self, evaluator: Evaluator, name: str, arguments: Arguments, keywords: Keywords
    ) -> Variable:
        if self.kind is not property or name not in _ACCESSORS or len(arguments) != 1 or keywords:
            return super().call_method(evaluator, name, arguments, keywords)
        functions = list(self.functions)
        functions[_ACCESSORS.index(name)] = arguments[0]
        return NewDescriptorVariable(evaluator, property, functions)

    def __repr__(self) -> str:
        return f"{self.kind.__name__}({', '.join(map(repr, self.functions))})"


_ACCESSORS = ("getter", "setter", "deleter")
_PARTS = ("fget", "fset", "fdel")


@models(staticmethod, classmethod)
def _method(kind: Any, evaluator: Evaluator, function: Variable, /) -> Variable:
    return NewDescriptorVariable(evaluator, kind, [function])


@model(property)
def _property(
    evaluator: Evaluator,
    fget: Variable | None = None,
    fset: Variable | None = None,
    fdel: Variable | None = None,
) -> Variable:
    none = ConstantVariable(None)
    functions = [none if function is None else function for function in (fget, fset, fdel)]
    return NewDescriptorVariable(evaluator, property, functions)


class PropertyVariable(OpaqueVariable):
    """A property itself, as a class gives it."""

    def python_type(self) -> type:
        return type(self.value)

    def get_attribute(self, evaluator: Evaluator, name: str) -> Variable:
        if type(self.value) is not property:
            return super().get_attribute(evaluator, name)
        if name in _ACCESSORS:
            return BuiltinMethodVariable(self, name)
        if name in _PARTS:
            assert self.source is not None
            place = AttributeSource(self.source, name)
            return evaluator.builder.wrap(getattr(self.value, name), place)
        return super().get_attribute(evaluator, name)

    def call_method(
        self, evaluator: Evaluator, name: str, arguments: Arguments, keywords: Keywords
    ) -> Variable:
        if name not in _ACCESSORS:
            return super().call_method(evaluator, name, arguments, keywords)
        parts = [self.get_attribute(evaluator, part) for part in _PARTS]
        made = NewDescriptorVariable(evaluator, property, parts)
        return made.call_method(evaluator, name, arguments, keywords)


@register_wrapper(property)
def _wrap_property(evaluator: Evaluator, value: property, source: Source) -> Variable:
    evaluator.guard(source, TypeIs(property))
    return PropertyVariable(value, source)


# Data classes: the dataclasses module itself writes their methods, which are evaluated as all functions are.


@model(vars(dataclasses)["_process_class"])
def _process_class(evaluator: Evaluator, cls: Variable, *flags: Variable) -> Variable:
    kind: Any = cls.value if isinstance(cls, ClassVariable) else None
    settings, _ = evaluator.snapshots(flags, {}, "dataclass")
    names = list(inspect.signature(_PROCESS_CLASS).parameters)[1:]
    makes_another = dict(zip(names, settings, strict=False)).get("slots")
    if kind is None or not evaluator.state.is_made(kind) or makes_another:
        raise Unsupported(_KIND, f"dataclass {cls!r}")
    lazy = evaluator.state.class_writes.get((kind, "__annotations__"))
    if lazy is not None and isinstance(lazy.variable, LazyAnnotationsVariable):
        fields = lazy.variable.evaluated(evaluator, kind)
    else:
        fields = vars(kind).get("__annotations__", {})
    if fields is _ELSEWHERE:
        raise Unsupported(_KIND, f"dataclass {cls!r}, with annotations that are not known")
    for name in fields:
        written = evaluator.state.class_writes.get((kind, name))
        if written is not None:
            raise Unsupported(_KIND, f"dataclass {cls!r}, with {written.variable!r} as a default")
    evaluator.pure(_PROCESS_CLASS, kind, *settings)
    evaluator.state.note_made(kind)
    return cls


_PROCESS_CLASS: Any = vars(dataclasses)["_process_class"]


def _field(evaluator: Evaluator, value: UserObjectVariable) -> tuple[Any] | None:
    """What ``dataclasses.field`` has made of things that are known."""
    given = {}
    for name in inspect.signature(dataclasses.Field).parameters:
        part = value.get_attribute(evaluator, name)
        known = _object_of(evaluator, part)
        if known is None:  # what marks a missing default, no metadata
            rows = evaluator.builder.wrapped()
            known = next(((found,) for found, other, _ in rows if other is part), None)
        if known is None:
            return None
        given[name] = known[0]
    return (dataclasses.Field(**given),)


# Tuples with names: their classes have nothing of the program's in them.


@model(collections.namedtuple)
def _namedtuple(
    evaluator: Evaluator, typename: Variable, field_names: Variable, **options: Variable
) -> Variable:
    positional, named = evaluator.snapshots([typename, field_names], options, "namedtuple")
    named.setdefault("module", evaluator.globals.dictionary.get("__name__", "__main__"))
    kind = evaluator.pure(collections.namedtuple, *positional, **named)
    if evaluator.graph.is_in_region:
        raise Unsupported("effect inside a region", f"definition of {kind.__name__}")
    return made_class(evaluator, kind)
