"""Records the graph of one region; what it takes from the block around it besides its operands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from ._torch import expression_of
from .aten_recorder import AtenRecorder, RecordedInput
from .functional_graph import InputKind
from .symbolic_numbers import SYMBOLIC_TYPES, with_numbers
from .tensor_ssa.alias_graph import ViewEdge, build_alias_graph
from .unsupported import Unsupported


@dataclass(frozen=True)
class ViewPath:
    """How an operand is a view: the tensor that owns its storage, and the views from there to it."""

    origin: torch.Tensor
    edges: tuple[ViewEdge, ...]


def view_path(parent: AtenRecorder, tensor: torch.Tensor) -> ViewPath:
    """The path by which ``parent`` has recorded ``tensor`` to be a view."""
    aliases = build_alias_graph(parent.graph)
    node = parent.node_of(tensor)
    edges = tuple(aliases.path_to_origin(node))[::-1]
    origin = aliases.origin(node).meta["val"]
    if any(edge.access.target is torch.ops.aten.as_strided.default for edge in edges):
        raise Unsupported("write in a region to a strided view of a tensor", node.name)
    if not parent.has_recorded(origin):
        raise Unsupported("write in a region to a tensor whose metadata has changed", node.name)
    return ViewPath(origin, edges)


class RegionRecorder(AtenRecorder):
    """Records a region; a tensor that it reads besides its operands is taken from the parent.

    The operands at the positions in ``views`` are made anew inside as views of what owns their storage, which
    is taken: so the block's alias graph knows that they share it.
    """

    def __init__(
        self,
        module: torch.fx.GraphModule,
        parent: AtenRecorder,
        views: Mapping[int, ViewPath],
    ) -> None:
        super().__init__(module, parent.fake_mode)
        self.peels_clobbering_loops = parent.peels_clobbering_loops
        self.parent = parent
        self.views = views
        self.taken: dict[Any, tuple[Any, int]] = {}  # by id; the parent's, and its position

    def complete_inputs(self, values: Sequence[Any]) -> list[Any]:
        completed = list(values)
        for position, path in self.views.items():
            completed[position] = self._regenerated(path)
        return completed

    def _regenerated(self, path: ViewPath) -> torch.Tensor:
        tensor: torch.Tensor = self.inputs[self.take(path.origin)].value
        for edge in path.edges:
            rest = torch.fx.map_arg(
                (edge.access.args[1:], edge.access.kwargs), lambda node: node.meta["val"]
            )
            with_numbers(rest, self.take)
            args, kwargs = rest
            assert callable(edge.access.target)
            with self:
                made = edge.access.target(tensor, *args, **kwargs)
            tensor = made if edge.index is None else made[edge.index]
        return tensor

    def _lift(self, tensor: torch.Tensor, path: str) -> torch.Tensor:
        known = self._fakes.get(tensor)
        if known is None:
            with self.paused():
                outer = self.parent.fake_of(tensor)
            known = self.inputs[self.take(outer)].value
            self._fakes[tensor] = known
        return known

    def take(self, outer: Any) -> int:
        """Add a placeholder after the others for the parent's ``outer``; its position.

        ``outer`` is a tensor or a symbolic number.
        """
        key: Any = expression_of(outer) if isinstance(outer, SYMBOLIC_TYPES) else id(outer)
        if key not in self.taken:
            placeholders = self.graph.find_nodes(op="placeholder")
            value = outer
            if isinstance(outer, torch.Tensor):
                with self.parent.paused():
                    value = self._own_fake(outer)
            with self.graph.inserting_after(placeholders[-1] if placeholders else None):
                node = self._placeholder("taken", value)
            self.taken[key] = (outer, len(self.inputs))
            requires_grad = isinstance(outer, torch.Tensor) and outer.requires_grad
            self.inputs.append(
                RecordedInput(node, InputKind.CONSTANT, "", None, value, None, requires_grad)
            )
            if isinstance(value, torch.Tensor):
                self._register(value, node)
            else:
                self.numbers.add(node)
        return self.taken[key][1]
