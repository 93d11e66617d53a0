"""``isinstance`` and ``issubclass``: of classes, unions, metaclasses that answer themselves, protocols."""

from __future__ import annotations

import abc
import sys
import types
import typing
from typing import Any, Union

import torch
from weft_guards import ConstantSource

from ....sources import SubclassIs
from ....unsupported import Unsupported
from ...policy import is_library_module, is_of_library
from ...protocol import Evaluator
from ...variables.base import Variable
from ...variables.class_guards import guard_order
from ...variables.constant import ConstantVariable
from ...variables.python_protocols import find_raw, module_of, resolution_order
from ..objects.class_attributes import (
    bind_attribute,
    guard_default,
    is_builtin_descriptor,
    is_property,
)
from ..objects.classes import PLAIN_METACLASSES, ClassVariable
from ..table import model, models

_ALIAS_TYPE = type(typing.Mapping)
_UNION_TYPES = (types.UnionType, type(Union[int, str]))  # noqa: UP007 - the old one has its own


@model(isinstance)
def is_instance(evaluator: Evaluator, value: Variable, kinds: Variable, /) -> Variable:
    """``isinstance(value, kinds)``."""
    several = _several(evaluator, kinds)
    if several is not None:
        found = (is_instance(evaluator, value, kind).truth(evaluator) for kind in several)
        return ConstantVariable(any(found))
    if not isinstance(kinds, ClassVariable) or kinds.value is not value.python_type():
        checked = _by_metaclass(evaluator, kinds, "__instancecheck__", value)
        if checked is None:
            checked = _by_protocol(evaluator, value, kinds)
        if checked is not None:
            return checked
    if isinstance(kinds, ClassVariable) and type(kinds.value) is _LEGACY_METACLASS:
        return ConstantVariable(_is_of_type(evaluator, value, kinds.value))
    if _is_subclass(evaluator, value.python_type(), kinds) or _is_marked(evaluator, value, kinds):
        return ConstantVariable(True)
    shown = _shown_class(evaluator, value)
    return ConstantVariable(shown is not None and _is_subclass(evaluator, shown, kinds))


def _several(evaluator: Evaluator, kinds: Variable) -> list[Variable] | None:
    """The classes of a tuple or a union, or that of ``typing.Mapping`` and its like; None for one class."""
    if isinstance(kinds, ClassVariable):
        return None
    if issubclass(kinds.python_type(), _ALIAS_TYPE):
        return [kinds.get_attribute(evaluator, "__origin__")]
    if kinds.python_type() in _UNION_TYPES:
        kinds = kinds.get_attribute(evaluator, "__args__")
    return kinds.iterate(evaluator) if kinds.python_type() is tuple else None


def _shown_class(evaluator: Evaluator, value: Variable) -> type | None:
    """The class that an instance gives as its ``__class__``, if its class says how that is read."""
    if value.is_constant():
        return None
    names = ("__class__", "__getattribute__")
    found = [evaluator.state.find_in_type(value.python_type(), name) for name in names]
    if all(row is None or is_builtin_descriptor(row[1]) for row in found):
        return None
    shown = value.get_attribute(evaluator, "__class__")
    return shown.value if isinstance(shown, ClassVariable) else None


def _by_metaclass(
    evaluator: Evaluator, kinds: Variable, name: str, value: Variable
) -> Variable | None:
    """What a check written by the user answers; None for all other classes."""
    if not isinstance(kinds, ClassVariable):
        return None
    metaclass = type(kinds.value)
    found = evaluator.state.find_in_type(metaclass, name)
    if found is None or not isinstance(found[1], types.FunctionType):
        guard_default(evaluator, metaclass, name, found)
        return None
    if is_of_library(found[1].__module__):
        return None
    method = bind_attribute(evaluator, metaclass, found[0], name, found[1], kinds)
    return ConstantVariable(method.call(evaluator, [value], {}).truth(evaluator))


def _by_protocol(evaluator: Evaluator, value: Variable, kinds: Variable) -> Variable | None:
    """Whether an object has the members of a runtime protocol; None for other classes."""
    kind: Any = kinds.value if isinstance(kinds, ClassVariable) else None
    if type(kind) is not _PROTOCOL_METACLASS or not vars(kind).get("_is_protocol"):
        return None
    registered = vars(abc)["_get_dump"](kind)[0]
    is_asked = getattr(kind, "_is_runtime_protocol", False) and not registered
    if not is_asked or kind in resolution_order(value.python_type()):
        return None
    if sys.version_info >= (3, 12) and _answers_by_itself(evaluator, value.python_type()):
        return None
    members = vars(typing)["_get_protocol_attrs"](kind)
    return ConstantVariable(all(_has_member(evaluator, value, kind, name) for name in members))


_PROTOCOL_METACLASS = type(typing.Protocol)


def _answers_by_itself(evaluator: Evaluator, kind: type) -> bool:
    """Whether a class has code of its own that gives attributes: since 3.12 nobody asks it."""
    hooks = [evaluator.state.find_in_type(kind, n) for n in ("__getattribute__", "__getattr__")]
    return any(hook is not None and not is_builtin_descriptor(hook[1]) for hook in hooks)


def _has_member(evaluator: Evaluator, value: Variable, protocol: type, name: str) -> bool:
    """Whether an object has a member, other than None where the protocol's can be called."""
    found = evaluator.state.find_in_type(value.python_type(), name)
    if found is not None and is_property(found[1]) and sys.version_info >= (3, 12):
        return True  # it is not asked
    member = value.find_attribute(evaluator, name)
    is_method = callable(getattr(protocol, name, None))
    return member is not None and not (is_method and member.is_none())


@models(vars(type)["__instancecheck__"], vars(type)["__subclasscheck__"])
def _check(method: Any, evaluator: Evaluator, receiver: Variable, value: Variable, /) -> Variable:
    """The checks of ``type``, which a metaclass's own may call."""
    assert isinstance(receiver, ClassVariable)
    kind = value.python_type()
    if method is vars(type)["__subclasscheck__"]:
        if not isinstance(value, ClassVariable):
            raise Unsupported("issubclass() of an unknown class", repr(value))
        kind = value.value
    return ConstantVariable(receiver.value in resolution_order(kind))


@model(issubclass)
def _issubclass(evaluator: Evaluator, kind: Variable, kinds: Variable, /) -> Variable:
    several = _several(evaluator, kinds)
    if several is not None and not several:
        return ConstantVariable(False)  # nothing has asked what the first argument is
    if kind.is_constant():
        evaluator.raise_error(TypeError, "issubclass() arg 1 must be a class")
    if not isinstance(kind, ClassVariable):
        raise Unsupported("issubclass() of an unknown class", repr(kind))
    if several is not None:
        return ConstantVariable(
            any(_issubclass(evaluator, kind, k).truth(evaluator) for k in several)
        )
    checked = _by_metaclass(evaluator, kinds, "__subclasscheck__", kind)
    if checked is not None:
        return checked
    return ConstantVariable(_is_subclass(evaluator, kind.value, kinds, _NO_CLASS))


_NO_TYPE = "isinstance() arg 2 must be a type, a tuple of types, or a union"
_NO_CLASS = "issubclass() arg 2 must be a class, a tuple of classes, or a union"


def _is_subclass(
    evaluator: Evaluator, kind: type, kinds: Variable, message: str = _NO_TYPE
) -> bool:
    if isinstance(kinds, ClassVariable):
        wanted = kinds.value
        if kind is not wanted and _is_users(evaluator, wanted):
            guard_order(evaluator, kind)
        if wanted in resolution_order(kind):
            return True
        if not (_plain_checks(type(wanted)) or _tensor_metaclass(wanted)):
            raise Unsupported("isinstance() by a metaclass", wanted.__qualname__)
        hook = evaluator.state.find_in_type(wanted, "__subclasshook__")
        is_known = hook is None or is_library_module(module_of(hook[0])) or hook[0] is object
        if evaluator.state.is_made(wanted) and not is_known:
            raise Unsupported("isinstance() by a metaclass", f"{wanted.__qualname__}, by its hook")
        outcome = issubclass(kind, wanted)
        if isinstance(wanted, abc.ABCMeta) and _is_users(evaluator, wanted):
            source = ConstantSource(kind.__qualname__, kind)
            evaluator.guard(source, SubclassIs(wanted, outcome))
        return outcome
    if kinds.is_constant() and find_raw(kinds.python_type(), "__instancecheck__") is None:
        evaluator.raise_error(TypeError, message)
    raise Unsupported("isinstance() of an unknown class", repr(kinds))


def _is_users(evaluator: Evaluator, kind: type) -> bool:
    """Whether a class is the program's own, and outlives this capture."""
    return not (is_library_module(module_of(kind)) or evaluator.state.is_made(kind))


def _plain_checks(metaclass: type) -> bool:
    """Whether classes of this metaclass answer isinstance() from their bases, or as ABCMeta does."""
    if metaclass in PLAIN_METACLASSES:
        return True
    checks: tuple[Any, ...] = (type.__instancecheck__, type.__subclasscheck__)
    abstract = (abc.ABCMeta.__instancecheck__, abc.ABCMeta.__subclasscheck__)
    own: Any = metaclass
    return (own.__instancecheck__, own.__subclasscheck__) in (checks, abstract)


_LEGACY_METACLASS = type(torch.FloatTensor)


def _is_of_type(evaluator: Evaluator, value: Variable, kind: type) -> bool:
    """Whether a tensor is of the dtype and device of ``torch.FloatTensor`` or one of its kin."""
    if not issubclass(value.python_type(), torch.Tensor):
        return False
    name = evaluator.call_method(value, "type").as_constant()
    return bool(name == f"{kind.__module__}.{kind.__name__}")


def _tensor_metaclass(kind: type) -> bool:
    """Classes of torch whose metaclass only adds the tensors that :func:`_is_marked` finds."""
    return kind is torch.Tensor or kind in _MARKS


def _is_marked(evaluator: Evaluator, value: Variable, kinds: Variable) -> bool:
    """Whether a tensor has the attribute by which an ``nn.Buffer`` is known: it has no class of its own."""
    if not issubclass(value.python_type(), torch.Tensor) or not isinstance(kinds, ClassVariable):
        return False
    mark = _MARKS.get(kinds.value)
    found = None if mark is None else value.find_attribute(evaluator, mark)
    return found is not None and found.truth(evaluator)


_MARKS: dict[type, str] = {torch.nn.Parameter: "_is_param", torch.nn.Buffer: "_is_buffer"}
