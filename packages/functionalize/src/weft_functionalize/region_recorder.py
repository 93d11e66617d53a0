"""Records the graph of one region; what it takes from the block around it besides its operands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from ._torch import expression_of
from .aten_recorder import AtenRecorder
from .functional_graph import InputKind
from .gradient_history import GradientHistory
from .recorded_inputs import RecordedInput
from .region_layouts import eager_layout
from .symbolic_numbers import SYMBOLIC_TYPES, with_numbers
from .tensor_ssa.alias_graph import ViewEdge, build_alias_graph
from .tensor_ssa.layout import same_layout
from .tensor_ssa.region_aliases import RegionAlias
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


@dataclass(frozen=True, eq=False)
class Tie:
    """Two inputs of a region that are one where ``flag``, the parent's, holds; None: it isn't known where.

    An input is a position among the operands, or a tensor of the parent, which is taken.  ``is_carried``: the
    flag is one of each iteration, the first of which begins with ``flag``.  ``may_be_unseen`` as for
    :class:`.RegionAlias`.
    """

    left: int | torch.Tensor
    right: int | torch.Tensor
    flag: torch.Tensor | bool | None
    is_carried: bool = False
    may_be_unseen: bool = False


class RegionRecorder(AtenRecorder):
    """Records a region; a tensor that it reads besides its operands is taken from the parent.

    The operands at the positions in ``views`` are made anew inside as views of what owns their storage, which
    is taken: so the block's alias graph knows that they share it.  ``ties`` are inputs that may be one.
    """

    def __init__(
        self,
        module: torch.fx.GraphModule,
        parent: AtenRecorder,
        views: Mapping[int, ViewPath],
        ties: Sequence[Tie] = (),
    ) -> None:
        super().__init__(module, parent.fake_mode)
        self.effort, self.observe = parent.effort, parent.observe
        self.history = parent.history
        self.first_write = parent.history.write_count
        self.own_history = GradientHistory(parent.history.made)
        self.parent = parent
        self.views = views
        self.ties = ties
        self.carried_flags: list[int] = []  # of ties, as positions in ``inputs``
        self.taken: dict[Any, tuple[Any, int]] = {}  # by id; the parent's, and its position

    def add_user_input(self, position: int, source: torch.fx.Node, value: Any) -> Any:
        fake = super().add_user_input(position, source, value)
        self._note_layout(value)
        return fake

    def _note_layout(self, outer: Any) -> None:
        """Note how eager lays out the input added last, which stands for the parent's ``outer``."""
        if isinstance(outer, torch.Tensor) and self.parent.has_recorded(outer):
            layout = eager_layout(self.parent, self.parent.node_of(outer))
            if not same_layout(layout, outer):
                self.result_layouts[self.inputs[-1].node] = layout

    def _note_input(self, fake: torch.Tensor) -> None:
        """The inputs of ``history`` are those of the whole program."""
        self.own_history.note_input(len(self.inputs) - 1, fake)

    def is_of_input(self, tensor: torch.Tensor) -> bool:
        """A region's inputs are tensors of the parent, which asks the same where it records the region."""
        return False

    def complete_inputs(self, values: Sequence[Any]) -> list[Any]:
        completed = list(values)
        for position, path in self.views.items():
            completed[position] = self._regenerated(path)
        for tie in self.ties:
            left, right = (self.input_of(end).node for end in (tie.left, tie.right))
            pair = RegionAlias(left, right, self._flag(tie), True, tie.may_be_unseen)
            self.region_aliases.append(pair)
        return completed

    def input_of(self, end: int | torch.Tensor) -> RecordedInput:
        """The input at one end of a tie."""
        return self.inputs[end if isinstance(end, int) else self.take(end)]

    def _flag(self, tie: Tie) -> torch.fx.Node | bool | None:
        if tie.is_carried:
            with self.paused():
                value = torch.empty((), dtype=torch.bool)
            self.carried_flags.append(self._add_input("flag", value, requires_grad=False))
            return self.inputs[-1].node
        if isinstance(tie.flag, torch.Tensor):
            return self.inputs[self.take(tie.flag)].node
        return tie.flag

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

    def _lift(self, tensor: torch.Tensor, path: str, kind: InputKind | None = None) -> torch.Tensor:
        known = self._fakes.get(tensor)
        if known is None:
            is_literal = kind is InputKind.LITERAL
            with self.paused():
                find = self.parent.fake_of_literal if is_literal else self.parent.fake_of
                outer = find(tensor)
            known = self.inputs[self.take(outer)].value
            self._fakes[tensor] = known
        return known

    def take(self, outer: Any) -> int:
        """Add a placeholder after the others for the parent's ``outer``; its position.

        ``outer`` is a tensor or a symbolic number.
        """
        key: Any = expression_of(outer) if isinstance(outer, SYMBOLIC_TYPES) else id(outer)
        if key not in self.taken:
            value = outer
            if isinstance(outer, torch.Tensor):
                with self.parent.paused():
                    value = self._own_fake(outer)
            requires_grad = isinstance(outer, torch.Tensor) and outer.requires_grad
            self.taken[key] = (outer, self._add_input("taken", value, requires_grad))
            self._note_layout(outer)
        return self.taken[key][1]

    def _add_input(self, name: str, value: Any, requires_grad: bool) -> int:
        """Add a placeholder after the others; its position in ``inputs``."""
        placeholders = self.graph.find_nodes(op="placeholder")
        with self.graph.inserting_after(placeholders[-1] if placeholders else None):
            node = self._placeholder(name, value)
        self.inputs.append(
            RecordedInput(node, InputKind.CONSTANT, "", None, value, None, requires_grad)
        )
        if isinstance(value, torch.Tensor):
            self._register(value, node)
            self._note_input(value)
        else:
            self.numbers.add(node)
        return len(self.inputs) - 1
