"""What Python asks of any value, answered of variables."""

from __future__ import annotations

import io
import types
from collections.abc import Sequence
from typing import Any, NoReturn

from ...unsupported import Unsupported
from ..protocol import Evaluator
from .base import Keywords, Variable


def resolution_order(kind: type) -> tuple[type, ...]:
    """The classes that a class's attributes are looked up in."""
    order: tuple[type, ...] | None = kind.__mro__
    if order is None:
        raise Unsupported("class under construction", kind.__name__)
    return order


def full_name(kind: type) -> str:
    """A class's name as errors of CPython 3.13 and newer have it."""
    if kind.__module__ in ("builtins", "__main__"):
        return kind.__qualname__
    return f"{kind.__module__}.{kind.__qualname__}"


def find_raw(kind: type, name: str) -> Any:
    """The raw attribute that a class's resolution order gives; None if there is none."""
    for base in resolution_order(kind):
        if name in base.__dict__:
            return base.__dict__[name]
    return None


def has_raw(kind: type, name: str) -> bool:
    """Whether a class has an attribute, which may be None: then a call of it raises."""
    return any(name in base.__dict__ for base in resolution_order(kind))


def is_data_descriptor(raw: Any) -> bool:
    return hasattr(type(raw), "__set__") or hasattr(type(raw), "__delete__")


def is_shadowed(kind: type, name: str) -> bool:
    """Whether a descriptor of the class takes writes of an attribute before the instance dict does."""
    raw = find_raw(kind, name)
    return is_data_descriptor(raw) and not isinstance(raw, types.MemberDescriptorType)


def write_shadowed(instance: Any, name: str, value: Any) -> None:
    """Write an entry of the instance dict that a descriptor of the class hides."""
    object.__getattribute__(instance, "__dict__")[name] = value


def delete_shadowed(instance: Any, name: str) -> None:
    """Delete an entry of the instance dict that a descriptor of the class hides."""
    del object.__getattribute__(instance, "__dict__")[name]


def no_attribute(evaluator: Evaluator, kind: str, name: str) -> NoReturn:
    """AttributeError for an object of the class named ``kind``."""
    message = f"{kind!r} object has no attribute {name!r}"
    evaluator.raise_error(AttributeError, message, name=name)


def _without_place() -> str:
    try:
        object().x = None  # type: ignore[attr-defined]
    except AttributeError as error:
        return str(error).removeprefix("'object' object has no attribute 'x'")
    raise RuntimeError("an object takes any attribute")


WITHOUT_PLACE = _without_place()
"""How the message goes on where a new attribute has no place, neither a slot nor a dictionary (3.13)."""


def no_place(
    evaluator: Evaluator, kind: type, name: str, is_of_class: bool, more: str = WITHOUT_PLACE
) -> NoReturn:
    """AttributeError for a write or a deletion where there is no dictionary; some are of the class alone."""
    named = name_in_errors(kind)
    if is_of_class:
        message = f"{named!r} object attribute {name!r} is read-only"
        evaluator.raise_error(AttributeError, message, name=None)
    message = f"{named!r} object has no attribute {name!r}{more}"
    evaluator.raise_error(AttributeError, message, name=name if WITHOUT_PLACE else None)


def nothing_to_delete(evaluator: Evaluator, kind: type, name: str) -> NoReturn:
    """AttributeError for a deletion from a dictionary.

    Whether it has the name depends on where CPython 3.13 and later keep the instance's attributes.
    """
    no_place(evaluator, kind, name, False, "")


def has_finalizer(kind: type) -> bool:
    """Whether instances run code when they die, whose effect others see: no file of memory's does."""
    return kind not in _MEMORY_FILES and find_raw(kind, "__del__") is not None


_MEMORY_FILES = (io.StringIO, io.BytesIO)


def module_of(kind: type) -> Any:
    """The ``__module__`` of a class, whatever its metaclass makes of it."""
    return type.__dict__["__module__"].__get__(kind)


def is_python_class(kind: type) -> bool:
    """Whether a ``class`` statement made it: one made by C has methods of its own in C."""
    return is_made_by_statement(kind) and not any(
        type(raw) in _C_METHODS and raw.__objclass__ is kind for raw in kind.__dict__.values()
    )


_IMMUTABLE_CLASS, _HEAP_CLASS = 1 << 8, 1 << 9


def is_made_by_statement(kind: type) -> bool:
    """Whether a class is made at run time, not part of CPython or an extension.

    Modules of C make more and more of their classes at run time, but no attribute of those may be set.
    """
    return kind.__flags__ & (_IMMUTABLE_CLASS | _HEAP_CLASS) == _HEAP_CLASS


def name_in_errors(kind: type) -> str:
    """A class as CPython's messages name it: one of an extension with its module, ``collections.deque``."""
    module = module_of(kind)
    if is_made_by_statement(kind) or module == "builtins":
        return kind.__name__
    return f"{module}.{kind.__name__}"


COMPARISONS = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le", "eq": "eq", "ne": "ne"}
"""The comparisons, and what each is with its operands swapped."""


def special_name(operator: str, reflected: bool) -> str:
    """The special method of an operator, or that of its right operand."""
    if reflected:
        operator = COMPARISONS.get(operator, f"r{operator}")
    return f"__{operator}__"


_C_METHODS = (types.WrapperDescriptorType, types.MethodDescriptorType)


def is_callable(value: Variable) -> bool:
    """``callable(value)``."""
    return find_raw(value.python_type(), "__call__") is not None


def pure_call(
    evaluator: Evaluator, function: Any, arguments: Sequence[Variable], keywords: Keywords
) -> Variable:
    """What a function without side effects gives for constants."""
    positional, named = evaluator.snapshots(arguments, keywords, function.__qualname__)
    return evaluator.wrap_result(evaluator.pure(function, *positional, **named))


def drained(evaluator: Evaluator, iterator: Variable) -> list[Variable]:
    """All that an iterator still gives."""
    elements = []
    while (element := iterator.next_or_none(evaluator)) is not None:
        elements.append(element)
    return elements


def needs_result(evaluator: Evaluator, result: Variable, kind: type, message: str) -> Any:
    """The constant that a special method has to give; TypeError if it is of another kind.

    ``message`` has a place for the name of the kind that was given.
    """
    if not issubclass(result.python_type(), kind):
        evaluator.raise_error(TypeError, message.format(result.python_type().__name__))
    return result.as_constant()


def attribute_name(evaluator: Evaluator, name: Variable) -> str:
    """The name that ``getattr`` and its kin are given; TypeError in the captured program if it is none."""
    if name.python_type() is not str:
        if issubclass(name.python_type(), str):
            raise Unsupported("arguments of a builtin function", f"attribute name {name!r}")
        evaluator.raise_error(
            TypeError, f"attribute name must be string, not {name.python_type().__name__!r}"
        )
    text: str = name.as_constant()
    return text


def storage_of(variable: Variable) -> Variable:
    """The builtin storage of an instance of a subclass of a builtin container, or the variable itself."""
    return getattr(variable, "storage", None) or variable


def operand_of(variable: Variable) -> Variable:
    """What operators read of an instance of a class derived from a tuple, list, number or text; or itself."""
    storage = storage_of(variable)
    if storage is variable:
        return variable
    kind, own = storage.python_type(), variable.python_type()
    if kind not in (tuple, list):
        return storage if kind in (int, float, complex, str) else variable
    # Functions of torch that are written in Python may ask these.
    names = ("__iter__", "__getitem__", "__len__")
    is_plain = all(find_raw(own, name) is find_raw(kind, name) for name in names)
    return storage if is_plain else variable


def owner_of(variable: Variable) -> Variable:
    """The instance whose builtin storage a variable is, or the variable itself."""
    return getattr(variable, "owner", None) or variable
