"""Assign for every view operator: the base with the viewed part replaced.

The paper's Assign(v, s, [.]), as a functional ATen operator.  Access(v, [.]) is the view operator itself.
Each rule gets the base, the new value of the view, and the node of the view operator.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.fx

from .._torch import OpOverload
from ..unsupported import Unsupported
from .alias_graph import ViewEdge, argument_value
from .emitter import Emitter
from .layout import overlaps_itself, with_placement_of

aten = torch.ops.aten

AssignRule = Callable[[Emitter, torch.fx.Node, torch.fx.Node, ViewEdge], torch.fx.Node]

_RULES: dict[OpOverload, AssignRule] = {}


def assign_rule(*operators: OpOverload) -> Callable[[AssignRule], AssignRule]:
    """Register how a write through a view made by one of ``operators`` reaches its base."""

    def register(rule: AssignRule) -> AssignRule:
        for operator in operators:
            _RULES[operator] = rule
        return rule

    return register


def emit_assign(
    emit: Emitter, base: torch.fx.Node, value: torch.fx.Node, edge: ViewEdge
) -> torch.fx.Node:
    """Insert the new version of ``base`` after ``edge.view`` became ``value``."""
    target = edge.access.target
    assert isinstance(target, OpOverload)
    rule = _RULES.get(target)
    if rule is None:
        raise Unsupported("write through a view", str(target))
    return rule(emit, base, value, edge)


def emit_access(emit: Emitter, base: torch.fx.Node, edge: ViewEdge) -> torch.fx.Node:
    """Insert the view ``edge.view`` of a new version of its base."""
    target = edge.access.target
    assert isinstance(target, OpOverload)
    if target is aten.as_strided.default:
        return emit_as_strided(emit, base, edge.base.meta["val"], edge.view.meta["val"])
    if edge.index is None:
        rest, kwargs = edge.access.args[1:], edge.access.kwargs
        try:
            return emit.call(target, base, *rest, **kwargs)
        except (RuntimeError, ValueError):
            # The version's strides do not allow the view that its predecessor's did.
            dense = emit.call(aten.clone.default, base, memory_format=torch.contiguous_format)
            return emit.call(target, dense, *rest, **kwargs)
    if target is aten.unbind.int:
        return emit.call(aten.select.int, base, _dim(edge), edge.index)
    start = _split_start(edge)
    return emit.call(
        aten.slice.Tensor, base, _dim(edge), start, start + edge.view.meta["val"].size(_dim(edge))
    )


def emit_as_strided(
    emit: Emitter, base: torch.fx.Node, old: torch.Tensor, view: torch.Tensor
) -> torch.fx.Node:
    """The elements of ``base`` that ``view`` has of ``old``, of which ``base`` is a new version."""
    base = with_placement_of(emit, base, old)
    offset = view.storage_offset() - old.storage_offset()
    return emit.call(aten.as_strided.default, base, list(view.shape), list(view.stride()), offset)


def _value(edge: ViewEdge, name: str) -> Any:
    return argument_value(edge.access, name)


def _dim(edge: ViewEdge) -> int:
    dim: int = _value(edge, "dim")
    return dim


def _split_start(edge: ViewEdge) -> int:
    assert edge.index is not None
    parts = edge.access.meta["val"]
    start = 0
    for part in parts[: edge.index]:
        start = start + part.size(_dim(edge))
    return start


def emit_reshape(emit: Emitter, node: torch.fx.Node, size: list[int]) -> torch.fx.Node:
    """``node`` with another shape; copied first where its strides do not allow a view."""
    if list(node.meta["val"].shape) == size:
        return node
    try:
        return emit.call(aten.view.default, node, size)
    except (RuntimeError, ValueError):
        # No view of these strides exists; the partly built node has no users.
        dense = emit.call(aten.clone.default, node, memory_format=torch.contiguous_format)
        return emit.call(aten.view.default, dense, size)


@assign_rule(aten.alias.default, aten.detach.default)
def _assign_alias(
    emit: Emitter, base: torch.fx.Node, value: torch.fx.Node, edge: ViewEdge
) -> torch.fx.Node:
    return value


@assign_rule(aten.select.int)
def _assign_select(
    emit: Emitter, base: torch.fx.Node, value: torch.fx.Node, edge: ViewEdge
) -> torch.fx.Node:
    return emit.call(aten.select_scatter.default, base, value, _dim(edge), _value(edge, "index"))


@assign_rule(aten.slice.Tensor)
def _assign_slice(
    emit: Emitter, base: torch.fx.Node, value: torch.fx.Node, edge: ViewEdge
) -> torch.fx.Node:
    bounds = (_value(edge, "start"), _value(edge, "end"), _value(edge, "step"))
    return emit.call(aten.slice_scatter.default, base, value, _dim(edge), *bounds)


@assign_rule(aten.diagonal.default)
def _assign_diagonal(
    emit: Emitter, base: torch.fx.Node, value: torch.fx.Node, edge: ViewEdge
) -> torch.fx.Node:
    which = (_value(edge, "offset"), _value(edge, "dim1"), _value(edge, "dim2"))
    return emit.call(aten.diagonal_scatter.default, base, value, *which)


@assign_rule(aten.unbind.int)
def _assign_unbind(
    emit: Emitter, base: torch.fx.Node, value: torch.fx.Node, edge: ViewEdge
) -> torch.fx.Node:
    return emit.call(aten.select_scatter.default, base, value, _dim(edge), edge.index)


@assign_rule(
    aten.split.Tensor,
    aten.split_with_sizes.default,
    aten.unsafe_split.Tensor,
    aten.unsafe_split_with_sizes.default,
)
def _assign_split(
    emit: Emitter, base: torch.fx.Node, value: torch.fx.Node, edge: ViewEdge
) -> torch.fx.Node:
    start = _split_start(edge)
    end = start + edge.view.meta["val"].size(_dim(edge))
    return emit.call(aten.slice_scatter.default, base, value, _dim(edge), start, end)


@assign_rule(
    aten.view.default,
    aten._unsafe_view.default,
    aten._reshape_alias.default,
    aten.expand.default,  # of one element a copy: see expanded_writes
    aten.squeeze.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
    aten.unsqueeze.default,
)
def _assign_reshaped(
    emit: Emitter, base: torch.fx.Node, value: torch.fx.Node, edge: ViewEdge
) -> torch.fx.Node:
    return emit_reshape(emit, value, list(edge.base.meta["val"].shape))


@assign_rule(aten.permute.default)
def _assign_permuted(
    emit: Emitter, base: torch.fx.Node, value: torch.fx.Node, edge: ViewEdge
) -> torch.fx.Node:
    dims = _value(edge, "dims")
    rank = len(dims)
    inverse = [0] * rank
    for position, dim in enumerate(dims):
        inverse[dim % rank] = position
    return emit.call(aten.permute.default, value, inverse)


@assign_rule(aten.t.default)
def _assign_t(
    emit: Emitter, base: torch.fx.Node, value: torch.fx.Node, edge: ViewEdge
) -> torch.fx.Node:
    return emit.call(aten.t.default, value)


@assign_rule(aten.transpose.int)
def _assign_transposed(
    emit: Emitter, base: torch.fx.Node, value: torch.fx.Node, edge: ViewEdge
) -> torch.fx.Node:
    return emit.call(aten.transpose.int, value, _value(edge, "dim0"), _value(edge, "dim1"))


@assign_rule(aten.view_as_real.default)
def _assign_view_as_real(
    emit: Emitter, base: torch.fx.Node, value: torch.fx.Node, edge: ViewEdge
) -> torch.fx.Node:
    dense = emit.call(aten.clone.default, value, memory_format=torch.contiguous_format)
    return emit.call(aten.view_as_complex.default, dense)


@assign_rule(aten.view_as_complex.default)
def _assign_view_as_complex(
    emit: Emitter, base: torch.fx.Node, value: torch.fx.Node, edge: ViewEdge
) -> torch.fx.Node:
    return emit.call(aten.view_as_real.default, value)


@assign_rule(aten._conj.default, aten._neg_view.default)
def _assign_read_otherwise(
    emit: Emitter, base: torch.fx.Node, value: torch.fx.Node, edge: ViewEdge
) -> torch.fx.Node:
    """The base holds the conjugate or the negative of what its view reads: lazily where it did before."""
    old = edge.base.meta["val"]
    if edge.access.target is aten._conj.default:
        conjugate = aten._conj if old.is_conj() else aten._conj_physical
        return emit.call(conjugate.default, value)
    return emit.call((aten._neg_view if old.is_neg() else aten.neg).default, value)


@assign_rule(aten.view.dtype)
def _assign_view_dtype(
    emit: Emitter, base: torch.fx.Node, value: torch.fx.Node, edge: ViewEdge
) -> torch.fx.Node:
    if not value.meta["val"].is_contiguous():
        value = emit.call(aten.clone.default, value, memory_format=torch.contiguous_format)
    return emit.call(aten.view.dtype, value, edge.base.meta["val"].dtype)


@assign_rule(aten.as_strided.default)
def _assign_strided(
    emit: Emitter, base: torch.fx.Node, value: torch.fx.Node, edge: ViewEdge
) -> torch.fx.Node:
    view, old = edge.view.meta["val"], edge.base.meta["val"]
    if overlaps_itself(view):
        raise Unsupported("write through overlapping elements", str(edge.access.target))
    base = with_placement_of(emit, base, old)
    placed = base.meta["val"]
    if placed.requires_grad and not placed.is_contiguous():
        # Torch's operator has an assertion there.
        raise Unsupported("write through as_strided of a tensor with gradients", "not contiguous")
    offset = view.storage_offset() - old.storage_offset()
    return emit.call(
        aten.as_strided_scatter.default, base, value, list(view.shape), list(view.stride()), offset
    )


@assign_rule(aten.unfold.default)
def _assign_unfolded(
    emit: Emitter, base: torch.fx.Node, value: torch.fx.Node, edge: ViewEdge
) -> torch.fx.Node:
    """Windows that do not overlap are a strided view of a contiguous copy, whatever the base's strides."""
    size, step = _value(edge, "size"), _value(edge, "step")
    dense = emit.call(aten.clone.default, base, memory_format=torch.contiguous_format)
    if step < size and edge.view.meta["val"].numel() > size:
        raise Unsupported("write through overlapping elements", str(edge.access.target))
    stride = list(dense.meta["val"].stride())
    if not stride:
        return emit_reshape(emit, value, [])
    window = stride[_value(edge, "dimension")]
    stride[_value(edge, "dimension")] *= step
    shape = list(value.meta["val"].shape)
    return emit.call(aten.as_strided_scatter.default, dense, value, shape, [*stride, window], 0)
