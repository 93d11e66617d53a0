"""What calls of builtin classes do."""

from __future__ import annotations

import collections
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...unsupported import Unsupported
from .base import Variable
from .bound_methods import BoundMethodVariable
from .classes import CLASS_CALLS, ClassCall
from .constant import ConstantVariable
from .iterators import (
    LazyIteratorVariable,
    RangeIteratorVariable,
    ReversedListIteratorVariable,
    SequenceIteratorVariable,
    enumerate_iterator,
    map_iterator,
    zip_iterator,
)
from .mappings import DefaultDictVariable, DictVariable, OrderedDictVariable
from .sequences import ListVariable, SliceVariable, TupleVariable, index_value
from .sets import FrozenSetVariable, SetVariable, new_set
from .strings import printable
from .symbolic_range import SymbolicRangeIteratorVariable, SymbolicRangeVariable, symbolic_range
from .tensor_number import truth_in_tensor
from .values import is_callable

if TYPE_CHECKING:
    from ..evaluator import Evaluator


def _calls(kind: type) -> Callable[[ClassCall], ClassCall]:
    def register(implementation: ClassCall) -> ClassCall:
        CLASS_CALLS[kind] = implementation
        return implementation

    return register


def _refuse(kind: type, keywords: dict[str, Variable]) -> None:
    if keywords:
        raise Unsupported("keyword arguments of a builtin class", kind.__name__)


def _single(evaluator: Evaluator, kind: type, arguments: list[Variable]) -> Variable | None:
    if len(arguments) > 1:
        evaluator.raise_error(
            TypeError, f"{kind.__name__} expected at most 1 argument, got {len(arguments)}"
        )
    return arguments[0] if arguments else None


def _elements(evaluator: Evaluator, kind: type, arguments: list[Variable]) -> list[Variable]:
    iterable = _single(evaluator, kind, arguments)
    return [] if iterable is None else iterable.iterate(evaluator)


@_calls(list)
def _list(
    evaluator: Evaluator, arguments: list[Variable], keywords: dict[str, Variable]
) -> Variable:
    _refuse(list, keywords)
    return ListVariable(_elements(evaluator, list, arguments))


@_calls(tuple)
def _tuple(
    evaluator: Evaluator, arguments: list[Variable], keywords: dict[str, Variable]
) -> Variable:
    _refuse(tuple, keywords)
    if arguments and type(arguments[0]) is TupleVariable:
        return arguments[0]
    iterable = _single(evaluator, tuple, arguments)
    return TupleVariable([] if iterable is None else iterable.tuple_elements(evaluator))


@_calls(set)
def _set(
    evaluator: Evaluator, arguments: list[Variable], keywords: dict[str, Variable]
) -> Variable:
    _refuse(set, keywords)
    return new_set(evaluator, SetVariable, _single(evaluator, set, arguments))


@_calls(frozenset)
def _frozenset(
    evaluator: Evaluator, arguments: list[Variable], keywords: dict[str, Variable]
) -> Variable:
    _refuse(frozenset, keywords)
    return new_set(evaluator, FrozenSetVariable, _single(evaluator, frozenset, arguments))


def _new_dict(
    kind: type[DictVariable],
) -> ClassCall:
    def call(
        evaluator: Evaluator, arguments: list[Variable], keywords: dict[str, Variable]
    ) -> Variable:
        result = kind()
        if len(arguments) > 1:
            evaluator.raise_error(
                TypeError, f"{kind.kind.__name__} expected at most 1 argument, got {len(arguments)}"
            )
        result.call_method(evaluator, "update", arguments, keywords)
        return result

    return call


@_calls(collections.defaultdict)
def _default_dict(
    evaluator: Evaluator, arguments: list[Variable], keywords: dict[str, Variable]
) -> Variable:
    made = _new_dict(DefaultDictVariable)(evaluator, arguments[1:], keywords)
    assert isinstance(made, DefaultDictVariable)
    if arguments:
        factory = arguments[0]
        none = factory.is_constant() and factory.as_constant() is None
        if not none and not is_callable(factory):
            evaluator.raise_error(TypeError, "first argument must be callable or None")
        made.factory = factory
    return made


CLASS_CALLS[dict] = _new_dict(DictVariable)
CLASS_CALLS[collections.OrderedDict] = _new_dict(OrderedDictVariable)


@_calls(range)
def _range(
    evaluator: Evaluator, arguments: list[Variable], keywords: dict[str, Variable]
) -> Variable:
    _refuse(range, keywords)
    symbolic = symbolic_range(evaluator, arguments)
    if symbolic is not None:
        return symbolic
    values = [index_value(evaluator, argument) for argument in arguments]
    return ConstantVariable(evaluator.pure(range, *values))


@_calls(slice)
def _slice(
    evaluator: Evaluator, arguments: list[Variable], keywords: dict[str, Variable]
) -> Variable:
    _refuse(slice, keywords)
    none = ConstantVariable(None)
    if not 1 <= len(arguments) <= 3:
        raise Unsupported("arguments of a builtin class", "slice")
    if len(arguments) == 1:
        return SliceVariable(none, arguments[0], none)
    return SliceVariable(*arguments, *[none] * (3 - len(arguments)))


@_calls(bool)
def _bool(
    evaluator: Evaluator, arguments: list[Variable], keywords: dict[str, Variable]
) -> Variable:
    _refuse(bool, keywords)
    found = truth_in_tensor(evaluator, arguments[0], wanted=True) if arguments else None
    return found or ConstantVariable(bool(arguments) and arguments[0].truth(evaluator))


@_calls(type)
def _type(
    evaluator: Evaluator, arguments: list[Variable], keywords: dict[str, Variable]
) -> Variable:
    if len(arguments) != 1 or keywords:
        raise Unsupported("class definition", "type(...)")
    return evaluator.wrap_known(arguments[0].python_type())


@_calls(object)
def _object(
    evaluator: Evaluator, arguments: list[Variable], keywords: dict[str, Variable]
) -> Variable:
    from .user_objects import UserObjectVariable

    if arguments or keywords:
        evaluator.raise_error(TypeError, "object() takes no arguments")
    return UserObjectVariable(object)


def _scalar(kind: type, special: str) -> ClassCall:
    def call(
        evaluator: Evaluator, arguments: list[Variable], keywords: dict[str, Variable]
    ) -> Variable:
        if len(arguments) == 1 and not keywords and not arguments[0].is_constant():
            return arguments[0].call_method(evaluator, special, [], {})
        positional, named = evaluator.snapshots(arguments, keywords, kind.__name__)
        return ConstantVariable(evaluator.pure(kind, *positional, **named))

    return call


CLASS_CALLS[int] = _scalar(int, "__int__")
CLASS_CALLS[float] = _scalar(float, "__float__")
CLASS_CALLS[complex] = _scalar(complex, "__complex__")


@_calls(bytes)
def _bytes(
    evaluator: Evaluator, arguments: list[Variable], keywords: dict[str, Variable]
) -> Variable:
    positional, named = evaluator.snapshots(arguments, keywords, "bytes")
    return ConstantVariable(evaluator.pure(bytes, *positional, **named))


@_calls(types.MethodType)
def _method(
    evaluator: Evaluator, arguments: list[Variable], keywords: dict[str, Variable]
) -> Variable:
    _refuse(types.MethodType, keywords)
    if len(arguments) != 2 or not is_callable(arguments[0]):
        raise Unsupported("arguments of a builtin class", "method")
    return BoundMethodVariable(arguments[0], arguments[1])


@_calls(str)
def _str(
    evaluator: Evaluator, arguments: list[Variable], keywords: dict[str, Variable]
) -> Variable:
    _refuse(str, keywords)
    values: list[Any] = [printable(evaluator, argument) for argument in arguments]
    return ConstantVariable(evaluator.pure(str, *values))


@_calls(enumerate)
def _enumerate(
    evaluator: Evaluator, arguments: list[Variable], keywords: dict[str, Variable]
) -> Variable:
    start = keywords.get("start") or (arguments[1] if len(arguments) == 2 else ConstantVariable(0))
    if not arguments or len(arguments) > 2 or keywords.keys() - {"start"}:
        raise Unsupported("arguments of a builtin class", "enumerate")
    return enumerate_iterator(evaluator, arguments[0], index_value(evaluator, start))


@_calls(zip)
def _zip(
    evaluator: Evaluator, arguments: list[Variable], keywords: dict[str, Variable]
) -> Variable:
    strict = "strict" in keywords and keywords["strict"].truth(evaluator)
    return zip_iterator(evaluator, arguments, strict)


@_calls(map)
def _map(
    evaluator: Evaluator, arguments: list[Variable], keywords: dict[str, Variable]
) -> Variable:
    _refuse(map, keywords)
    if len(arguments) < 2:
        raise Unsupported("arguments of a builtin class", "map")
    return map_iterator(evaluator, arguments[0], arguments[1:])


@_calls(filter)
def _filter(
    evaluator: Evaluator, arguments: list[Variable], keywords: dict[str, Variable]
) -> Variable:
    _refuse(filter, keywords)
    if len(arguments) != 2:
        raise Unsupported("arguments of a builtin class", "filter")
    function, iterable = arguments
    iterator = iterable.iterator(evaluator)
    plain = function.is_constant()

    def step(evaluator: Evaluator) -> Variable | None:
        while (element := iterator.next_or_none(evaluator)) is not None:
            kept = element if plain else function.call(evaluator, [element], {})
            if kept.truth(evaluator):
                return element
        return None

    return LazyIteratorVariable(filter, step, lambda: [function, iterator])


@_calls(reversed)
def _reversed(
    evaluator: Evaluator, arguments: list[Variable], keywords: dict[str, Variable]
) -> Variable:
    _refuse(reversed, keywords)
    if len(arguments) != 1:
        raise Unsupported("arguments of a builtin class", "reversed")
    (iterable,) = arguments
    if not isinstance(iterable, (ListVariable, TupleVariable, ConstantVariable, DictVariable)):
        found = evaluator.state.find_in_type(iterable.python_type(), "__reversed__")
        if found is None:
            return _reversed_by_index(evaluator, iterable)
        return iterable.call_method(evaluator, "__reversed__", [], {})
    if isinstance(iterable, SymbolicRangeVariable):
        backwards = iterable.backwards(evaluator)
        if backwards is not None:
            return SymbolicRangeIteratorVariable(backwards)
    if iterable.is_constant() and isinstance(iterable.as_constant(), range):
        return RangeIteratorVariable(iterable.as_constant()[::-1])
    if iterable.python_type() is list and isinstance(iterable, ListVariable):
        return ReversedListIteratorVariable(evaluator, iterable)
    return SequenceIteratorVariable(iterable, iterable.iterate(evaluator)[::-1])


def _reversed_by_index(evaluator: Evaluator, sequence: Variable) -> Variable:
    """An iterator over ``sequence[len - 1]`` down to ``sequence[0]``."""
    kind = sequence.python_type()
    if evaluator.state.find_in_type(kind, "__getitem__") is None:
        evaluator.raise_error(TypeError, f"{kind.__name__!r} object is not reversible")
    positions = iter(range(sequence.length(evaluator) - 1, -1, -1))

    def step(evaluator: Evaluator) -> Variable | None:
        position = next(positions, None)
        if position is None:
            return None
        return sequence.call_method(evaluator, "__getitem__", [ConstantVariable(position)], {})

    return LazyIteratorVariable(reversed, step)


@_calls(super)
def _super(
    evaluator: Evaluator, arguments: list[Variable], keywords: dict[str, Variable]
) -> Variable:
    from .supers import super_variable

    _refuse(super, keywords)
    return super_variable(evaluator, arguments)
