"""Lists of numbers and numbers that depend on data: ``[0.5, 1.0][k]``, and ``x[[i, j]]`` of drawn places."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch

from ....unsupported import Unsupported
from ...graph.data_dependence import can_read, read_number, require_compared
from ...protocol import Evaluator
from ...shapes import MAX_NUMBER
from ...variables.base import Variable
from ...variables.constant import ConstantVariable, register_special
from ..containers.sequences import ListVariable, TupleVariable
from ..containers.unread_tuples import is_tuple
from ..numbers.data_numbers import DataFloatVariable, Range, depends_on_data
from ..numbers.symbolic_range import SymbolicRangeVariable
from .tensor import TensorVariable, tensor_of


def number_at(evaluator: Evaluator, items: list[Variable], place: Variable) -> Variable | None:
    """The number of ``items`` at a place that depends on data, read from a table; None of other things."""
    values = [item.as_constant() for item in items if item.is_constant()]
    kinds = set(map(type, values))
    if len(values) != len(items) or kinds not in ({int}, {float}) or evaluator.graph.is_in_region:
        return None
    if kinds == {int} and max(map(abs, values)) > MAX_NUMBER:
        return None
    require_compared(evaluator.graph, operator.ge, place, ConstantVariable(0))
    require_compared(evaluator.graph, operator.lt, place, ConstantVariable(len(items)))
    dtype = torch.int64 if kinds == {int} else torch.float64
    table = _call(
        evaluator, torch.tensor, ListVariable(items), dtype=dtype, device=torch.device("cpu")
    )
    element = _call(evaluator, torch.select, table, ConstantVariable(0), place)
    if not isinstance(element, TensorVariable) or not can_read(evaluator, element):
        return None
    return within(evaluator, read_number(evaluator, element), Range(min(values), max(values)))


@register_special(range, "subscript")
def _of_range(evaluator: Evaluator, values: ConstantVariable, place: Variable) -> Variable:
    found: range = values.value
    if not depends_on_data(place):
        custom = place.binary_operation(evaluator, "getitem", values, True)
        if custom is not None:
            return custom
        return evaluator.wrap_result(evaluator.pure(operator.getitem, found, place.snapshot()))
    require_compared(evaluator.graph, operator.ge, place, ConstantVariable(0))
    require_compared(evaluator.graph, operator.lt, place, ConstantVariable(len(found)))
    scaled = evaluator.binary_operation("mul", place, ConstantVariable(found.step))
    return evaluator.binary_operation("add", scaled, ConstantVariable(found.start))


def within(evaluator: Evaluator, number: Variable, bounds: Range) -> Variable:
    """A number that the graph has just read, known to lie within ``bounds``."""
    if isinstance(number, DataFloatVariable):
        number.bounds = bounds
    else:
        for compare, bound in ((operator.ge, bounds.least), (operator.le, bounds.most)):
            require_compared(evaluator.graph, compare, number, ConstantVariable(bound))
    return number


def with_listed_tensors(evaluator: Evaluator, tensor: TensorVariable, key: Variable) -> Variable:
    """A subscript of ``tensor`` with one tensor in the place of each sequence of places in tensors.

    Of ``x[rows, columns]``, where ``rows, columns = zip(*places)``, torch itself would read every element.
    """
    if not is_tuple(key) or not any(isinstance(i, _SEQUENCES) for i in key.iterate(evaluator)):
        return key
    items = list(key.iterate(evaluator))
    found = [_stacked(evaluator, tensor, item) for item in items]
    changed = any(new is not old for new, old in zip(found, items, strict=True))
    return TupleVariable(found) if changed else key


def _stacked(evaluator: Evaluator, tensor: TensorVariable, part: Variable) -> Variable:
    if not isinstance(part, _SEQUENCES):
        return part
    items = part.items(evaluator)
    held = [item for item in items if isinstance(item, TensorVariable)]
    numbers = [item for item in items if not isinstance(item, TensorVariable)]
    are_places = all(not i.fake.dim() and i.fake.dtype in _PLACES for i in held)
    if not held or not are_places or not all(map(_is_integer, numbers)):
        return part
    options = {"dtype": torch.int64, "device": tensor.fake.device}
    made = [
        tensor_of(evaluator, "to", item, **options)
        if isinstance(item, TensorVariable)
        else tensor_of(evaluator, torch.full, (), item, **options)
        for item in items
    ]
    return tensor_of(evaluator, torch.stack, ListVariable(made))


def _is_integer(item: Variable) -> bool:
    return item.is_constant() and type(item.as_constant()) is int


_SEQUENCES = (ListVariable, TupleVariable)
_PLACES = (torch.int64, torch.int32, torch.int16, torch.int8)


def with_tensors_of_places(evaluator: Evaluator, tensor: TensorVariable, key: Variable) -> Variable:
    """A subscript of ``tensor`` with a tensor in the place of what holds integers that vary.

    That are lists some of whose integers depend on data, and ranges: ``x[range(n), classes]``.
    """
    if not is_tuple(key):
        return _as_tensor(evaluator, tensor, key)
    items = list(key.iterate(evaluator))
    found = [_as_tensor(evaluator, tensor, item) for item in items]
    changed = any(new is not old for new, old in zip(found, items, strict=True))
    return TupleVariable(found) if changed else key


def _as_tensor(evaluator: Evaluator, tensor: TensorVariable, part: Variable) -> Variable:
    if isinstance(part, SymbolicRangeVariable) and not part.differs:
        bounds, device = (part.start, part.stop, part.step), tensor.fake.device
        return _call(evaluator, torch.arange, *bounds, dtype=torch.int64, device=device)
    if isinstance(part, ListVariable) and evaluator.graph.shapes.data:
        return _places(evaluator, part)
    return part


def _places(evaluator: Evaluator, places: ListVariable) -> Variable:
    items = places.items(evaluator)
    if not any(map(depends_on_data, items)) or any(item.python_type() is not int for item in items):
        return places
    parts = [
        _call(evaluator, torch.full, TupleVariable([]), item, dtype=torch.int64) for item in items
    ]
    return _call(evaluator, torch.stack, TupleVariable(parts))


def _call(
    evaluator: Evaluator, function: Callable[..., Any], *arguments: Variable, **options: object
) -> Variable:
    keywords: dict[str, Variable] = {n: ConstantVariable(v) for n, v in options.items()}
    if evaluator.graph.is_in_region:
        raise Unsupported("number that depends on data", f"{function!r} in a region")
    return evaluator.graph.call_function(evaluator, function, [*arguments], keywords)
