"""Construction of instances: ``__new__``, ``__init__``, and rebuilding them after the graph."""

from __future__ import annotations

import collections
import types
from collections.abc import Callable
from typing import Any

from weft_guards import Source

from ...._torch.wrappers import is_wrapper_class
from ....frame.emitter import Emitter
from ....sources import ConvertedSource
from ....unsupported import Unsupported
from ...protocol import Evaluator
from ...variables.base import Arguments, Keywords, Variable
from ...variables.class_guards import guard_absent
from ...variables.constant import ConstantVariable
from ...variables.hashing import are_silent
from ...variables.operations import is_same_object
from ...variables.python_protocols import (
    attribute_name,
    find_raw,
    is_python_class,
    is_shadowed,
    resolution_order,
    storage_of,
    write_shadowed,
)
from ..containers.mappings import DictVariable, OrderedDictVariable
from ..containers.sequences import ListVariable, TupleVariable
from ..containers.sets import FrozenSetVariable, SetVariable
from ..libraries.random_generators import GENERATOR, GeneratorStateVariable
from ..table import model, model_of, models
from .class_attributes import (
    bind_attribute,
    bind_to_class,
    guard_default,
    is_builtin_descriptor,
)
from .classes import ClassVariable
from .user_objects import UserObjectVariable

_IMMUTABLE: tuple[type, ...] = (tuple, frozenset, str, bytes, int, float, complex)
_DICTS: tuple[type, ...] = (collections.OrderedDict, dict)
_SETS: tuple[type, ...] = (set, frozenset)
# Classes of C whose instances have nothing but their dict.
_PLAIN: tuple[type, ...] = (object, types.SimpleNamespace)
# The most derived first.
_STORAGES: tuple[type, ...] = (*_DICTS, list, set, *_IMMUTABLE, types.SimpleNamespace, GENERATOR)
_READERS = ("__getitem__", "__len__", "__iter__", "__contains__", "keys", "items", "values")

_ABSTRACT_CLASS = 1 << 20


def storage_class(kind: type) -> type | None:
    """The builtin class that holds an instance's elements, ``object`` or its like if there are none.

    None for a class with state that only C knows.
    """
    found: type = object
    for base in reversed(resolution_order(kind)):
        if base in _STORAGES:
            found = base
        elif base is not object and not is_python_class(base):
            return None
    return found if kind in _PLAIN or is_python_class(kind) else None


# Their constructors in C keep more than the arguments, or make another class, whatever one in Python does.
EXCEPTIONS_WITH_STATE = (OSError, UnicodeError, ImportError, SyntaxError)
# What they keep beside the arguments depends on how an ``__init__`` in Python calls theirs.
_WITH_FIELDS = (StopIteration, StopAsyncIteration, SystemExit, NameError, AttributeError)


def _require_known_constructor(
    kind: type[BaseException], make: Any, start: Any, keywords: Keywords
) -> None:
    """Unsupported for an exception class whose constructor does more than to keep its arguments."""
    in_c = is_builtin_descriptor(start) and is_builtin_descriptor(make)
    if in_c:
        refused = bool(keywords) and not issubclass(kind, EXCEPTIONS_WITH_STATE)
    else:
        refused = issubclass(kind, (*EXCEPTIONS_WITH_STATE, *_WITH_FIELDS))
    if refused:
        raise Unsupported("exception class with a constructor", kind.__qualname__)


def new_instance(
    evaluator: Evaluator, kind: type, arguments: Arguments, keywords: Keywords
) -> Variable:
    """What calling a class gives: its metaclass's ``__call__``."""
    found = evaluator.state.find_in_type(type(kind), "__call__")
    if found is not None and not is_builtin_descriptor(found[1]):
        class_variable = evaluator.wrap_known(kind)
        method = bind_attribute(
            evaluator, type(kind), found[0], "__call__", found[1], class_variable
        )
        return method.call(evaluator, arguments, keywords)
    guard_default(evaluator, type(kind), "__call__", found)
    return instantiate(evaluator, kind, arguments, keywords)


def instantiate(
    evaluator: Evaluator, kind: type, arguments: Arguments, keywords: Keywords
) -> Variable:
    """``type.__call__(kind, *arguments, **keywords)``."""
    make = evaluator.state.find_in_type(kind, "__new__")
    start = evaluator.state.find_in_type(kind, "__init__")
    assert make is not None
    assert start is not None
    if issubclass(kind, BaseException):
        _require_known_constructor(kind, make[1], start[1], keywords)
    elif storage_class(kind) is None and not is_wrapper_class(kind):
        raise Unsupported("construction of an instance", kind.__qualname__)
    class_variable = evaluator.wrap_known(kind)
    maker = bind_to_class(evaluator, kind, make[0], "__new__", make[1])
    if make[0] is object:
        instance = allocate(evaluator, kind)
        if start[0] is object and (arguments or keywords):
            evaluator.raise_error(TypeError, f"{kind.__name__}() takes no arguments")
    else:
        instance = maker.call(evaluator, [class_variable, *arguments], keywords)
    if not issubclass(instance.python_type(), kind):
        return instance
    made = instance.python_type()
    start = evaluator.state.find_in_type(made, "__init__")
    assert start is not None
    if start[0] is object and make[0] is object:
        guard_default(evaluator, made, "__init__", start)
        return instance
    method = bind_attribute(evaluator, made, start[0], "__init__", start[1], instance)
    result = method.call(evaluator, arguments, keywords)
    if not result.is_none():
        evaluator.raise_error(
            TypeError,
            f"__init__() should return None, not {result.python_type().__name__!r}",
        )
    return instance


def allocate(evaluator: Evaluator, kind: type, content: Variable | None = None) -> Variable:
    """A new instance without attributes; ``content`` is what an immutable builtin base holds."""
    if kind.__flags__ & _ABSTRACT_CLASS:
        evaluator.pure(object.__new__, kind)  # raises
    base = storage_class(kind)
    if base is None:
        raise Unsupported("construction of an instance", kind.__qualname__)
    if evaluator.state.find_in_type(kind, "__del__") is not None:
        raise Unsupported("instance with a finalizer", kind.__qualname__)
    guard_absent(evaluator, kind, "__del__")
    if base in _PLAIN:
        return UserObjectVariable(kind)
    if base in _IMMUTABLE:
        return UserObjectVariable(kind, storage=content)
    if base is GENERATOR:
        return UserObjectVariable(kind, storage=GeneratorStateVariable())
    return UserObjectVariable(kind, storage=_new_builtin(evaluator, base, [], {}))


def _new_builtin(
    evaluator: Evaluator, base: type, arguments: Arguments, keywords: Keywords
) -> Variable:
    known = model_of(base)
    assert known is not None
    return known.call(evaluator, arguments, keywords)


def wrap_storage(evaluator: Evaluator, value: Any, source: Source) -> Variable | None:
    """The elements of an instance from outside."""
    kind = type(value)
    base = storage_class(kind)
    if base is None or base in (*_PLAIN, GENERATOR):
        return None
    if _reads_by_itself(evaluator, kind) and base in _ELEMENTS:
        source = ConvertedSource(source, _ELEMENTS[base])
        value = _ELEMENTS[base](value)
    if base is tuple:
        return TupleVariable.from_object(evaluator, value, source)
    if base is list:
        return ListVariable.from_object(evaluator, value, source)
    if base in _DICTS:
        if not are_silent(dict.keys(value)):
            raise Unsupported("key with methods of its own", source.name())
        family = OrderedDictVariable if base is collections.OrderedDict else DictVariable
        return family.from_object(value, source)
    if base in _SETS:
        members = SetVariable if base is set else FrozenSetVariable
        return members.from_object(value, source)
    raise Unsupported(
        "instance of a subclass of a scalar", f"{kind.__qualname__} at {source.name()}"
    )


def _reads_by_itself(evaluator: Evaluator, kind: type) -> bool:
    """Whether reading an instance's elements may run a method written in Python."""
    found = (evaluator.state.find_in_type(kind, name) for name in _READERS)
    return any(place is not None and not is_builtin_descriptor(place[1]) for place in found)


def list_elements(value: list[Any]) -> list[Any]:
    """What a list holds, whatever its class answers."""
    return list.__getitem__(value, slice(None))


def tuple_elements(value: tuple[Any, ...]) -> tuple[Any, ...]:
    """What a tuple holds, whatever its class answers."""
    return tuple.__getitem__(value, slice(None))


def dict_elements(value: dict[Any, Any]) -> dict[Any, Any]:
    """What a dict holds, whatever its class answers: ``dict.copy`` asks its ``__iter__`` and ``keys``."""
    return dict(dict.items(value))


def ordered_dict_elements(value: collections.OrderedDict[Any, Any]) -> dict[Any, Any]:
    """What an OrderedDict holds, in its order, whatever its class answers."""
    return dict(collections.OrderedDict.items(value))


# What gives the elements of an instance whose class has methods of its own to read them.
_ELEMENTS: dict[type, Callable[[Any], Any]] = {
    dict: dict_elements,
    collections.OrderedDict: ordered_dict_elements,
    list: list_elements,
    tuple: tuple_elements,
}


def emit_new_instance(emitter: Emitter, instance: UserObjectVariable) -> None:
    """Push a new object equal to ``instance``."""
    emitter.load_callable(_rebuild)
    emitter.load_object(instance.kind)
    emitter.load_object(storage_class(instance.kind) or object)
    if instance.storage is None:
        emitter.load_constant(None)
    elif isinstance(instance.storage, DictVariable):
        instance.storage.emit_entries(emitter)
    else:
        instance.storage.reconstruct(emitter)
    given = {n: v for n, v in instance.attributes.items() if v is not None}
    emitter.load_map(given)
    emitter.load_constant(tuple(name for name in given if is_shadowed(instance.kind, name)))
    emitter.call(5)


def _rebuild(
    kind: Any, base: Any, content: Any, attributes: dict[str, Any], shadowed: tuple[str, ...]
) -> Any:
    if base in _IMMUTABLE:
        instance = base.__new__(kind, content)
    else:
        instance = base.__new__(kind)
    if base in (list, set):
        base.__init__(instance, content)
    elif base is GENERATOR:
        base.setstate(instance, content)
    elif base in _DICTS:
        for key, value in content.items():
            base.__setitem__(instance, key, value)
    for name, value in attributes.items():
        write = write_shadowed if name in shadowed else object.__setattr__
        write(instance, name, value)
    return instance


def _class_argument(kind: Variable) -> type:
    if not isinstance(kind, ClassVariable):
        raise Unsupported("construction of an instance", repr(kind))
    return kind.value


@model(object.__new__)
def _object_new(
    evaluator: Evaluator, kind: Variable, /, *arguments: Variable, **keywords: Variable
) -> Variable:
    wanted = _class_argument(kind)
    if arguments or keywords:
        if find_raw(wanted, "__new__") is not object.__dict__["__new__"]:
            evaluator.raise_error(
                TypeError,
                "object.__new__() takes exactly one argument (the type to instantiate)",
            )
        if find_raw(wanted, "__init__") is object.__dict__["__init__"]:
            evaluator.raise_error(TypeError, f"{wanted.__name__}() takes no arguments")
    if storage_class(wanted) not in (None, object):
        evaluator.pure(object.__new__, wanted)  # raises: it is not safe
    return allocate(evaluator, wanted)


@model(vars(object)["__init__"])
def _object_init(
    evaluator: Evaluator, receiver: Variable, /, *arguments: Variable, **keywords: Variable
) -> None:
    kind = receiver.python_type()
    if not arguments and not keywords:
        return
    if find_raw(kind, "__init__") is not object.__dict__["__init__"]:
        evaluator.raise_error(
            TypeError, "object.__init__() takes exactly one argument (the instance to initialize)"
        )
    if find_raw(kind, "__new__") is object.__dict__["__new__"]:
        evaluator.raise_error(
            TypeError,
            f"{kind.__name__}.__init__() takes exactly one argument (the instance to initialize)",
        )


_NEW: dict[Any, type] = {
    base.__new__: base for base in (dict, list, set, *_IMMUTABLE, types.SimpleNamespace, GENERATOR)
}


_LEAVES_KEYWORDS = (tuple, frozenset, float)
"""Of these ``__new__`` leaves keywords to an ``__init__`` of the class's own."""


@models(*_NEW)
def _new(
    function: Any,
    evaluator: Evaluator,
    kind: Variable,
    /,
    *arguments: Variable,
    **keywords: Variable,
) -> Variable:
    wanted, base = _class_argument(kind), _NEW[function]
    known, is_whole = model_of(wanted), base in _IMMUTABLE
    if not issubclass(wanted, base) or (known is not None and wanted.__new__ is not function):
        evaluator.pure(function, wanted)  # raises: it makes none of these
    if base in _LEAVES_KEYWORDS and find_raw(wanted, "__init__") is not object.__init__:
        keywords = {}
    if base is frozenset and len(arguments) > 1:
        evaluator.pure(function, wanted, *((),) * len(arguments))  # raises, and names the class
    if known is not None:
        return known.call(evaluator, *((list(arguments), keywords) if is_whole else ([], {})))
    if not is_whole:
        return allocate(evaluator, wanted)
    content = _new_builtin(evaluator, base, list(arguments), keywords)
    return allocate(evaluator, wanted, storage_of(content))


@model(vars(types.SimpleNamespace)["__init__"])
def _namespace_init(evaluator: Evaluator, receiver: Variable, /, **attributes: Variable) -> None:
    assert isinstance(receiver, UserObjectVariable)
    for name, value in attributes.items():
        receiver.write_attribute(evaluator, name, value)


@model(vars(types.SimpleNamespace)["__eq__"])
def _namespace_eq(evaluator: Evaluator, receiver: Variable, other: Variable, /) -> Variable:
    if not issubclass(other.python_type(), types.SimpleNamespace):
        return ConstantVariable(NotImplemented)
    dictionaries = (part.get_attribute(evaluator, "__dict__") for part in (receiver, other))
    return evaluator.binary_operation("eq", *dictionaries)


@model(*(vars(kind)["__init__"] for kind in (dict, collections.OrderedDict, list, set)))
def _container_init(
    evaluator: Evaluator, receiver: Variable, /, *arguments: Variable, **keywords: Variable
) -> None:
    """``list.__init__``, ``set.__init__`` and ``dict.__init__``."""
    storage = storage_of(receiver)
    made_by = find_raw(receiver.python_type(), "__new__")
    ignores = isinstance(storage, ListVariable) and made_by is not list.__new__
    if isinstance(storage, (ListVariable, SetVariable)) and keywords and not ignores:
        kind = storage.python_type().__name__
        evaluator.raise_error(TypeError, f"{kind}() takes no keyword arguments")
    if isinstance(storage, ListVariable):
        added = arguments[0].iterate(evaluator) if arguments else []
        storage.mutate(evaluator)[:] = added
    elif isinstance(storage, SetVariable):
        storage.call_method(evaluator, "clear", [], {})
        storage.call_method(evaluator, "update", list(arguments), {})
    else:
        storage.call_method(evaluator, "update", list(arguments), keywords)


@model(vars(type)["__call__"])
def _type_call(
    evaluator: Evaluator, receiver: Variable, /, *arguments: Variable, **keywords: Variable
) -> Variable:
    return instantiate(evaluator, _class_argument(receiver), list(arguments), keywords)


# What ``object``'s methods do when called with an instance of a Python class.


def _instance(receiver: Variable, name: str) -> UserObjectVariable:
    if not isinstance(receiver, UserObjectVariable):
        raise Unsupported("method of a builtin type", f"object.{name} of {receiver!r}")
    return receiver


@model(
    *(
        vars(kind)["__getattribute__"]
        for kind in (dict, list, tuple, set, frozenset, str, int, float)
        if "__getattribute__" in vars(kind)  # some have none of their own since 3.13
    ),
    vars(object)["__getattribute__"],
)
def _getattribute(evaluator: Evaluator, receiver: Variable, name: Variable, /) -> Variable:
    instance = _instance(receiver, "__getattribute__")
    return instance.generic_get_attribute(evaluator, attribute_name(evaluator, name))


@model(vars(object)["__setattr__"])
def _setattr(evaluator: Evaluator, receiver: Variable, name: Variable, value: Variable, /) -> None:
    instance = _instance(receiver, "__setattr__")
    instance.generic_set_attribute(evaluator, attribute_name(evaluator, name), value)


@model(vars(object)["__delattr__"])
def _delattr(evaluator: Evaluator, receiver: Variable, name: Variable, /) -> None:
    instance = _instance(receiver, "__delattr__")
    instance.generic_set_attribute(evaluator, attribute_name(evaluator, name), None)


@model(vars(object)["__eq__"])
def _eq(evaluator: Evaluator, receiver: Variable, other: Variable, /) -> Variable:
    same = is_same_object(evaluator, receiver, other)
    return ConstantVariable(True if same else NotImplemented)
