"""Which outputs have their gradients by others: results, inputs' new values, and views among the results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.fx

from ._torch import known_equal, view_base
from .aten_recorder import AtenRecorder
from .functional_graph import (
    OutputDescriptor,
    OutputKind,
    ViewOfInput,
    ViewOfOutput,
    WholeOutput,
    view_key,
)
from .tensor_ssa.layout import dense_order, overlaps_itself


def note_ways_through_others(
    descriptors: list[OutputDescriptor],
    differentiated: Mapping[int, Sequence[torch.Tensor]],
    returned: Sequence[torch.fx.Node],
    outputs: Sequence[Any],
    recorder: AtenRecorder,
) -> bool:
    """Say what outputs lead through; gives whether any do where inputs lie in one storage.

    ``differentiated`` are the recorder's tensors that have gradients by an output of the graph, by its index;
    ``returned`` is what the graph gives before conversion, ``outputs`` what the user gets.
    """
    values: dict[int, torch.Tensor] = {}
    described: dict[int, int] = {}
    for k, d in enumerate(descriptors):
        if d.graph_index in differentiated and d.kind is not OutputKind.ALIAS_BASE:
            assert d.graph_index is not None
            described[d.graph_index] = k
            values[d.graph_index] = differentiated[d.graph_index][0]
        elif d.kind is OutputKind.USER_OUTPUT and _leads_on(d):
            assert d.position is not None
            described[view_key(d.position)] = k
            values[view_key(d.position)] = outputs[d.position]
    hidden = _add_bases(descriptors, returned, outputs, described, values)
    if len(values) < 2:
        return False
    ways = recorder.history.leads_through(values)
    if recorder.shared:
        return any(ways.values())
    unknown = hidden.keys() | _made_behind(descriptors, ways)
    for index, through in ways.items():
        k = described[index]
        descriptors[k] = replace(descriptors[k], through=through - unknown)
    for k, d in enumerate(descriptors):
        if d.kind is OutputKind.ALIAS_BASE and d.graph_index in hidden:
            through = ways[hidden[d.graph_index]] - unknown
            descriptors[k] = replace(d, through=through)
        elif isinstance(d.alias, (ViewOfInput, ViewOfOutput)) and d.through:
            alias = replace(d.alias, made_of=_made_of(d, descriptors, outputs))
            descriptors[k] = replace(d, alias=alias)
    return False


def _leads_on(d: OutputDescriptor) -> bool:
    """Whether a user output is a view, made in each call, that autograd goes on from."""
    is_view = isinstance(d.alias, (ViewOfInput, ViewOfOutput))
    return is_view and d.requires_grad and not d.unrecorded and bool(d.reached)


def _add_bases(
    descriptors: Sequence[OutputDescriptor],
    returned: Sequence[torch.fx.Node],
    outputs: Sequence[Any],
    described: dict[int, int],
    values: dict[int, torch.Tensor],
) -> dict[int, int]:
    """Add what returned views are of; gives those, by index, that are not returned themselves.

    Of what eager returns, but as a view of more, this also says which of the ``values`` it is.
    """
    hidden: dict[int, int] = {}
    keys = {id(value): key for key, value in values.items()}
    places = {
        d.graph_index: k for k, d in enumerate(descriptors) if d.kind is OutputKind.ALIAS_BASE
    }
    for d in descriptors:
        if isinstance(d.alias, WholeOutput) and d.requires_grad:
            index, base = d.alias.output_index, outputs[d.position or 0]
            hidden.pop(index, None)
        elif isinstance(d.alias, ViewOfOutput) and _leads_on(d):
            index, view = d.alias.output_index, outputs[d.position or 0]
            base = view_base(view)
            if index in values or not base.requires_grad:
                continue
            if not _lie_alike(base, returned[index].meta["val"]):
                continue
            hidden[index] = keys.get(id(base), index)
            if hidden[index] != index:
                continue
        else:
            continue
        described[index], values[index] = places[index], base
    return hidden


def _lie_alike(base: torch.Tensor, whole: torch.Tensor) -> bool:
    """Whether what eager knows views to be of has the elements that ``whole`` has, in their order."""
    if base.dtype != whole.dtype or not known_equal(base.storage_offset(), whole.storage_offset()):
        return False
    if len(base.shape) == len(whole.shape):
        pairs = zip((*base.shape, *base.stride()), (*whole.shape, *whole.stride()), strict=True)
        return all(known_equal(*pair) for pair in pairs)
    orders = dense_order(base), dense_order(whole)
    dense = all(order is not None and order == sorted(order) for order in orders)
    return dense and known_equal(base.numel(), whole.numel())


def _made_behind(
    descriptors: Sequence[OutputDescriptor], ways: Mapping[int, frozenset[int]]
) -> set[int]:
    """The views of inputs that can be made only behind a write that they don't lead through."""
    written = {
        d.input_index: d.graph_index for d in descriptors if d.kind is OutputKind.MUTATED_INPUT
    }
    return {
        view_key(d.position or 0)
        for d in descriptors
        if isinstance(d.alias, ViewOfInput)
        and d.alias.input_index in written
        and written[d.alias.input_index] not in ways.get(view_key(d.position or 0), ())
    }


def _made_of(
    d: OutputDescriptor, descriptors: Sequence[OutputDescriptor], outputs: Sequence[Any]
) -> int | None:
    """The user output, by position, that a view is the nearest view of; None if that can't be said in places.

    Of elements that lie in one place autograd would give each the same part of a gradient.
    """
    found = [
        other
        for other in descriptors
        if other.position is not None
        and view_key(other.position) in d.through
        and _base_of(other) == _base_of(d)
    ]
    nearest = max(found, key=lambda other: len(other.through), default=None)
    if nearest is None or nearest.position is None:
        return None
    assert isinstance(d.alias, (ViewOfInput, ViewOfOutput))
    assert isinstance(nearest.alias, (ViewOfInput, ViewOfOutput))
    if d.alias.reading != nearest.alias.reading:
        return None
    return None if overlaps_itself(outputs[nearest.position]) else nearest.position


def _base_of(d: OutputDescriptor) -> tuple[bool, int] | None:
    match d.alias:
        case ViewOfInput(index):
            return True, index
        case ViewOfOutput(index):
            return False, index
    return None
