"""Enumerations: members are constants, their classes grow by members only while they are made."""

from __future__ import annotations

import enum
import types
from typing import Any

from weft_guards import AttributeSource, ConstantSource, InstanceDictSource, LengthIs

from ....unsupported import Unsupported
from ...captured_exception import CapturedException
from ...policy import is_library_module
from ...protocol import Evaluator
from ...variables.base import Arguments, Keywords, Variable
from ...variables.constant import ConstantVariable, register_special
from ...variables.python_protocols import find_raw, is_data_descriptor, module_of, special_name
from ..builtins.methods import BuiltinMethodVariable
from .class_attributes import (
    bind_attribute,
    is_builtin_descriptor,
    raise_no_attribute,
)


def guard_members(evaluator: Evaluator, kind: enum.EnumMeta) -> None:
    """Guard that a class has no members more than now: it has while EnumMeta builds it."""
    if not is_library_module(module_of(kind)):
        source = AttributeSource(ConstantSource(kind.__qualname__, kind), "_member_map_")
        evaluator.guard(source, LengthIs(len(kind._member_map_)))


def find_member(
    evaluator: Evaluator, kind: enum.EnumMeta, arguments: Arguments, keywords: Keywords
) -> Variable:
    """``Kind(value)``: the member of that value, or of flags' values."""
    if len(arguments) != 1 or keywords or not kind._member_map_:
        raise Unsupported("class definition", f"{kind.__qualname__}(...)")
    hook = evaluator.state.find_in_type(kind, "_missing_")
    if evaluator.state.find_in_type(type(kind), "__call__") != (enum.EnumMeta, _CALL):
        raise Unsupported("construction of an instance", f"{kind.__qualname__}, by its metaclass")
    guard_members(evaluator, kind)
    positional, _ = evaluator.snapshots(arguments, {}, kind.__qualname__)
    if hook is not None and not _is_of_enum(hook[1]):
        known = evaluator.pure(_listed_member, kind, *positional)
        return known or _by_missing(evaluator, kind, hook, arguments[0])
    return evaluator.wrap_constant(evaluator.pure(kind, *positional))


def _listed_member(kind: enum.EnumMeta, value: object) -> ConstantVariable | None:
    """The member that the class finds before it asks ``_missing_``."""
    if type(value) is kind:
        return ConstantVariable(value)
    members: list[Any] = list(kind._member_map_.values())
    found = next((member for member in members if member._value_ == value), None)
    return None if found is None else ConstantVariable(found)


def _by_missing(
    evaluator: Evaluator, kind: enum.EnumMeta, hook: tuple[type, Any], value: Variable
) -> Variable:
    """What the program's ``_missing_`` gives, or raises, for a value that no member has."""
    given = evaluator.wrap_known(kind)
    method = bind_attribute(evaluator, type(kind), hook[0], "_missing_", hook[1].__func__, given)
    try:
        member = method.call(evaluator, [value], {})
    except CapturedException as error:
        if issubclass(error.exception.python_type(), ValueError):
            raise
        text = f"{kind.__qualname__}, by _missing_ that raises {error.exception!r}"
        raise Unsupported("construction of an instance", text) from error
    if member.is_none():
        text = f"{value.as_constant()!r} is not a valid {kind.__qualname__}"
        evaluator.raise_error(ValueError, text)
    if member.python_type() is not kind:
        raise Unsupported("construction of an instance", f"{kind.__qualname__}, by _missing_")
    return member


_CALL = enum.EnumMeta.__dict__["__call__"]


def _is_of_enum(raw: object) -> bool:
    """Whether a class's attribute is a function of the enum module, which depends on members alone."""
    function = raw.__func__ if isinstance(raw, (classmethod, staticmethod)) else raw
    return isinstance(function, types.FunctionType) and function.__module__ == "enum"


@register_special(enum.Enum, "__getattribute__")
def get_enum_attribute(evaluator: Evaluator, member: ConstantVariable, name: str) -> Variable:
    """``member.name`` of a member of an enumeration."""
    value = member.value
    assert isinstance(value, enum.Enum)
    kind = type(value)
    if name == "_name_":
        return ConstantVariable(value._name_)
    if name == "_value_":
        return evaluator.wrap_result(value._value_)
    if name == "__class__":
        return evaluator.wrap_known(kind)
    found = evaluator.state.find_in_type(kind, name)
    own = vars(value)
    if found is not None and name in ("name", "value") and _is_enum_property(found[1]):
        return evaluator.wrap_result(getattr(value, f"_{name}_"))
    if found is not None and is_data_descriptor(found[1]):
        return bind_attribute(evaluator, kind, found[0], name, found[1], member)
    if name in own:
        source = InstanceDictSource(ConstantSource(repr(member), value), name)
        return evaluator.builder.wrap(own[name], source)
    if found is None:
        if evaluator.state.find_in_type(kind, "__getattr__") is not None:
            raise Unsupported("attribute read", f"{member!r}.{name}")
        raise_no_attribute(evaluator, kind, name)
    owner, raw = found
    if _is_of_enum(raw) or is_builtin_descriptor(raw):
        return BuiltinMethodVariable(member, name)
    return bind_attribute(evaluator, kind, owner, name, raw, member)


def _is_enum_property(raw: object) -> bool:
    return type(raw) is enum.property and raw in (_NAME, _VALUE)


_NAME, _VALUE = enum.Enum.__dict__["name"], enum.Enum.__dict__["value"]


@register_special(enum.Enum, "binary operation")
def _operation(
    evaluator: Evaluator, member: ConstantVariable, operator: str, other: Variable, reflected: bool
) -> Variable | None:
    """An operator on a member of an enumeration; enum's own methods are pure."""
    special = special_name(operator, reflected)
    raw = find_raw(type(member.value), special)
    if raw is None:
        return None
    if isinstance(raw, types.FunctionType) and raw.__module__ != "enum":
        method = get_enum_attribute(evaluator, member, special)
        result = method.call(evaluator, [other], {})
        return None if result.is_not_implemented() else result
    if not other.is_constant():
        return None
    result_value = evaluator.pure(raw, member.value, other.as_constant())
    return None if result_value is NotImplemented else ConstantVariable(result_value)
