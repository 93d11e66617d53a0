"""Renaming of algorithm 1: uses after an Update mean the new version, then Updates are removed.

A new version can have other strides than the value it replaces.  Fake values are recomputed from there on
where they change, and operators that depend on strides get what they were traced with.
"""

from __future__ import annotations

from collections.abc import Set

import torch
import torch.fx

from .._torch import HigherOrderOperator, OpOverload, known_equal
from ..gradient_rules import is_gradient_rule
from .alias_graph import aliased_argument
from .emitter import Emitter, fake_value
from .inner_gradients import inner_gradients
from .layout import same_layout, with_placement_of
from .rewrite_mutation import update
from .view_operators import emit_as_strided

aten = torch.ops.aten


def rename(graph: torch.fx.Graph) -> dict[torch.fx.Node, torch.fx.Node]:
    """Resolve every Update; returns the last version of each value that has one."""
    renaming = _Renaming(graph)
    for node in list(graph.nodes):
        renaming.visit(node)
    return renaming.version


class _Renaming:
    def __init__(self, graph: torch.fx.Graph) -> None:
        self.version: dict[torch.fx.Node, torch.fx.Node] = {}
        self._emit = Emitter(graph)
        # Nodes whose fake values may differ in strides from what the program was traced with.
        self._changed: dict[torch.fx.Node, torch.Tensor] = {}
        # What nodes whose fake values were recomputed gave when the program was traced.
        self._traced: dict[torch.fx.Node, torch.Tensor] = {}
        # By what has taken a node's place: a write to the one is a write to the other.
        self._replaced: dict[torch.fx.Node, torch.fx.Node] = {}

    def visit(self, node: torch.fx.Node) -> None:
        if node.op == "output":
            return  # the caller chooses the outputs
        if node.target is update:
            new, old = node.args
            assert isinstance(new, torch.fx.Node)
            assert isinstance(old, torch.fx.Node)
            new = self.version.get(new, new)
            self.version[old] = new
            if old in self._replaced:
                self.version[self._replaced[old]] = new
            traced = self._traced.get(old, old.meta["val"])
            if not _same_placement(new.meta["val"], traced):
                self._changed[new] = traced
            node.graph.erase_node(node)
            return
        used = node.all_input_nodes
        renamed = {self.version[argument] for argument in used if argument in self.version}
        if renamed:
            # All at once: a version may be an argument that has a newer version itself.
            node.args = torch.fx.map_arg(node.args, self._latest)
            node.kwargs = torch.fx.map_arg(node.kwargs, self._latest)
            used = node.all_input_nodes
        if node.op == "call_function" and any(argument in self._changed for argument in used):
            self._recompute(node, renamed)

    def _latest(self, variable: torch.fx.Node) -> torch.fx.Node:
        return self.version.get(variable, variable)

    def _recompute(self, node: torch.fx.Node, renamed: Set[torch.fx.Node]) -> None:
        if node.target is inner_gradients:
            return  # they are those of what it is given, and not of copies
        if isinstance(node.target, HigherOrderOperator) or is_gradient_rule(node.target):
            self._restore_argument_layouts(node)  # its blocks are converted for those
            return
        traced = self._traced[node] = node.meta["val"]
        if node.target is aten.as_strided.default:
            self._read_strided(node, renamed)
            return
        if isinstance(node.target, OpOverload) and _depends_on_strides(node.target):
            self._restore_argument_layouts(node)
        try:
            node.meta["val"] = fake_value(node)
        except (RuntimeError, ValueError):
            if not isinstance(node.target, OpOverload) or aliased_argument(node.target) is None:
                raise
            self._copy_before_view(node)
        if not _same_value(node.meta["val"], traced):
            self._changed[node] = traced

    def _restore_argument_layouts(self, node: torch.fx.Node) -> None:
        self._emit.before(node)
        for argument in node.all_input_nodes:
            if argument in self._changed:
                copy = with_placement_of(self._emit, argument, self._changed[argument])
                node.replace_input_with(argument, copy)

    def _read_strided(self, node: torch.fx.Node, renamed: Set[torch.fx.Node]) -> None:
        """Read what was traced; a view that was made of this very version has its placement already."""
        base = node.args[0]
        assert isinstance(base, torch.fx.Node)
        traced = self._changed[base] if base in renamed else self._traced.get(base)
        if traced is not None:
            self._emit.before(node)
            self._replace(node, emit_as_strided(self._emit, base, traced, node.meta["val"]))

    def _copy_before_view(self, node: torch.fx.Node) -> None:
        """The new version's strides do not allow the view that was traced: view a contiguous copy."""
        base = node.args[0]
        assert isinstance(base, torch.fx.Node)
        emit = self._emit.before(node)
        dense = emit.call(aten.clone.default, base, memory_format=torch.contiguous_format)
        node.replace_input_with(base, dense)
        node.meta["val"] = fake_value(node)

    def _replace(self, node: torch.fx.Node, new: torch.fx.Node) -> None:
        """Put ``new`` in the place of ``node``, of which it is an equal with another placement."""
        node.replace_all_uses_with(new)
        node.graph.erase_node(node)
        self.version[node] = new
        self._replaced[new] = node
        if not _same_placement(new.meta["val"], node.meta["val"]):
            self._changed[new] = node.meta["val"]


def _depends_on_strides(target: OpOverload) -> bool:
    """Random operators fill memory in its order, so the layout decides which element gets which."""
    return (
        target is aten.as_strided_scatter.default
        or torch.Tag.nondeterministic_seeded in target.tags
    )


def _same_placement(left: torch.Tensor, right: torch.Tensor) -> bool:
    return same_layout(left, right) and known_equal(left.storage_offset(), right.storage_offset())


def _same_value(left: object, right: object) -> bool:
    if isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor):
        return _same_placement(left, right)
    if isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)):
        return all(_same_value(a, b) for a, b in zip(left, right, strict=True))
    return bool(left == right)
