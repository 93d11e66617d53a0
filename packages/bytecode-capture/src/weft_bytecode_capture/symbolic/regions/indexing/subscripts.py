"""Subscripts of tensors with integers that differ by iteration: a chain of views, dimension by dimension.

Positions that tensors give come last, all together.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from ...._torch.symbols import assume, constant_term
from ....unsupported import Unsupported
from ...models.containers.slices import SliceVariable
from ...models.containers.unread_tuples import is_tuple
from ...models.numbers.symbolic_integer import SymbolicIntegerVariable, decide, decided_or_none
from ...variables.base import Arguments, Variable
from ...variables.constant import ConstantVariable
from ..loops.iteration_sizes import ends_hold

if TYPE_CHECKING:
    from ...evaluator import FrameEvaluator
    from ...models.torch.tensor import TensorVariable


def symbolic_subscript(
    evaluator: FrameEvaluator, tensor: TensorVariable, arguments: Arguments
) -> Variable:
    """``tensor[key]``, or with a second argument ``tensor[key] = value``."""
    from ...models.numbers.tensor_number import number_in_tensor
    from .positions import read_at, write_at

    key, *values = arguments
    view, positions = _view(evaluator, tensor, key)
    place = (tensor, key)
    if not values:
        return read_at(evaluator, view, positions, place) if positions else view
    (value,) = values
    if positions:
        write_at(evaluator, view, positions, value, place)
        return ConstantVariable(None)
    number = number_in_tensor(evaluator, value) if not value.is_constant() else None
    value = value if number is None else number.tensor
    method = "fill_" if value.is_constant() else "copy_"
    evaluator.graph.call_method(evaluator, method, view, (value,), {})
    return ConstantVariable(None)


def _view(
    evaluator: FrameEvaluator, tensor: TensorVariable, key: Variable
) -> tuple[TensorVariable, list[Variable | None]]:
    """The view that all but positions in tensors make; these, by the dimension of it that they are in."""
    from .positions import is_position

    positions: list[Variable | None] = []
    items = list(key._items) if is_tuple(key) else [key]
    dimension = 0
    for item in items:
        indexes = not (item.is_constant() and item.as_constant() in (None, Ellipsis))
        if indexes and dimension >= tensor.fake.dim():
            raise Unsupported("subscript with too many indices", repr(key))
        if item.is_constant() and item.as_constant() is Ellipsis:
            dimension += tensor.fake.dim() - dimension - _after(items, item)
        elif item.is_none():
            tensor = _call(evaluator, torch.unsqueeze, tensor, dimension)
            dimension += 1
        elif isinstance(item, SliceVariable):
            tensor = _sliced(evaluator, tensor, dimension, item)
            dimension += 1
        elif isinstance(item, SymbolicIntegerVariable) or _is_number(item):
            index = in_range(evaluator, item, tensor.fake.shape[dimension])
            tensor = _call(evaluator, torch.select, tensor, dimension, index)
        elif is_position(item):
            positions += [None] * (dimension - len(positions)) + [item]
            dimension += 1
        else:
            raise Unsupported("subscript of a loop's counter and other things", repr(item))
    return tensor, positions


def _after(items: list[Variable], ellipsis: Variable) -> int:
    """How many dimensions the items after the ellipsis take."""
    following = items[items.index(ellipsis) + 1 :]
    return sum(not i.is_none() for i in following)


def _is_number(item: Variable) -> bool:
    return item.is_constant() and type(item.as_constant()) is int


def in_range(evaluator: FrameEvaluator, item: Variable, size: int | torch.SymInt) -> Variable:
    """The index counted from the beginning; it has to be inside in every iteration."""
    if not isinstance(item, SymbolicIntegerVariable):
        return item
    if _is_negative(evaluator, item):
        item = _from_start(evaluator, item, size)
    # What is below a counter is below the size that the counter is below.
    below = item.value - min(0, constant_term(item.value))
    inside = decided_or_none(item.value < size) or decided_or_none(below < size)
    if not inside and ends_hold(evaluator, item.value, lambda _, greatest: greatest < size):
        assume(item.value < size)
        inside = True
    if not inside:
        raise Unsupported("subscript out of range in some iteration", repr(item))
    return item


def _is_negative(evaluator: FrameEvaluator, item: SymbolicIntegerVariable) -> bool:
    """Whether an index is less than 0 in every iteration, rather than in none."""
    decided = decided_or_none(item.value < 0)
    if decided is None and ends_hold(evaluator, item.value, lambda least, _: least >= 0):
        assume(item.value >= 0)
        return False
    return decide(item.value < 0, repr(item))


def _sliced(
    evaluator: FrameEvaluator, tensor: TensorVariable, dimension: int, item: SliceVariable
) -> TensorVariable:
    start, stop, step = item.parts
    if all(part.is_none() for part in item.parts):
        return tensor
    size = tensor.fake.shape[dimension]
    start, stop = (_end(evaluator, part, size) for part in (start, stop))
    if step.is_none():
        step = ConstantVariable(1)
    return _call(evaluator, torch.ops.aten.slice.Tensor, tensor, dimension, start, stop, step)


def _end(evaluator: FrameEvaluator, part: Variable, size: int | torch.SymInt) -> Variable:
    """An end of a slice, counted from the beginning; it has to be inside in every iteration."""
    from .positions import is_position

    if is_position(part):
        raise Unsupported("slice that ends where data says", repr(part))
    if not isinstance(part, SymbolicIntegerVariable):
        return part
    if _is_negative(evaluator, part):
        part = _from_start(evaluator, part, size)
        if decided_or_none(part.value >= 0) is not True:
            raise Unsupported("slice that may be cut short", repr(part))
    inside = decided_or_none(part.value <= size) is True
    if not inside and not ends_hold(evaluator, part.value, lambda _, greatest: greatest <= size):
        raise Unsupported("slice that may be cut short", repr(part))
    if not inside:
        assume(part.value <= size)
    return part


def _from_start(
    evaluator: FrameEvaluator, item: SymbolicIntegerVariable, size: int | torch.SymInt
) -> SymbolicIntegerVariable:
    """A position counted from the end as one from the beginning."""
    if not isinstance(size, int):
        raise Unsupported("subscript from the end of a symbolic size", repr(item))
    moved = item.binary_operation(evaluator, "add", ConstantVariable(size), False)
    assert isinstance(moved, SymbolicIntegerVariable)
    return moved


def _call(
    evaluator: FrameEvaluator, function: Callable[..., Any], tensor: TensorVariable, *arguments: Any
) -> TensorVariable:
    from ...models.torch.tensor import TensorVariable

    given = [a if isinstance(a, Variable) else ConstantVariable(a) for a in arguments]
    result = evaluator.graph.call_function(evaluator, function, [tensor, *given], {})
    assert isinstance(result, TensorVariable)
    return result
