"""Elements of tensors at positions that other tensors give: ``x[t]`` inside a region, read and written.

In eager ``x[t]`` is a view.  The graph has a copy of it, which is as good until something is written: from
then on it is refused, but for ``x[t] += y``, which puts it back.  Outside of regions ``t`` is a number that
the graph reads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.fx

from ..._torch import storage_identity
from ...unsupported import Unsupported
from ..graph.data_dependence import can_read, read_number
from ..graph.versions import version_of
from ..variables.base import Arguments, Variable
from ..variables.constant import ConstantVariable
from ..variables.sequences import ListVariable, SliceVariable, TupleVariable
from ..variables.tensor import TensorVariable
from ..variables.tensor_number import TensorNumberVariable, number_in_tensor
from .evaluation import refuse

if TYPE_CHECKING:
    from ..evaluator import FrameEvaluator
    from ..graph.builder import GraphBuilder
    from .decisions import Place, RegionRefused

_POSITIONS = frozenset({torch.int64, torch.int32, torch.int16, torch.int8})
_AFTER_A_WRITE = "element at a position that data gives, after a write"


class ElementVariable(TensorVariable):
    """A copy of what is at a position, or a view of one, valid until a tensor of its type is written."""

    place: tuple[TensorVariable, Variable]
    refusal: RegionRefused | None  # of the region that gives it, where it can't be told from a view
    settled: bool
    _node: torch.fx.Node
    _builder: GraphBuilder
    _written: int
    _version: int

    @property
    def node(self) -> torch.fx.Node:
        if self._builder.written[self.fake.dtype] != self._written:
            raise self.refusal or Unsupported(_AFTER_A_WRITE, repr(self))
        return self._node

    @node.setter
    def node(self, node: torch.fx.Node) -> None:
        self._node = node

    def check_unwritten(self, count: int) -> None:
        """Refuse it as a region's result where tensors of its type were written since they were ``count``."""
        if self._builder.written[self.fake.dtype] != count:
            raise Unsupported(_AFTER_A_WRITE, repr(self))

    def put_back(self, place: tuple[TensorVariable, Variable]) -> torch.fx.Node:
        """The copy's node, to be written to ``place``; it may have changed itself, if it is from there."""
        is_there = self.place[0].fake is place[0].fake and self.place[1] is place[1]
        written = self._builder.written[self.fake.dtype] - self._written
        if is_there and written == 1 and version_of(self.fake) != self._version:
            self.settled = True
            return self._node
        return self.node

    def check(self) -> None:
        """Refuse a region in which the copy was written, and not put back."""
        if not self.settled and version_of(self.fake) != self._version:
            raise self.refusal or Unsupported(
                "write to an element at a position that data gives", repr(self._node)
            )

    def __repr__(self) -> str:
        return f"Tensor({self._node.name}: {self.fake.dtype}{list(self.fake.shape)})"


def become_element(
    evaluator: FrameEvaluator, variable: TensorVariable, place: tuple[TensorVariable, Variable]
) -> None:
    """Make ``variable``, whose value is a copy of what is at ``place``, one that is valid until a write."""
    builder = evaluator.graph
    changed: Any = variable
    node = changed.__dict__.pop("node")
    changed.__class__ = ElementVariable
    changed.node, changed.place, changed.settled = node, place, False
    changed.refusal = None
    changed._builder, changed._written = builder, builder.written[variable.fake.dtype]
    changed._version = version_of(variable.fake)
    builder.elements.append(changed)


def note_element_view(evaluator: FrameEvaluator, variable: TensorVariable) -> None:
    """A view of such a copy is one itself."""
    storage = storage_identity(variable.fake)
    for element in evaluator.graph.elements:
        if storage_identity(element.fake) == storage:
            become_element(evaluator, variable, (element.place[0], variable))
            assert isinstance(variable, ElementVariable)
            variable.refusal = element.refusal
            return


def note_element_result(
    evaluator: FrameEvaluator, place: Place, result: TensorVariable, inner: TensorVariable
) -> None:
    """What a region gives is a view of the same tensor as ``inner``, if that is such a copy."""
    if not isinstance(inner, ElementVariable):
        return
    base = inner.place[0]
    if not isinstance(result, ElementVariable):
        become_element(evaluator, result, (base, result))
    assert isinstance(result, ElementVariable)
    result.refusal = refuse(evaluator, place, _AFTER_A_WRITE)
    evaluator.state.region_aliases.note_view(place, result, base)


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
    if type(key) is TupleVariable:
        return any(map(has_position, key._items))
    return is_position(key)


def with_numbers(evaluator: FrameEvaluator, key: Variable) -> Variable:
    """The subscript with numbers that the graph reads in the place of integers in tensors."""
    if isinstance(key, SliceVariable):
        return SliceVariable(*[with_numbers(evaluator, part) for part in key.parts])
    if type(key) is TupleVariable:
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
    become_element(evaluator, copy, place)
    return copy


def write_at(
    evaluator: FrameEvaluator,
    view: TensorVariable,
    positions: Sequence[Variable | None],
    value: Variable,
    place: tuple[TensorVariable, Variable],
) -> None:
    """Write ``value`` to what is at ``positions`` of ``view``."""
    if isinstance(value, ElementVariable):
        value = TensorVariable(value.put_back(place), value.fake, None)
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
