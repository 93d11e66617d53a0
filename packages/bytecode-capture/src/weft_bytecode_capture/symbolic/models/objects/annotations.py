"""Type annotations as values: ``int | None``, ``list[int]``, ``Optional[int]``, ``Literal["a"]``.

They are constants, known by identity; ``isinstance`` takes unions apart.
"""
# ruff: noqa: UP006, UP045 - the old spellings have classes of their own

from __future__ import annotations

import collections
import collections.abc
import operator
import types
import typing
from typing import Any

from ...captured_exception import CapturedException
from ...protocol import Evaluator
from ...variables.base import Variable
from ...variables.builder import register_constant_types
from ...variables.constant import ConstantVariable, register_special
from ..containers.sequences import ListVariable, TupleVariable
from ..table import method_model, model
from .classes import ClassVariable

_EXAMPLES = (
    int | None,
    list[int],
    typing.Union,
    typing.Optional[int],
    typing.List,
    typing.List[int],
    typing.Tuple,
    typing.Callable,
    typing.Callable[[int], int],
    collections.abc.Callable[[int], int],
    typing.Literal,
    typing.Literal[1],
    typing.Annotated[int, ""],
    typing.TypeVar("_Example"),
    typing.ForwardRef("int"),
)

# Since 3.14 Union is a class, not a form of its own.
register_constant_types(*(type(form) for form in _EXAMPLES if not isinstance(form, type)))


@method_model(
    "__class_getitem__", list, tuple, dict, set, frozenset, type, collections.deque,
    collections.OrderedDict, collections.defaultdict, types.UnionType,  # Union itself, since 3.14
)  # fmt: skip
def _parametrise(evaluator: Evaluator, kind: Any, parameters: Variable, /) -> Variable:
    """``list[Tensor]``: classes within it are known to the guard set."""
    given = _value_of(evaluator, parameters)
    return evaluator.wrap_known(evaluator.pure(operator.getitem, kind, given))


def _subscript(evaluator: Evaluator, form: ConstantVariable, parameters: Variable, /) -> Variable:
    """``Optional[int]``, ``Callable[[int], str]``, ``Stack[T][int]``: typing keeps what it has made."""
    given = _value_of(evaluator, parameters)
    return evaluator.wrap_known(evaluator.pure(operator.getitem, form.value, given))


for _kind in {type(form) for form in _EXAMPLES if type(form).__module__ == "typing"}:
    register_special(_kind, "subscript")(_subscript)


@model(type(typing.List[int]).__call__)
def _call_alias(
    evaluator: Evaluator, alias: ConstantVariable, /, *arguments: Variable, **keywords: Variable
) -> Variable:
    """``Stack[int]()``: an instance of the class, which remembers the alias if it can."""
    origin = evaluator.wrap_known(alias.value.__origin__)
    made = origin.call(evaluator, list(arguments), keywords)
    try:
        made.set_attribute(evaluator, "__orig_class__", alias)
    except CapturedException as error:
        if not issubclass(error.exception.python_type(), AttributeError):
            raise
    return made


def _value_of(evaluator: Evaluator, parameter: Variable) -> Any:
    if isinstance(parameter, TupleVariable):
        return tuple(_value_of(evaluator, item) for item in parameter.iterate(evaluator))
    if isinstance(parameter, ListVariable):
        return [_value_of(evaluator, item) for item in parameter.iterate(evaluator)]
    if isinstance(parameter, ClassVariable) and not evaluator.state.is_made(parameter.value):
        return parameter.value
    return parameter.snapshot()


@model(types.GenericAlias)
def _new_alias(evaluator: Evaluator, origin: Variable, parameters: Variable, /) -> Variable:
    """A class of collections.abc subscripted."""
    values = [_value_of(evaluator, argument) for argument in (origin, parameters)]
    return evaluator.wrap_known(evaluator.pure(types.GenericAlias, *values))


@model(type(collections.abc.Callable[[int], int]))
def _new_callable_alias(
    evaluator: Evaluator, origin: Variable, parameters: Variable, /
) -> Variable:
    """``Callable`` of collections.abc subscripted."""
    alias: Any = collections.abc.Callable
    return evaluator.wrap_known(
        evaluator.pure(alias.__class_getitem__, _value_of(evaluator, parameters))
    )
