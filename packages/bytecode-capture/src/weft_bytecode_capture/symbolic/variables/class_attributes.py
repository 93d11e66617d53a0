"""Attributes found in classes: the descriptor protocol on variables."""

from __future__ import annotations

import enum
import types
from typing import TYPE_CHECKING, Any, NoReturn

from weft_guards import AttributeSource, ConstantSource, ItemSource, Source

from ...unsupported import Unsupported
from ..policy import is_library_module
from .base import Variable
from .constant import ConstantMethodVariable, ConstantVariable

if TYPE_CHECKING:
    from ..evaluator import Evaluator

_BUILTIN_DESCRIPTORS = (
    types.WrapperDescriptorType,
    types.MethodDescriptorType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
    types.ClassMethodDescriptorType,
    types.BuiltinFunctionType,
)


def class_attribute_source(kind: type, owner: type, name: str, raw: Any) -> Source:
    """Where a class's attribute is read again; guards on it cover all of the resolution order."""
    if is_library_module(kind.__module__):
        return ConstantSource(f"{owner.__qualname__}.{name}", raw)
    class_source = ConstantSource(kind.__qualname__, kind)
    if isinstance(raw, (classmethod, staticmethod)):
        owner_source = ConstantSource(owner.__qualname__, owner)
        return ItemSource(AttributeSource(owner_source, "__dict__"), name)
    return AttributeSource(class_source, name)


def bind_attribute(
    evaluator: Evaluator, kind: type, owner: type, name: str, raw: Any, receiver: Variable
) -> Variable:
    """``type(raw).__get__(raw, receiver, kind)`` for what is found in a class; ``receiver`` an instance."""
    from .functions import BoundMethodVariable

    source = class_attribute_source(kind, owner, name, raw)
    if isinstance(raw, types.FunctionType):
        return BoundMethodVariable(evaluator.builder.wrap(raw, source), receiver)
    if type(raw) is property:
        if raw.fget is None:
            evaluator.raise_error(AttributeError, f"property {name!r} has no getter")
        getter = evaluator.builder.wrap(raw.fget, AttributeSource(source, "fget"))
        return getter.call(evaluator, [receiver], {})
    return bind_to_class(evaluator, kind, owner, name, raw)


def bind_to_class(evaluator: Evaluator, kind: type, owner: type, name: str, raw: Any) -> Variable:
    """``type(raw).__get__(raw, None, kind)``."""
    from .functions import BoundMethodVariable

    source = class_attribute_source(kind, owner, name, raw)
    if type(raw) is staticmethod:
        return evaluator.builder.wrap(raw.__func__, AttributeSource(source, "__func__"))
    if type(raw) is classmethod:
        function = evaluator.builder.wrap(raw.__func__, AttributeSource(source, "__func__"))
        return BoundMethodVariable(function, evaluator.wrap_known(kind))
    if isinstance(raw, types.FunctionType):
        return evaluator.builder.wrap(raw, source)
    if hasattr(type(raw), "__get__"):
        raise Unsupported("descriptor", f"{kind.__qualname__}.{name}: {type(raw).__qualname__}")
    return evaluator.builder.wrap(raw, source)


def is_data_descriptor(raw: Any) -> bool:
    return hasattr(type(raw), "__set__") or hasattr(type(raw), "__delete__")


def is_builtin_descriptor(raw: Any) -> bool:
    return isinstance(raw, _BUILTIN_DESCRIPTORS)


def raise_no_attribute(evaluator: Evaluator, kind: type, name: str) -> NoReturn:
    evaluator.raise_error(
        AttributeError, f"{kind.__name__!r} object has no attribute {name!r}", name=name
    )


def get_enum_attribute(evaluator: Evaluator, member: ConstantVariable, name: str) -> Variable:
    """``member.name`` of a member of an enumeration."""
    value = member.value
    assert isinstance(value, enum.Enum)
    kind = type(value)
    if name in ("name", "_name_"):
        return ConstantVariable(value._name_)
    if name in ("value", "_value_"):
        return evaluator.wrap_result(value._value_)
    if name == "__class__":
        return evaluator.wrap_known(kind)
    found = evaluator.state.find_in_type(kind, name)
    if found is None:
        raise_no_attribute(evaluator, kind, name)
    owner, raw = found
    if is_builtin_descriptor(raw):
        return ConstantMethodVariable(value, name)
    return bind_attribute(evaluator, kind, owner, name, raw, member)
