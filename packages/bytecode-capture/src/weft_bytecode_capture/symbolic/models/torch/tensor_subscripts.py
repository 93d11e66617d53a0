"""Subscripts of tensors with integers that vary between calls: parts are taken by ``select``.

``tensor[n]`` of torch itself reads the number of a symbolic ``n``, and the graph would hold for it alone.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import torch

from ...._torch.symbols import unbacked_symbols
from ....unsupported import Unsupported
from ...graph.data_dependence import require_compared
from ...protocol import Evaluator
from ...variables.base import Arguments, Variable
from ...variables.builder import is_scalar
from ...variables.constant import ConstantVariable
from ..containers.sequences import TupleVariable
from ..containers.slices import SliceVariable
from ..containers.unread_tuples import is_tuple
from ..numbers.symbolic_number import SymbolicNumberVariable

if TYPE_CHECKING:
    from .tensor import TensorVariable


def selected_part(
    evaluator: Evaluator, tensor: TensorVariable, key: Variable
) -> TensorVariable | None:
    """The view ``tensor[key]`` of a key with a symbolic integer; None for other keys.

    The key may hold slices, None, an ellipsis and further integers, but no tensors.
    """

    from .tensor import tensor_of

    items = list(key._items) if is_tuple(key) else [key]
    if not any(map(_is_symbolic, items)) or not all(map(_is_basic, items)):
        return None
    taken = sum(_takes_dimension(item) for item in items)
    if taken > tensor.fake.dim() or sum(map(_is_ellipsis, items)) > 1:
        return None  # eager's own error
    dimension = 0
    selections: list[tuple[int, Variable]] = []
    for item in items:
        if _is_ellipsis(item):
            dimension += tensor.fake.dim() - taken
        elif _is_symbolic(item):
            selections.append((dimension, item))
            dimension += 1
        elif not _is_number(item):
            dimension += 1
    everything = SliceVariable(*[ConstantVariable(None)] * 3)
    rest = [everything if _is_symbolic(item) else item for item in items]
    if not all(item is everything or _is_ellipsis(item) for item in rest):
        subscript = TupleVariable(rest)
        tensor = tensor_of(evaluator, operator.getitem, tensor, subscript)
    for position, item in reversed(selections):
        tensor = tensor_of(evaluator, torch.select, tensor, position, item)
    return tensor


def otherwise_subscripted(
    evaluator: Evaluator, tensor: TensorVariable, name: str, arguments: Arguments
) -> Variable | None:
    """A subscript of which torch itself asks what data say, by one of which it does not; None for others."""
    key = arguments[0]
    places = _places_behind_new_dim(key) if name == "__getitem__" else None
    if places is not None:
        rows = tensor.call_method(evaluator, name, [places], {})
        return rows.call_method(evaluator, "unsqueeze", [ConstantVariable(0)], {})
    truth = _mask_without_dims(key)
    if truth is None:
        return None
    whole = tensor.call_method(evaluator, "unsqueeze", [ConstantVariable(0)], {})
    mask = truth.call_method(evaluator, "reshape", [ConstantVariable(1)], {})
    return whole.call_method(evaluator, name, [mask, *arguments[1:]], {})


def _places_behind_new_dim(key: Variable) -> Variable | None:
    """``i`` of a subscript ``[None, i]``, a tensor of places of which data says how many; None for others.

    Fake tensors compare that number with zero; ``x[i].unsqueeze(0)`` is the same tensor.
    """
    items = list(key._items) if is_tuple(key) else []
    if len(items) != 2 or not items[0].is_none():
        return None
    fake = getattr(items[1], "fake", None)
    if not isinstance(fake, torch.Tensor) or fake.dtype not in (torch.int64, torch.int32):
        return None
    return items[1] if any(map(unbacked_symbols, fake.shape)) else None


def _mask_without_dims(key: Variable) -> Variable | None:
    """A tensor of one truth that is the whole subscript: it takes all or nothing, in a new dimension."""
    items = list(key._items) if is_tuple(key) else [key]
    fake = getattr(items[0], "fake", None) if len(items) == 1 else None
    is_mask = isinstance(fake, torch.Tensor) and fake.dtype is torch.bool and not fake.dim()
    return items[0] if is_mask else None


def require_assignable(value: Variable) -> None:
    """Leave to eager what it refuses: a ``numpy.float32``, which is no float, assigned to a part."""
    number: Any = value.as_constant() if value.is_constant() else None
    if is_scalar(number) and isinstance(number.item(), float) and not isinstance(number, float):
        raise Unsupported("argument of an operator", repr(number))


def require_ordinary_slices(evaluator: Evaluator, key: Variable) -> None:
    """Let the graph check that bounds of slices that depend on data count from the beginning."""
    if not evaluator.graph.shapes.data:
        return
    for item in key._items if is_tuple(key) else [key]:
        for bound in item.parts[:2] if isinstance(item, SliceVariable) else ():
            if isinstance(bound, SymbolicNumberVariable) and unbacked_symbols(bound.value):
                require_compared(evaluator.graph, operator.ge, bound, ConstantVariable(0))


def _is_symbolic(item: Variable) -> bool:
    return isinstance(item, SymbolicNumberVariable) and item.python_type() is int


def _is_basic(item: Variable) -> bool:
    if isinstance(item, SliceVariable) or _is_symbolic(item) or _is_number(item):
        return True
    return item.is_constant() and (item.as_constant() is None or _is_ellipsis(item))


def _is_number(item: Variable) -> bool:
    return (
        not isinstance(item, SymbolicNumberVariable)
        and item.is_constant()
        and type(item.as_constant()) is int
    )


def _is_ellipsis(item: Variable) -> bool:
    return type(item) is ConstantVariable and item.as_constant() is Ellipsis


def _takes_dimension(item: Variable) -> bool:
    return isinstance(item, SliceVariable) or _is_symbolic(item) or _is_number(item)
