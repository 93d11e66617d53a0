"""Type annotations as values: ``int | None``, ``list[int]``, ``Optional[int]``, ``Literal["a"]``.

They are constants, known by identity; ``isinstance`` takes unions apart.
"""
# ruff: noqa: UP006, UP045 - the old spellings have classes of their own

from __future__ import annotations

import collections
import types
import typing
from typing import TYPE_CHECKING, Any

from ..builder import register_constant_types
from ..captured_exception import CapturedException
from .base import Variable
from .builtin_descriptors import CLASS_METHOD_CALLS
from .classes import CLASS_CALLS, ClassVariable
from .constant import ConstantVariable, register_special
from .sequences import TupleVariable

if TYPE_CHECKING:
    from ..evaluator import Evaluator

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
    typing.Literal,
    typing.Literal[1],
    typing.Annotated[int, ""],
    typing.TypeVar("_Example"),
    typing.ForwardRef("int"),
)

_COLLECTIONS = (collections.deque, collections.OrderedDict, collections.defaultdict)

# Since 3.14 Union is a class, not a form of its own.
register_constant_types(*(type(form) for form in _EXAMPLES if not isinstance(form, type)))


def _parametrise(evaluator: Evaluator, kind: Any, parameters: Variable) -> Variable:
    """``list[Tensor]``: classes within it are known to the guard set."""
    return evaluator.wrap_known(kind[_value_of(evaluator, parameters)])


@register_special(type(typing.List[int]), "__call__")
def _call_alias(
    evaluator: Evaluator,
    alias: ConstantVariable,
    arguments: list[Variable],
    keywords: dict[str, Variable],
) -> Variable:
    """``Stack[int]()``: an instance of the class, which remembers the alias if it can."""
    origin = evaluator.wrap_known(alias.value.__origin__)
    made = origin.call(evaluator, arguments, keywords)
    try:
        made.set_attribute(evaluator, "__orig_class__", alias)
    except CapturedException as error:
        if not issubclass(error.exception.python_type(), AttributeError):
            raise
    return made


def _value_of(evaluator: Evaluator, parameter: Variable) -> Any:
    if isinstance(parameter, TupleVariable):
        return tuple(_value_of(evaluator, item) for item in parameter.iterate(evaluator))
    if isinstance(parameter, ClassVariable):
        return parameter.value
    return parameter.snapshot()


for _kind in (list, tuple, dict, set, frozenset, type, *_COLLECTIONS):
    CLASS_METHOD_CALLS[_kind, "__class_getitem__"] = _parametrise


def _new_alias(
    evaluator: Evaluator, arguments: list[Variable], keywords: dict[str, Variable]
) -> Variable:
    """``types.GenericAlias(origin, parameters)``: a class of collections.abc subscripted."""
    values = [_value_of(evaluator, argument) for argument in arguments]
    return evaluator.wrap_known(evaluator.pure(types.GenericAlias, *values))


CLASS_CALLS[types.GenericAlias] = _new_alias
