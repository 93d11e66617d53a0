"""Elements of tensors at positions that other tensors give: ``x[t]`` inside a region, read and written.

In eager ``x[t]`` is a view.  The graph has a copy of it, which is as good until something is written: from
then on it is refused, but for ``x[t] += y``, which puts it back.  Outside of regions ``t`` is a number that
the graph reads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from ...._torch import storage_identity
from ....unsupported import Unsupported
from ...graph.data_dependence import can_read, read_number
from ...graph.versions import version_of
from ...models.containers.sequences import ListVariable, TupleVariable
from ...models.containers.slices import SliceVariable
from ...models.containers.unread_tuples import is_tuple
from ...models.numbers.tensor_number import TensorNumberVariable, number_in_tensor
from ...models.torch.tensor import TensorVariable
from ...variables.base import Arguments, Variable
from ...variables.constant import ConstantVariable
from ..evaluation import refuse

if TYPE_CHECKING:
    from ...evaluator import FrameEvaluator
    from ..decisions import Place, RegionRefused
    from ..identity.aliases import AliasLedger

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

    def check(self) -> None:
        """Refuse a region in which the copy was written, and not put back."""
        if not self.is_put_back and version_of(self.fake) != self._version:
            raise self.refusal or Unsupported(
                "write to an element at a position that data gives", repr(self._variable)
            )


def note_element_view(evaluator: FrameEvaluator, variable: TensorVariable) -> None:
    """A view of such a copy is one itself."""
    storage, aliases = storage_identity(variable.fake), evaluator.state.aliases
    for element in aliases.elements:
        if storage_identity(element.fake) == storage:
            place = element.place[0], variable
            variable.element = ElementCopy(aliases, variable, place, element.refusal)
            return


def note_element_result(
    evaluator: FrameEvaluator, place: Place, result: TensorVariable, inner: TensorVariable
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


def with_numbers(evaluator: FrameEvaluator, key: Variable) -> Variable:
    """The subscript with numbers that the graph reads in the place of integers in tensors."""
    if isinstance(key, SliceVariable):
        return SliceVariable(*[with_numbers(evaluator, part) for part in key.parts])
    if is_tuple(key):
        return TupleVariable([with_numbers(evaluator, item) for item in key._items])
    if not is_position(key):
        return key
    tensor = key.tensor if isinstance(key, TensorNumberVariable) else key
    assert isinstance(tensor, TensorVariable)
    return read_number(evaluator, tensor) if can_read(evaluator, tensor) else key


def read_at(
    evaluator: FrameEvaluator,
    view: TensorVariable,
    positions: Sequence[Variable | None],
    place: tuple[TensorVariable, Variable],
) -> TensorVariable:
    """What is at ``positions``, one for each leading dimension of ``view`` (None: all of it).

    ``place``: the tensor and subscript of the program.
    """
    copy = _call(evaluator, torch.ops.aten.index.Tensor, [view, _indices(evaluator, positions)])
    if copy.fake.is_inference():
        raise Unsupported("subscript of a tensor that data gives, in inference mode", repr(copy))
    copy.element = ElementCopy(evaluator.state.aliases, copy, place)
    return copy


def write_at(
    evaluator: FrameEvaluator,
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
        tensor = _call(evaluator, torch.Tensor.to, [tensor, ConstantVariable(view.fake.dtype)])
    indices = _indices(evaluator, positions)
    _call(evaluator, torch.ops.aten.index_put_.default, [view, indices, tensor])


def _indices(evaluator: FrameEvaluator, positions: Sequence[Variable | None]) -> ListVariable:
    items: list[Variable] = []
    for position in positions:
        if position is None:
            items.append(ConstantVariable(None))
            continue
        tensor = position.tensor if isinstance(position, TensorNumberVariable) else position
        assert isinstance(tensor, TensorVariable)
        if tensor.fake.dtype != torch.int64:
            tensor = _call(evaluator, torch.Tensor.to, [tensor, ConstantVariable(torch.int64)])
        items.append(tensor)
    return ListVariable(items)


def _call(
    evaluator: FrameEvaluator, function: Callable[..., Any], arguments: Arguments
) -> TensorVariable:
    made = evaluator.graph.call_function(evaluator, function, arguments, {})
    assert isinstance(made, TensorVariable)
    return made
