"""How eager lays out what a region gives, and views of that: a region's own results have no gaps."""

from __future__ import annotations

from typing import Any

import torch
import torch.fx

from .aten_recorder import AtenRecorder
from .tensor_ssa.alias_graph import AliasGraph, ViewEdge, build_alias_graph
from .tensor_ssa.layout import dense_order, may_lie_as, same_layout
from .unsupported import Unsupported

aten = torch.ops.aten


def eager_layout(
    recorder: AtenRecorder, node: torch.fx.Node, aliases: AliasGraph | None = None
) -> torch.Tensor:
    """A tensor that lies as what eager has for ``node``; its own fake tensor where that does.

    ``aliases`` are those of the recorder's graph, looked for if not given.

    :raises Unsupported: a view that the recorded program takes of a result can't be taken of eager's.
    """
    value: torch.Tensor = node.meta["val"]
    if not recorder.result_layouts:
        return value
    aliases = build_alias_graph(recorder.graph) if aliases is None else aliases
    layout = recorder.result_layouts.get(aliases.origin(node))
    if layout is None:
        return value
    with recorder.paused(), torch.no_grad():
        for edge in reversed(list(aliases.path_to_origin(node))):
            layout = _taken(edge, layout)
    return layout


def _taken(edge: ViewEdge, base: torch.Tensor) -> torch.Tensor:
    access = edge.access
    if access.target is aten.as_strided.default:  # places of a tensor that lies otherwise
        raise Unsupported("strides of what a region gives", str(tuple(base.stride())))
    rest: Any = (access.args[1:], access.kwargs)
    args, kwargs = torch.fx.map_arg(rest, lambda node: node.meta["val"])
    assert callable(access.target)
    try:
        made = access.target(base, *args, **kwargs)
    except RuntimeError as error:  # no view of what lies so
        raise Unsupported("strides of what a region gives", str(tuple(base.stride()))) from error
    view: torch.Tensor = made if edge.index is None else made[edge.index]
    return view


def returned_layout(
    recorder: AtenRecorder, node: torch.fx.Node, aliases: AliasGraph
) -> torch.Tensor:
    """:func:`eager_layout` of what is returned.

    :raises Unsupported: no copy lies so, either.
    """
    layout, value = eager_layout(recorder, node, aliases), node.meta["val"]
    if layout is not value and not may_lie_as(layout, value):
        raise Unsupported("strides of what a region gives", str(tuple(layout.stride())))
    return layout


def note_gaps(
    parent: AtenRecorder, result: torch.fx.Node, *values: tuple[AtenRecorder, Any]
) -> None:
    """Note how eager gives a region's ``result`` if that has gaps, and all ``values`` lie alike.

    These are what the region may give, each with the recorder of its block.
    """
    if not all(isinstance(value, torch.Tensor) for _, value in values):
        return
    first, *others = (eager_layout(block, block.node_of(value)) for block, value in values)
    if dense_order(first) is None and all(same_layout(first, other) for other in others):
        parent.result_layouts[result] = first
