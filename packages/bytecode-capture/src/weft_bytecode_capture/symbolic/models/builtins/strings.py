"""Formatting of values into strings."""

from __future__ import annotations

import _string  # type: ignore[import-not-found]
import operator as operators
from collections.abc import Callable
from typing import Any, cast

import torch

from ...graph.known_contents import known_contents
from ...graph.storages import Tensor
from ...protocol import Evaluator
from ...variables.base import Variable
from ...variables.constant import ConstantVariable, register_special
from ...variables.python_protocols import storage_of
from ..containers.sequences import TupleVariable
from ..numbers.data_texts import (
    DataTextVariable,
    formatted_by_names,
    formatted_with,
    joined,
    text_of_data,
)
from ..objects.instance_protocols import InstanceProtocols, own_text
from ..table import method_model, model
from ..torch.tensor import TensorVariable

_CONVERSIONS: dict[str, Callable[[Any], str]] = {"str": str, "repr": repr, "ascii": ascii}


def format_value(
    evaluator: Evaluator, value: Variable, conversion: str | None, specification: Variable
) -> Variable:
    """``format(value, specification)`` after ``!s``, ``!r`` or ``!a``."""
    if conversion is None:
        value = _known_number(evaluator, value)
    else:
        value = converted_to_text(evaluator, _CONVERSIONS[conversion], value)
    if _is_formatted_as_text(evaluator, value, specification):
        value = converted_to_text(evaluator, str, value)
    text = text_of_data(evaluator, format, [value, specification])
    if text is not None:
        return text
    plain = value.printable(evaluator)
    return evaluator.wrap_constant(evaluator.pure(format, plain, specification.as_constant()))


def converted_to_text(
    evaluator: Evaluator, convert: Callable[[Any], str], value: Variable
) -> Variable:
    """``str(value)``, ``repr(value)`` or ``ascii(value)``."""
    text: Variable | None = text_of_data(evaluator, convert, [value])
    if text is None and convert is not ascii:
        text = own_text(evaluator, value, f"__{convert.__name__}__")
    return text or evaluator.wrap_constant(evaluator.pure(convert, value.printable(evaluator)))


def _is_formatted_as_text(evaluator: Evaluator, value: Variable, specification: Variable) -> bool:
    """Whether a format is the same as ``str(value)``: of an instance whose class says nothing else."""
    if not isinstance(value, InstanceProtocols) or specification.as_constant():
        return False
    found = evaluator.state.find_in_type(value.kind, "__format__")
    return found is not None and found[0] is object


def _known_number(evaluator: Evaluator, value: Variable) -> Variable:
    """The number that a tensor without dims formats as, if a branch knows it; other values as they are."""
    is_number = isinstance(value, TensorVariable) and value.fake.dim() == 0
    if not is_number or not evaluator.graph.is_in_region or value.python_type() is not torch.Tensor:
        return value
    contents = known_contents(evaluator, cast("Tensor", value))
    return value if contents is None else evaluator.wrap_result(contents.item())


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


@method_model("join", str)
def _join(evaluator: Evaluator, separator: ConstantVariable, parts: Variable, /) -> Variable:
    collected = parts if parts.is_constant() else evaluator.collected(parts)
    texts = [] if collected.is_constant() else collected.iterate(evaluator)
    if any(isinstance(t, DataTextVariable) for t in texts) and all(map(_is_text, texts)):
        pairs = [part for text in texts for part in (separator, text)]
        return joined(evaluator, pairs[1:])
    (positional,), _ = evaluator.snapshots([collected], {}, "str.join")
    return evaluator.wrap_result(evaluator.pure(separator.value.join, positional))


def _is_text(value: Variable) -> bool:
    return value.python_type() is str


@method_model("format", str)
def _format(
    evaluator: Evaluator, template: ConstantVariable, /, *arguments: Variable, **keywords: Variable
) -> Variable:
    text = formatted_by_names(evaluator, template, arguments, keywords)
    if text is not None:
        return text
    positional = [argument.printable(evaluator) for argument in arguments]
    named = {name: value.printable(evaluator) for name, value in keywords.items()}
    return evaluator.wrap_result(evaluator.pure(template.value.format, *positional, **named))


@register_special(bytes, "binary operation")
@register_special(str, "binary operation")
def _operation(
    evaluator: Evaluator, text: ConstantVariable, operator: str, other: Variable, reflected: bool
) -> Variable | None:
    """``%`` with what is no constant."""
    if operator != "mod" or reflected:
        return None
    formatted = formatted_with(evaluator, text.value, other) if type(text.value) is str else None
    if formatted is not None:
        return formatted
    storage = storage_of(other)
    plain = (storage if storage.python_type() is tuple else other).printable(evaluator)
    return evaluator.wrap_result(evaluator.pure(operators.mod, text.value, plain))
