"""Calls that make a tensor another view of its memory: ``x.squeeze_()``, ``x.t_()``, ``x.resize_(2)``.

The graph takes such a call of a tensor from outside, and ``detach_`` of what it computes itself, for the
counterpart that gives a view, which the tensor's variable stands for from then on.  Behind the graph the
caller's object is changed by the program's own call.
The graph is given a view made before, so that neither backward nor a number read later sees the change.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any, TypeGuard

import torch
from weft_guards import AttributeSource, IsObject

from ..._torch import OpOverloadPacket, storage_identity
from ...captured_graph import CapturedGraph
from ...unsupported import Unsupported
from ..models.containers.sequences import ListVariable, TupleVariable
from ..models.numbers.representations import NumberVariable
from ..models.torch.tensor import TensorVariable
from ..protocol import Evaluator
from ..regions.decisions import refuse_by
from ..side_effects import LayoutChange, SideEffects
from ..variables.base import Keywords, Variable
from ..variables.constant import ConstantVariable
from .answers import guard_leaf

_KIND = "change of a tensor's metadata"


@functools.cache
def _changes(name: str) -> bool:
    """Whether ATen has an operator of that name, a tensor's method, that changes what the tensor is."""
    if not name.endswith("_") or not hasattr(torch.Tensor, name):
        return False
    packet = getattr(torch.ops.aten, name, None)
    return isinstance(packet, OpOverloadPacket) and any(
        torch.Tag.inplace_view in getattr(packet, overload).tags for overload in packet.overloads()
    )


_OF_STORAGE = frozenset({"set_", "resize_as_"})


def changed_in_place(
    evaluator: Evaluator, target: Any, arguments: Sequence[Variable], keywords: Keywords
) -> Variable | None:
    """What a call that changes the layout of a tensor from outside gives; None for any other call.

    :raises Unsupported: the change is eager's: in a region, of the storage, of a leaf that has gradients or
        of a history that the graph does not know.
    :raises RegionRefused: a region's result is changed that may be one tensor with another.
    """
    name = _name_of(target)
    tensor = arguments[0] if arguments else None
    fake = getattr(tensor, "fake", None)
    if not isinstance(fake, torch.Tensor) or not _changes(name):
        return None
    if isinstance(tensor, TensorVariable) and tensor.node in evaluator.graph.new_leaves:
        raise Unsupported(_KIND, f"{name} of a new leaf")
    if name == "detach_" and _is_computed(tensor, evaluator):
        detached = evaluator.graph.call_method(evaluator, "detach", tensor, [], {})
        assert isinstance(detached, TensorVariable)
        tensor.node, tensor.fake = detached.node, detached.fake
        return tensor
    if fake.requires_grad and (name == "detach_" or not torch.is_grad_enabled()):
        raise Unsupported(_KIND, f"{name} of a tensor with a history")
    given = [row for row in evaluator.graph.given if row[0] == getattr(tensor, "source", None)]
    if type(tensor) is not TensorVariable or not given:
        if any(fake is known for _, _, known in evaluator.graph.given):
            raise Unsupported(_KIND, f"{name} of a tensor from outside")
        _require_alone(evaluator, name, fake)
        return None
    source, value, _ = given[0]
    _require_changeable(evaluator, name, tensor, value)
    guard_leaf(evaluator, source, value)
    if value.requires_grad or name == "detach_":  # which views may refuse
        evaluator.guard(AttributeSource(source, "_base"), IsObject(None))
    own = _constant_arguments(evaluator, name, arguments[1:], keywords)
    view = _view(evaluator, name, tensor, own)
    evaluator.graph.pass_attribute(tensor, value)
    counts = name != "detach_" and not (name == "resize_" and view.fake.shape == fake.shape)
    tensor.node, tensor.fake = view.node, view.fake
    evaluator.side_effects.change_layout(LayoutChange(tensor, name, own, counts))
    return tensor


def _is_computed(tensor: Variable | None, evaluator: Evaluator) -> TypeGuard[TensorVariable]:
    """Whether a tensor with a history is the graph's own, without hooks and no view: none is detached."""
    if type(tensor) is not TensorVariable or evaluator.graph.is_in_region:
        return False
    is_regional = tensor.is_regional or tensor.element is not None
    if is_regional or any(tensor.fake is known for _, _, known in evaluator.graph.given):
        return False
    if tensor.fake._is_view():  # autograd may refuse to say what one is computed from
        return False
    return tensor.fake.grad_fn is not None and not evaluator.graph.hooks.are_on(tensor)


def _require_alone(evaluator: Evaluator, name: str, fake: torch.Tensor) -> None:
    """Refuse the region whose result may be another one, which in the graph would keep its layout."""
    state = evaluator.state
    inputs = [storage_identity(known) for _, _, known in evaluator.graph.given]
    place = state.aliases.another(storage_identity(fake), inputs)
    if place is not None:
        raise refuse_by(state.cache, place, f"{name} of a result that may be another one")


def is_change_of_layout(node: torch.fx.Node) -> bool:
    """Whether a node makes a tensor of the graph's own another view of its memory."""
    return node.op.startswith("call_") and _changes(_name_of(node.target))


def _name_of(target: Any) -> str:
    name: str = target if isinstance(target, str) else getattr(target, "__name__", "")
    return name.partition(".")[0]


def _require_changeable(
    evaluator: Evaluator, name: str, tensor: TensorVariable, value: torch.Tensor
) -> None:
    if evaluator.graph.is_in_region or tensor.is_regional or tensor.element is not None:
        raise Unsupported(_KIND, f"{name} of a tensor from outside, in a region")
    if name in _OF_STORAGE:
        raise Unsupported("storage of a tensor", name)
    if name == "detach_" and value._is_view():
        raise Unsupported(_KIND, f"{name} of a view")
    if value.requires_grad and (value.is_leaf or value._is_view()):
        raise Unsupported(_KIND, f"{name} of a leaf, or a view, that has gradients")


def _constant_arguments(
    evaluator: Evaluator, name: str, arguments: Sequence[Variable], keywords: Keywords
) -> list[Variable]:
    """Arguments by position, which keep their numbers whatever happens to the program's lists."""
    given = [*arguments, *(keywords[key] for key in _by_position(name, len(arguments), keywords))]
    return [_kept(evaluator, name, argument) for argument in given]


def _by_position(name: str, count: int, keywords: Keywords) -> list[str]:
    """The keywords in the order of the parameters that they are for."""
    if not keywords:
        return []
    packet = getattr(torch.ops.aten, name)
    for overload in packet.overloads():
        own = [a.name for a in getattr(packet, overload)._schema.arguments]
        following = own[1 + count : 1 + count + len(keywords)]
        if set(following) == keywords.keys():
            return following
    raise Unsupported(_KIND, f"{name} with keywords {', '.join(keywords)}")


def _kept(evaluator: Evaluator, name: str, argument: Variable) -> Variable:
    if isinstance(argument, (ListVariable, TupleVariable)):
        return TupleVariable([_kept(evaluator, name, a) for a in argument.iterate(evaluator)])
    if isinstance(argument, NumberVariable) or argument.is_constant():
        return argument
    raise Unsupported(_KIND, f"{name} by {argument!r}")


def _view(
    evaluator: Evaluator, name: str, tensor: TensorVariable, arguments: list[Variable]
) -> TensorVariable:
    """The view that a tensor becomes."""
    if name == "resize_":
        arguments = _place_after_resize(evaluator, tensor, arguments)
        name = "as_strided_"
    view = evaluator.graph.call_method(evaluator, name.removesuffix("_"), tensor, arguments, {})
    assert isinstance(view, TensorVariable)
    return view


def _place_after_resize(
    evaluator: Evaluator, tensor: TensorVariable, arguments: list[Variable]
) -> list[Variable]:
    """The sizes and strides that ``resize_`` gives a tensor whose storage is large enough.

    :raises Unsupported: it may not be, or autograd refuses the call.
    """
    shapes = evaluator.graph.shapes
    sizes = arguments
    if len(arguments) == 1 and isinstance(arguments[0], TupleVariable):
        sizes = arguments[0].iterate(evaluator)
    numbers = [getattr(size, "value", None) for size in sizes]
    if tensor.fake.requires_grad or not all(isinstance(n, (int, torch.SymInt)) for n in numbers):
        raise Unsupported("storage of a tensor", f"resize_ of {tensor!r}")
    extents = [int(shapes.specialise(number)) for number in numbers]
    old = tensor.fake
    if any(n < 0 for n in extents) or not shapes.specialise(math.prod(extents) <= old.numel()):
        raise Unsupported("storage of a tensor", "resize_ to more elements")
    strides = [math.prod(max(n, 1) for n in extents[k + 1 :]) for k in range(len(extents))]
    if extents == [shapes.specialise(n) for n in old.shape]:
        strides = [int(shapes.specialise(n)) for n in old.stride()]
    return [TupleVariable([ConstantVariable(n) for n in row]) for row in (extents, strides)]


def with_given_layouts(graph: CapturedGraph, effects: SideEffects) -> CapturedGraph:
    """The graph, with views made on entry in the place of the inputs whose layouts change behind it."""
    return dataclasses.replace(
        graph, input_sources=tuple(map(effects.as_given, graph.input_sources))
    )
