"""What calls of builtin classes do."""

from __future__ import annotations

import collections
import sys
import types
from typing import Any

from ....unsupported import Unsupported
from ...protocol import Evaluator
from ...variables.base import Variable
from ...variables.class_guards import guard_absent
from ...variables.constant import ConstantVariable
from ...variables.missing_methods import require_method
from ...variables.python_protocols import is_callable, pure_call
from ..containers.mappings import DefaultDictVariable, DictVariable, OrderedDictVariable
from ..containers.sequences import ListVariable, TupleVariable
from ..containers.sets import FrozenSetVariable, SetVariable, new_set
from ..containers.slices import SliceVariable, index_value
from ..containers.unread_tuples import is_tuple
from ..functions.bound_methods import BoundMethodVariable
from ..iterators.builtin_iterators import (
    LazyIteratorVariable,
    RangeIteratorVariable,
    ReversedListIteratorVariable,
    SequenceIteratorVariable,
)
from ..iterators.joint_iterators import enumerate_iterator, map_iterator, zip_iterator
from ..numbers.symbolic_range import (
    SymbolicRangeIteratorVariable,
    SymbolicRangeVariable,
    symbolic_range,
)
from ..numbers.tensor_number import truth_in_tensor
from ..objects.class_attributes import guard_found
from ..objects.classes import super_variable
from ..objects.user_objects import UserObjectVariable
from ..table import model, models
from .strings import converted_to_text


@model(list)
def _list(evaluator: Evaluator, iterable: Variable | None = None, /) -> Variable:
    return ListVariable([] if iterable is None else iterable.iterate(evaluator))


@model(tuple)
def _tuple(evaluator: Evaluator, iterable: Variable | None = None, /) -> Variable:
    if is_tuple(iterable):
        return iterable
    return TupleVariable([] if iterable is None else iterable.tuple_elements(evaluator))


@model(set)
def _set(evaluator: Evaluator, iterable: Variable | None = None, /) -> Variable:
    return new_set(evaluator, SetVariable, iterable)


@model(frozenset)
def _frozenset(evaluator: Evaluator, iterable: Variable | None = None, /) -> Variable:
    return new_set(evaluator, FrozenSetVariable, iterable)


@models(dict, collections.OrderedDict)
def _dict(
    kind: Any, evaluator: Evaluator, content: Variable | None = None, /, **entries: Variable
) -> Variable:
    result = DictVariable() if kind is dict else OrderedDictVariable()
    result.call_method(evaluator, "update", [] if content is None else [content], entries)
    return result


@model(collections.defaultdict)
def _default_dict(
    evaluator: Evaluator,
    factory: Variable | None = None,
    content: Variable | None = None,
    /,
    **entries: Variable,
) -> Variable:
    made = DefaultDictVariable()
    made.call_method(evaluator, "update", [] if content is None else [content], entries)
    if factory is not None:
        if not factory.is_none() and not is_callable(factory):
            evaluator.raise_error(TypeError, "first argument must be callable or None")
        made.factory = factory
    return made


@model(range)
def _range(evaluator: Evaluator, first: Variable, *others: Variable) -> Variable:
    symbolic = symbolic_range(evaluator, [first, *others])
    if symbolic is not None:
        return symbolic
    values = [index_value(evaluator, argument) for argument in (first, *others)]
    return ConstantVariable(evaluator.pure(range, *values))


@model(slice)
def _slice(
    evaluator: Evaluator,
    start: Variable,
    stop: Variable | None = None,
    step: Variable | None = None,
    /,
) -> Variable:
    none = ConstantVariable(None)
    if stop is None:
        return SliceVariable(none, start, none)
    return SliceVariable(start, stop, step or none)


@model(bool)
def _bool(evaluator: Evaluator, value: Variable | None = None, /) -> Variable:
    if value is None:
        return ConstantVariable(False)
    found = truth_in_tensor(evaluator, value, wanted=True)
    return found or ConstantVariable(value.truth(evaluator))


@model(object)
def _object(evaluator: Evaluator) -> Variable:
    return UserObjectVariable(object)


def _makes_complex(evaluator: Evaluator, value: Variable) -> bool:
    """Whether complex() asks an object for a complex number, not for a float."""
    known = value.node is not None or not isinstance(value, UserObjectVariable)
    return known or evaluator.state.find_in_type(value.python_type(), "__complex__") is not None


@models(int, float, complex)
def _number(
    kind: type, evaluator: Evaluator, /, *arguments: Variable, **keywords: Variable
) -> Variable:
    if len(arguments) == 1 and not keywords and not arguments[0].is_constant():
        require_method(evaluator, arguments[0], f"__{kind.__name__}__")
        if kind is complex and not _makes_complex(evaluator, arguments[0]):
            return _number(complex, evaluator, _number(float, evaluator, arguments[0]))
        return arguments[0].call_method(evaluator, f"__{kind.__name__}__", [], {})
    return pure_call(evaluator, kind, arguments, keywords)


@model(bytes)
def _bytes(evaluator: Evaluator, /, *arguments: Variable, **keywords: Variable) -> Variable:
    return pure_call(evaluator, bytes, arguments, keywords)


@model(types.MethodType)
def _method(evaluator: Evaluator, function: Variable, instance: Variable, /) -> Variable:
    if not is_callable(function):
        raise Unsupported("arguments of a builtin class", "method")
    return BoundMethodVariable(function, instance)


@model(str)
def _str(evaluator: Evaluator, *arguments: Variable) -> Variable:
    if len(arguments) == 1:
        return converted_to_text(evaluator, str, arguments[0])
    values: list[Any] = [argument.printable(evaluator) for argument in arguments]
    return ConstantVariable(evaluator.pure(str, *values))


@model(enumerate)
def _enumerate(evaluator: Evaluator, iterable: Variable, start: Variable | None = None) -> Variable:
    first = 0 if start is None else index_value(evaluator, start)
    return enumerate_iterator(evaluator, iterable, first)


@model(zip)
def _zip(evaluator: Evaluator, *iterables: Variable, strict: Variable | None = None) -> Variable:
    return zip_iterator(evaluator, iterables, strict is not None and strict.truth(evaluator))


@model(map)
def _map(
    evaluator: Evaluator,
    function: Variable,
    iterable: Variable,
    /,
    *others: Variable,
    strict: Variable | None = None,
) -> Variable:
    if strict is not None and sys.version_info < (3, 14):
        evaluator.raise_error(TypeError, "map() takes no keyword arguments")
    is_strict = strict is not None and strict.truth(evaluator)
    return map_iterator(evaluator, function, [iterable, *others], is_strict)


@model(filter)
def _filter(evaluator: Evaluator, function: Variable, iterable: Variable, /) -> Variable:
    iterator = iterable.iterator(evaluator)
    plain = function.is_none()

    def step(evaluator: Evaluator) -> Variable | None:
        while (element := iterator.next_or_none(evaluator)) is not None:
            kept = element if plain else function.call(evaluator, [element], {})
            if kept.truth(evaluator):
                return element
        return None

    return LazyIteratorVariable(filter, step, lambda: [function, iterator])


@model(reversed)
def _reversed(evaluator: Evaluator, iterable: Variable, /) -> Variable:
    if not isinstance(iterable, (ListVariable, TupleVariable, ConstantVariable, DictVariable)):
        found = evaluator.state.find_in_type(iterable.python_type(), "__reversed__")
        if found is None:
            guard_absent(evaluator, iterable.python_type(), "__reversed__")
            return _reversed_by_index(evaluator, iterable)
        return iterable.call_method(evaluator, "__reversed__", [], {})
    if isinstance(iterable, SymbolicRangeVariable):
        backwards = iterable.backwards(evaluator)
        if backwards is not None:
            return SymbolicRangeIteratorVariable(backwards)
    if iterable.is_constant() and isinstance(iterable.as_constant(), range):
        return RangeIteratorVariable(iterable.as_constant()[::-1])
    if isinstance(iterable, ConstantVariable) and not hasattr(iterable.value, "__getitem__"):
        return _reversed_by_index(evaluator, iterable)  # as of any class that says nothing
    if iterable.python_type() is list and isinstance(iterable, ListVariable):
        return ReversedListIteratorVariable(evaluator, iterable)
    return SequenceIteratorVariable(iterable, iterable.iterate(evaluator)[::-1])


def _reversed_by_index(evaluator: Evaluator, sequence: Variable) -> Variable:
    """An iterator over ``sequence[len - 1]`` down to ``sequence[0]``."""
    kind = sequence.python_type()
    found = evaluator.state.find_in_type(kind, "__getitem__")
    if found is None:
        guard_absent(evaluator, kind, "__getitem__")
        evaluator.raise_error(TypeError, f"{kind.__name__!r} object is not reversible")
    guard_found(evaluator, kind, found[0], "__getitem__", found[1])
    positions = iter(range(sequence.length(evaluator) - 1, -1, -1))

    def step(evaluator: Evaluator) -> Variable | None:
        position = next(positions, None)
        if position is None:
            return None
        return sequence.call_method(evaluator, "__getitem__", [ConstantVariable(position)], {})

    return LazyIteratorVariable(reversed, step)


@model(super)
def _super(evaluator: Evaluator, *arguments: Variable) -> Variable:
    return super_variable(evaluator, list(arguments))
