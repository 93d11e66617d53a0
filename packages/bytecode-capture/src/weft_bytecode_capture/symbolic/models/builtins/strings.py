"""Formatting of values into strings."""

from __future__ import annotations

import _string  # type: ignore[import-not-found]
import dataclasses
import operator as operators
import reprlib
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ....unsupported import Unsupported
from ...protocol import Evaluator
from ...variables.base import Variable
from ...variables.constant import ConstantVariable, register_special
from ..containers.sequences import ListVariable, TupleVariable, storage_of
from ..functions.bound_methods import BoundMethodVariable
from ..objects.class_attributes import bind_attribute, is_builtin_descriptor
from ..objects.classes import ClassVariable
from ..table import method_model, model

if TYPE_CHECKING:
    from ..objects.user_objects import UserObjectVariable

_CONVERSIONS: dict[str, Callable[[Any], str]] = {"str": str, "repr": repr, "ascii": ascii}


def format_value(
    evaluator: Evaluator, value: Variable, conversion: str | None, specification: Variable
) -> Variable:
    """``format(value, specification)`` after ``!s``, ``!r`` or ``!a``."""
    from ..numbers.data_texts import text_of_data

    text = (
        text_of_data(evaluator, format, [value, specification])
        if conversion is None
        else text_of_data(evaluator, _CONVERSIONS[conversion], [value])
        if specification.as_constant() == ""
        else None
    )
    if text is not None:
        return text
    plain = printable(evaluator, value)
    if conversion is not None:
        plain = evaluator.pure(_CONVERSIONS[conversion], plain)
    return evaluator.wrap_constant(evaluator.pure(format, plain, specification.as_constant()))


def printable(evaluator: Evaluator, value: Variable) -> Any:
    """A Python value that prints as ``value`` does, for use at once."""
    from ..containers.mappings import DictVariable
    from ..objects.user_objects import UserObjectVariable

    if isinstance(value, ClassVariable):
        metaclass: Any = type(value.value)
        special = (metaclass.__repr__, metaclass.__str__, metaclass.__format__)
        if special != (type.__repr__, object.__str__, object.__format__):
            raise Unsupported("formatting of a class with a metaclass", repr(value))
        return value.value
    if isinstance(value, UserObjectVariable):
        return PrintedInstance(evaluator, value)
    if type(value) in (ListVariable, TupleVariable):
        items = [printable(evaluator, item) for item in value.iterate(evaluator)]
        return items if value.python_type() is list else tuple(items)
    if type(value) is DictVariable:
        return {
            printable(evaluator, key.variable): printable(evaluator, item)
            for key, item in value.all_entries(evaluator).items()
        }
    return value.snapshot()


class PrintedInstance:
    """Stands for an instance of a Python class where a builtin prints it: asks the evaluator."""

    def __init__(self, evaluator: Evaluator, instance: UserObjectVariable) -> None:
        self._evaluator = evaluator
        self._instance = instance

    def _text(self, name: str, *arguments: Variable) -> str | None:
        """What the class's own method gives; None where ``object`` has the only one."""
        instance = self._instance
        found = self._evaluator.state.find_in_type(instance.kind, name)
        if found is None or found[0] is object:
            return None
        owner, raw = found
        if is_builtin_descriptor(raw):
            plain = [argument.as_constant() for argument in arguments]
            return instance.builtin_text(self._evaluator, name, *plain)
        method = bind_attribute(self._evaluator, instance.kind, owner, name, raw, instance)
        inner = _without_recursion_check(raw)
        if inner is not None:
            method = BoundMethodVariable(self._evaluator.wrap_known(inner), instance)
        result = method.call(self._evaluator, list(arguments), {})
        if not (result.is_constant() and isinstance(result.as_constant(), str)):
            raise Unsupported("text of an instance", f"{instance!r}.{name}() gave {result!r}")
        return str(result.as_constant())

    def __repr__(self) -> str:
        text = self._text("__repr__")
        if text is None:
            raise Unsupported("text of an instance", repr(self._instance), "it has its address")
        return text

    def __str__(self) -> str:
        text = self._text("__str__")
        return repr(self) if text is None else text

    def __format__(self, specification: str) -> str:
        text = self._text("__format__", ConstantVariable(specification))
        if text is not None:
            return text
        if specification:
            name = self._instance.kind.__name__
            raise TypeError(f"unsupported format string passed to {name}.__format__")
        return str(self)

    def __getitem__(self, key: Any) -> Any:
        raise Unsupported("text of an instance", f"{self._instance!r}[{key!r}] in a format")

    def __getattr__(self, name: str) -> Any:
        raise Unsupported("text of an instance", f"{self._instance!r}.{name} in a format")


_RECURSION_CHECKS = (dataclasses.__file__, reprlib.__file__)


def _without_recursion_check(raw: Any) -> Any:
    """The function in a ``__repr__`` as data classes have it, whose wrapper against recursion asks for ids.

    The wrapper is ``reprlib.recursive_repr``'s, or ``dataclasses``' copy of it before CPython 3.14.
    Evaluation ends by its own limit of depth where an instance holds itself.
    """
    code = getattr(raw, "__code__", None)
    if isinstance(code, types.CodeType) and code.co_filename in _RECURSION_CHECKS:
        return getattr(raw, "__wrapped__", None)
    return None


@model(_string.formatter_parser)
def _parsed_format(evaluator: Evaluator, template: Variable, /) -> Variable:
    parts = evaluator.pure(_string.formatter_parser, template.as_constant())
    return evaluator.wrap_result(list(parts)).iterator(evaluator)


@model(_string.formatter_field_name_split)
def _parsed_field_name(evaluator: Evaluator, name: Variable, /) -> Variable:
    split = _string.formatter_field_name_split
    first, rest = evaluator.pure(split, name.as_constant())
    parts = evaluator.wrap_result(list(rest)).iterator(evaluator)
    return TupleVariable([evaluator.wrap_result(first), parts])


def join_strings(evaluator: Evaluator, parts: list[Variable]) -> Variable:
    """The pieces of an f-string."""
    from ..numbers.data_texts import joined

    return joined(evaluator, parts)


@method_model("format", str)
def _format(
    evaluator: Evaluator, template: ConstantVariable, /, *arguments: Variable, **keywords: Variable
) -> Variable:
    from ..numbers.data_texts import text_of_data

    text = None if keywords else text_of_data(evaluator, str.format, [template, *arguments])
    if text is not None:
        return text
    positional = [printable(evaluator, argument) for argument in arguments]
    named = {name: printable(evaluator, value) for name, value in keywords.items()}
    return evaluator.wrap_result(evaluator.pure(template.value.format, *positional, **named))


@register_special(bytes, "binary operation")
@register_special(str, "binary operation")
def _operation(
    evaluator: Evaluator, text: ConstantVariable, operator: str, other: Variable, reflected: bool
) -> Variable | None:
    """``%`` with what is no constant."""
    if operator != "mod" or reflected:
        return None
    from ..numbers.data_texts import formatted_with

    formatted = formatted_with(evaluator, text.value, other) if type(text.value) is str else None
    if formatted is not None:
        return formatted
    storage = storage_of(other)
    plain = printable(evaluator, storage if storage.python_type() is tuple else other)
    return evaluator.wrap_result(evaluator.pure(operators.mod, text.value, plain))
