"""Elements of tensors at positions that other tensors give: ``x[t]`` inside a region, read and written.

In eager ``x[t]`` is a view.  The graph has a copy of it, which is as good until something is written: from
then on it is refused, but for ``x[t] += y``, which puts it back.  Outside of regions ``t`` is a number that
the graph reads.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence

import torch

from ..._torch import storage_identity
from ..._torch.symbols import assume, constant_term, unbacked_symbols
from ...unsupported import Unsupported
from ..graph.data_dependence import can_read, read_number
from ..graph.known_contents import known_contents
from ..graph.storages import version_of
from ..models.containers.sequences import ListVariable, TupleVariable
from ..models.containers.slices import SliceVariable
from ..models.containers.unread_tuples import is_tuple
from ..models.numbers.symbolic_integer import SymbolicIntegerVariable, decide, decided_or_none
from ..models.numbers.tensor_number import TensorNumberVariable, number_in_tensor
from ..models.torch.tensor import TensorVariable, tensor_of
from ..protocol import Frame
from ..variables.base import Arguments, Variable
from ..variables.constant import ConstantVariable
from .decisions import ProgramPoint, RegionRefused, refuse
from .identity.aliases import AliasLedger
from .loops.iteration_sizes import ends_hold

_POSITIONS = frozenset({torch.int64, torch.int32, torch.int16, torch.int8})
_AFTER_A_WRITE = "element at a position that data gives, after a write"


class ElementCopy:
    """A copy of what is at ``place``, or a view of one: good until a tensor of its type is written.

    ``refusal`` is of the region that gives it, where it can't be told from a view.
    """

    def __init__(
        self,
        aliases: AliasLedger,
        variable: TensorVariable,
        place: tuple[TensorVariable, Variable],
        refusal: RegionRefused | None = None,
    ) -> None:
        self._variable = variable
        self.fake = variable.fake
        self.place = place
        self.refusal = refusal
        self.is_put_back = False
        self._aliases = aliases
        self._written = aliases.writes_by_type[self.fake.dtype]
        self._version = version_of(self.fake)
        aliases.elements.append(self)

    def check_read(self) -> None:
        """Refuse to read it after a write."""
        if self._aliases.writes_by_type[self.fake.dtype] != self._written:
            raise self.refusal or Unsupported(_AFTER_A_WRITE, repr(self._variable))

    def check_unwritten(self, count: int) -> None:
        """Refuse it as a region's result where tensors of its type were written since they were ``count``."""
        if self._aliases.writes_by_type[self.fake.dtype] != count:
            raise Unsupported(_AFTER_A_WRITE, repr(self._variable))

    def put_back(self, place: tuple[TensorVariable, Variable]) -> bool:
        """Note that it is written to ``place``; whether it alone was written since, and is from there."""
        is_there = self.place[0].fake is place[0].fake and self.place[1] is place[1]
        written = self._aliases.writes_by_type[self.fake.dtype] - self._written
        if not is_there or written != 1 or version_of(self.fake) == self._version:
            return False
        self.is_put_back = True
        return True

    def _is_written(self) -> bool:
        """Whether the copy has been written; of inference tensors, whether anything of its type has."""
        if self.fake.is_inference():
            return self._aliases.writes_by_type[self.fake.dtype] != self._written
        return version_of(self.fake) != self._version

    def is_unrecorded_view(self) -> bool:
        """Whether eager has a view that was made without gradients and requires some, as its base does."""
        base = self.place[0].fake
        with torch.no_grad():
            return not self.fake.requires_grad and base.view_as(base).requires_grad

    def check(self) -> None:
        """Refuse a region in which the copy was written, and not put back."""
        if not self.is_put_back and self._is_written():
            raise self.refusal or Unsupported(
                "write to an element at a position that data gives", repr(self._variable)
            )


def note_element_view(evaluator: Frame, variable: TensorVariable) -> None:
    """A view of such a copy is one itself."""
    storage, aliases = storage_identity(variable.fake), evaluator.state.aliases
    for element in aliases.elements:
        if storage_identity(element.fake) == storage:
            place = element.place[0], variable
            variable.element = ElementCopy(aliases, variable, place, element.refusal)
            return


def note_element_result(
    evaluator: Frame, place: ProgramPoint, result: TensorVariable, inner: TensorVariable
) -> None:
    """What a region gives is a view of the same tensor as ``inner``, if that is such a copy."""
    if inner.element is None:
        return
    base = inner.element.place[0]
    if result.element is None:
        result.element = ElementCopy(evaluator.state.aliases, result, (base, result))
    result.element.refusal = refuse(evaluator, place, _AFTER_A_WRITE)
    evaluator.state.aliases.note_view(place, result, base)


def is_position(item: Variable) -> bool:
    """Whether an item of a subscript is an integer in a tensor."""
    if isinstance(item, TensorNumberVariable):
        return item.kind is int
    if not isinstance(item, TensorVariable):
        return False
    return item.fake.dim() == 0 and item.fake.dtype in _POSITIONS


def has_position(key: Variable) -> bool:
    """Whether a subscript has an integer in a tensor, as an item or a bound of one."""
    if isinstance(key, SliceVariable):
        return any(map(is_position, key.parts))
    if is_tuple(key):
        return any(map(has_position, key._items))
    return is_position(key)


def with_numbers(evaluator: Frame, key: Variable) -> Variable:
    """The subscript with numbers that the graph reads in the place of integers in tensors."""
    if not has_position(key):
        return key
    if isinstance(key, SliceVariable):
        return SliceVariable(*[with_numbers(evaluator, part) for part in key.parts])
    if is_tuple(key):
        items = [with_numbers(evaluator, item) for item in key._items]
        is_same = all(map(operator.is_, items, key._items))
        return key if is_same else TupleVariable(items)
    if not is_position(key):
        return key
    tensor = key.tensor if isinstance(key, TensorNumberVariable) else key
    assert isinstance(tensor, TensorVariable)
    contents = known_contents(evaluator, tensor) if evaluator.graph.is_in_region else None
    if contents is not None:
        return ConstantVariable(int(contents))
    return read_number(evaluator, tensor) if can_read(evaluator, tensor) else key


def read_at(
    evaluator: Frame,
    view: TensorVariable,
    positions: Sequence[Variable | None],
    place: tuple[TensorVariable, Variable],
) -> TensorVariable:
    """What is at ``positions``, one for each leading dimension of ``view`` (None: all of it).

    ``place``: the tensor and subscript of the program.
    """
    copy = tensor_of(evaluator, torch.ops.aten.index.Tensor, view, _indices(evaluator, positions))
    copy.element = ElementCopy(evaluator.state.aliases, copy, place)
    return copy


def write_at(
    evaluator: Frame,
    view: TensorVariable,
    positions: Sequence[Variable | None],
    value: Variable,
    place: tuple[TensorVariable, Variable],
) -> None:
    """Write ``value`` to what is at ``positions`` of ``view``."""
    if isinstance(value, TensorVariable) and value.element is not None:
        node = value._node if value.element.put_back(place) else value.node
        value = TensorVariable(node, value.fake, None)
    number = number_in_tensor(evaluator, value)
    tensor = value if number is None else number.tensor
    if not isinstance(tensor, TensorVariable):
        raise Unsupported("subscript of a loop's counter and other things", repr(value))
    if tensor.fake.dtype != view.fake.dtype:
        tensor = tensor_of(evaluator, torch.Tensor.to, tensor, view.fake.dtype)
    indices = _indices(evaluator, positions)
    tensor_of(evaluator, torch.ops.aten.index_put_.default, view, indices, tensor)


def _indices(evaluator: Frame, positions: Sequence[Variable | None]) -> ListVariable:
    items: list[Variable] = []
    for position in positions:
        if position is None:
            items.append(ConstantVariable(None))
            continue
        tensor = position.tensor if isinstance(position, TensorNumberVariable) else position
        assert isinstance(tensor, TensorVariable)
        if tensor.fake.dtype != torch.int64:
            tensor = tensor_of(evaluator, torch.Tensor.to, tensor, torch.int64)
        items.append(tensor)
    return ListVariable(items)


# Subscripts of tensors with integers that differ by iteration: a chain of views, dimension by dimension.
#
# Positions that tensors give come last, all together.


def symbolic_subscript(evaluator: Frame, tensor: TensorVariable, arguments: Arguments) -> Variable:
    """``tensor[key]``, or with a second argument ``tensor[key] = value``."""
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
    evaluator: Frame, tensor: TensorVariable, key: Variable
) -> tuple[TensorVariable, list[Variable | None]]:
    """The view that all but positions in tensors make; these, by the dimension of it that they are in."""

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
            tensor = tensor_of(evaluator, torch.unsqueeze, tensor, dimension)
            dimension += 1
        elif isinstance(item, SliceVariable):
            tensor = _sliced(evaluator, tensor, dimension, item)
            dimension += 1
        elif isinstance(item, SymbolicIntegerVariable) or _is_number(item):
            index = in_range(evaluator, item, tensor.fake.shape[dimension])
            tensor = tensor_of(evaluator, torch.select, tensor, dimension, index)
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


def in_range(evaluator: Frame, item: Variable, size: int | torch.SymInt) -> Variable:
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


def _is_negative(evaluator: Frame, item: SymbolicIntegerVariable) -> bool:
    """Whether an index is less than 0 in every iteration, rather than in none."""
    decided = decided_or_none(item.value < 0)
    if decided is None and ends_hold(evaluator, item.value, lambda least, _: least >= 0):
        assume(item.value >= 0)
        return False
    return decide(item.value < 0, repr(item))


def _sliced(
    evaluator: Frame, tensor: TensorVariable, dimension: int, item: SliceVariable
) -> TensorVariable:
    start, stop, step = item.parts
    if all(part.is_none() for part in item.parts):
        return tensor
    size = tensor.fake.shape[dimension]
    start, stop = (_end(evaluator, part, size) for part in (start, stop))
    if step.is_none():
        step = ConstantVariable(1)
    return tensor_of(evaluator, torch.ops.aten.slice.Tensor, tensor, dimension, start, stop, step)


def _end(evaluator: Frame, part: Variable, size: int | torch.SymInt) -> Variable:
    """An end of a slice, counted from the beginning; it has to be inside in every iteration."""

    if is_position(part):
        raise Unsupported("slice that ends where data says", repr(part))
    if not isinstance(part, SymbolicIntegerVariable):
        return part
    if _is_negative(evaluator, part):
        part = _from_start(evaluator, part, size)
        if decided_or_none(part.value >= 0) is not True:
            raise Unsupported("slice that may be cut short", repr(part))
    counters = evaluator.graph.counters
    if any(counters[s].is_size for s in unbacked_symbols(part.value) if s in counters):
        return part  # it may be cut short, which the operator knows
    inside = decided_or_none(part.value <= size) is True
    if not inside and not ends_hold(evaluator, part.value, lambda _, greatest: greatest <= size):
        raise Unsupported("slice that may be cut short", repr(part))
    if not inside:
        assume(part.value <= size)
    return part


def _from_start(
    evaluator: Frame, item: SymbolicIntegerVariable, size: int | torch.SymInt
) -> SymbolicIntegerVariable:
    """A position counted from the end as one from the beginning."""
    if not isinstance(size, int):
        raise Unsupported("subscript from the end of a symbolic size", repr(item))
    moved = item.binary_operation(evaluator, "add", ConstantVariable(size), False)
    assert isinstance(moved, SymbolicIntegerVariable)
    return moved
