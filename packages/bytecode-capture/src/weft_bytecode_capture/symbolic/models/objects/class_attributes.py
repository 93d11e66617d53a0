"""Attributes found in classes: the descriptor protocol on variables."""

from __future__ import annotations

import dataclasses
import functools
import types
from typing import Any, NoReturn

import torch
from weft_guards import (
    AttributeSource,
    ConstantSource,
    DictContains,
    IsObject,
    ItemSource,
    LengthIs,
    Source,
)

from ....unsupported import Unsupported
from ...policy import is_library_module
from ...protocol import Evaluator
from ...variables.base import Variable
from ...variables.builder import is_constant_value
from ...variables.class_guards import guard_absent, guard_order, guard_undefined
from ...variables.constant import ConstantVariable
from ...variables.python_protocols import (
    find_raw,
    is_data_descriptor,
    module_of,
    name_in_errors,
    resolution_order,
)
from ..builtins.descriptors import BuiltinClassMethodVariable, known_descriptor
from ..functions.bound_methods import BoundDescriptorVariable, BoundMethodVariable

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
    if is_library_module(module_of(kind)) and not _may_be_set(owner, raw):
        return ConstantSource(f"{owner.__qualname__}.{name}", raw)
    return _guarded_source(kind, owner, name, raw)


def _guarded_source(kind: type, owner: type, name: str, raw: Any) -> Source:
    class_source = ConstantSource(kind.__qualname__, kind)
    hidden = kind is not owner and find_raw(kind, name) is not raw  # by one that is deleted by now
    if hidden or _read_runs_code(raw) or is_data_descriptor(find_raw(type(kind), name)):
        owner_source = ConstantSource(owner.__qualname__, owner)
        return ItemSource(AttributeSource(owner_source, "__dict__"), name)
    return AttributeSource(class_source, name)


def _may_be_set(owner: type, raw: Any) -> bool:
    """Whether an attribute of a library's class is a setting, as ``Distribution._validate_args``."""
    return bool(owner.__flags__ & _MADE_IN_PYTHON) and is_constant_value(raw)


_MADE_IN_PYTHON = 1 << 9
"""CPython's ``Py_TPFLAGS_HEAPTYPE``: others have the attributes that they were built with."""


def _read_runs_code(raw: Any) -> bool:
    """Whether reading it from its class gives something else than itself."""
    if isinstance(raw, (types.FunctionType, property, type)):
        return False
    return hasattr(type(raw), "__get__")


def is_property(raw: Any) -> bool:
    """Whether an attribute of a class is a property, or one of a class that reads as properties do."""
    if not isinstance(raw, property):
        return False
    return all(find_raw(type(raw), name) is vars(property)[name] for name in _PROPERTY)


_PROPERTY = ("__get__", "__set__", "__delete__")

_METHODS = (types.FunctionType, functools._lru_cache_wrapper)
"""What binds to an instance as a function does."""


@dataclasses.dataclass(frozen=True)
class WrittenAttribute:
    """What the captured program stored in a class: never a descriptor."""

    variable: Variable


def bind_attribute(
    evaluator: Evaluator, kind: type, owner: type, name: str, raw: Any, receiver: Variable
) -> Variable:
    """``type(raw).__get__(raw, receiver, kind)`` for what is found in a class; ``receiver`` an instance."""
    if isinstance(raw, WrittenAttribute):
        return raw.variable
    _guard_named(evaluator, kind, owner, name, raw)
    if is_builtin_method(raw):
        guard_default(evaluator, kind, name, (owner, raw))
        return BoundDescriptorVariable(known_descriptor(evaluator, raw), raw, receiver)
    source = class_attribute_source(kind, owner, name, raw)
    if isinstance(raw, _METHODS):
        return BoundMethodVariable(evaluator.builder.wrap(raw, source), receiver)
    found = _python_get(evaluator, kind, raw, source, receiver)
    if found is not None:
        return found
    if is_property(raw):
        if raw.fget is None:
            evaluator.raise_error(AttributeError, f"property {name!r} has no getter")
        getter = evaluator.builder.wrap(raw.fget, AttributeSource(source, "fget"))
        return getter.call(evaluator, [receiver], {})
    return bind_to_class(evaluator, kind, owner, name, raw)


def _guard_named(evaluator: Evaluator, kind: type, owner: type, name: str, raw: Any) -> None:
    """Guard what users may replace in a library's class: what their own code names, what modules run."""
    if not is_library_module(module_of(kind)) or find_raw(kind, name) is not raw:
        return
    is_named = not evaluator.globals.trusted and owner.__flags__ & _MADE_IN_PYTHON
    if is_named or (name in _CALLED and issubclass(kind, torch.nn.Module)):
        evaluator.guard(_guarded_source(kind, owner, name, raw), IsObject(raw))


_CALLED = ("__call__", "forward")


def _python_get(
    evaluator: Evaluator, kind: type, raw: Any, source: Source, receiver: Variable
) -> Variable | None:
    """What a ``__get__`` written in Python gives; None for other descriptors."""
    function = find_raw(type(raw), "__get__")
    if not isinstance(function, types.FunctionType) or type(raw) is functools.cached_property:
        return None
    method = bind_to_class(evaluator, type(raw), type(raw), "__get__", function)
    descriptor = evaluator.builder.wrap(raw, source)
    return method.call(evaluator, [descriptor, receiver, evaluator.wrap_known(kind)], {})


def bind_to_class(evaluator: Evaluator, kind: type, owner: type, name: str, raw: Any) -> Variable:
    """``type(raw).__get__(raw, None, kind)``."""
    if isinstance(raw, WrittenAttribute):
        return raw.variable
    if is_builtin_method(raw):
        return evaluator.wrap_known(raw, f"{raw.__objclass__.__name__}.{raw.__name__}")
    if type(raw) is types.ClassMethodDescriptorType:
        guard_undefined(evaluator, kind, name, owner)
        return BuiltinClassMethodVariable(kind, raw)
    _guard_named(evaluator, kind, owner, name, raw)
    source = class_attribute_source(kind, owner, name, raw)
    if _read_runs_code(raw):
        guard_undefined(evaluator, kind, name, owner)
    if type(raw) is staticmethod:
        return evaluator.builder.wrap(raw.__func__, AttributeSource(source, "__func__"))
    if type(raw) is classmethod:
        inner = type(raw.__func__)
        if hasattr(inner, "__get__") and inner is not types.FunctionType:
            raise Unsupported("descriptor", f"{kind.__qualname__}.{name}: a class method's")
        function = evaluator.builder.wrap(raw.__func__, AttributeSource(source, "__func__"))
        return BoundMethodVariable(function, evaluator.wrap_known(kind))
    if isinstance(raw, _METHODS):
        return evaluator.builder.wrap(raw, source)
    if is_property(raw):
        return evaluator.builder.wrap(raw, source)
    found = _python_get(evaluator, kind, raw, source, ConstantVariable(None))
    if found is not None:
        return found
    if type(raw) is functools.cached_property:
        return evaluator.builder.wrap(raw, source)
    if hasattr(type(raw), "__get__") and not isinstance(raw, type):
        raise Unsupported("descriptor", f"{kind.__qualname__}.{name}: {type(raw).__qualname__}")
    return evaluator.builder.wrap(raw, source)


def is_builtin_descriptor(raw: Any) -> bool:
    return isinstance(raw, _BUILTIN_DESCRIPTORS)


def is_builtin_method(raw: Any) -> bool:
    """Whether an attribute of a class is a method written in C."""
    return isinstance(raw, (types.WrapperDescriptorType, types.MethodDescriptorType))


def guard_found(evaluator: Evaluator, kind: type, owner: type, name: str, raw: Any) -> None:
    """Guard that a class of the user's own still gets this attribute from ``owner``."""
    if isinstance(raw, WrittenAttribute) or is_library_module(module_of(kind)):
        return
    if _read_runs_code(raw):
        guard_undefined(evaluator, kind, name, owner)
    evaluator.guard(class_attribute_source(kind, owner, name, raw), IsObject(raw))


def guard_default(
    evaluator: Evaluator, kind: type, name: str, found: tuple[type, Any] | None
) -> None:
    """Guard that a class of the user's own still has no special method but a builtin base's, ``found``."""
    if found is None:
        guard_absent(evaluator, kind, name)
    elif is_builtin_method(found[1]) and not is_library_module(module_of(kind)):
        source = AttributeSource(ConstantSource(kind.__qualname__, kind), name)
        evaluator.guard(source, IsObject(found[1]))


def raise_no_attribute(evaluator: Evaluator, kind: type, name: str) -> NoReturn:
    guard_absent(evaluator, kind, name)
    evaluator.raise_error(
        AttributeError,
        f"{name_in_errors(kind)!r} object has no attribute {name!r}",
        name=name,
    )


def attribute_names(evaluator: Evaluator, kind: type) -> set[str]:
    """What a class and its bases define; those of the user's own are guarded to have just that."""
    guard_order(evaluator, kind)
    found: dict[tuple[type, str], bool] = {}
    for base in resolution_order(kind):
        own = vars(base)
        found |= dict.fromkeys([(base, name) for name in own], True)
        if is_library_module(module_of(base)) or evaluator.state.is_made(base):
            continue
        source = AttributeSource(ConstantSource(base.__qualname__, base), "__dict__")
        evaluator.guard(source, LengthIs(len(own)))
        for name in own:
            evaluator.guard(source, DictContains(name, True))
    order = resolution_order(kind)
    written = evaluator.state.class_writes.items()
    found |= {place: value is not None for place, value in written if place[0] in order}
    return {name for (_, name), is_there in found.items() if is_there}
