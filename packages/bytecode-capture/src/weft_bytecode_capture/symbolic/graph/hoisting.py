"""Calls whose results' sizes depend on data, made before the branch that they are in.

``rows, = torch.where(mask)`` in a branch gives a size that nothing outside knows, nor its backward pass.
Where the call and all that it is computed from only look at integers and booleans, and can't raise, it runs
before the branch instead, whichever branch is taken: the branch is given tensors of a size that is known.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from ..protocol import Evaluator, Graph
from .known_contents import known_contents
from .purity import has_effect
from .storages import leaves, storages
from .unread_results import may_raise

HOISTED = "hoisted"
"""Set in the ``meta`` of a node that was made for a branch, and runs before it."""

_MAX_NODES = 64
_SIZED_BY_DATA = frozenset({torch.where, torch.nonzero, "nonzero", "where", "argwhere", "unique"})
_SIZED_BY_DATA |= {torch.argwhere, torch.unique}
_Given = tuple[tuple[Any, ...], dict[str, Any]]


class _MustStay(Exception):
    """A node can't run before the branches that it is in."""


@contextlib.contextmanager
def placed(evaluator: Evaluator, target: Any, given: _Given, value: Any) -> Iterator[_Given]:
    """Let the graph stand where a call of ``target`` goes; ``given`` as nodes that it can have there.

    That is before the branches at hand where the size of ``value``, its result, depends on data and nothing
    keeps the call in them.  What it is computed from is then computed there once more.
    """
    moved = None
    if is_in_branch(evaluator) and target in _SIZED_BY_DATA:
        moved = _outside(evaluator, given, value)
    if moved is None:
        yield given
        return
    with before_branches(evaluator):
        yield moved


def is_in_branch(evaluator: Evaluator) -> bool:
    """Whether the graph at hand is that of a branch, and of no loop."""
    return evaluator.graph.is_in_region and not evaluator.graph.is_repeated


@contextlib.contextmanager
def before_branches(evaluator: Evaluator) -> Iterator[None]:
    """Nodes go before the branches at hand meanwhile, whichever is taken."""
    graph = evaluator.graph
    inner, graph.graph = graph.graph, graph.outermost
    last = graph.outermost._root.prev
    try:
        yield
    finally:
        graph.graph = inner
    while last.next is not graph.outermost._root:
        last = last.next
        last.meta[HOISTED] = True


def _outside(evaluator: Evaluator, given: _Given, value: Any) -> _Given | None:
    """A call's arguments as nodes of the outermost graph; None if the call must stay where it is."""
    cone = _Cone(evaluator)
    try:
        cone.require_plain(value)
        moved: _Given = torch.fx.map_arg(given, cone.outside)
    except _MustStay:
        return None
    return moved


@dataclass
class _Value:
    """What a node gives."""

    node: torch.fx.Node
    fake: torch.Tensor


class _Cone:
    """What a call in a branch is computed from, as nodes of the outermost graph."""

    def __init__(self, evaluator: Evaluator) -> None:
        self._evaluator = evaluator
        self._graph: Graph = evaluator.graph
        self._aliases = evaluator.state.aliases
        self._copies: dict[torch.fx.Node, torch.fx.Node] = {}

    def require_plain(self, value: Any, *, is_given: bool = False) -> None:
        """Values that may have gradients, or that the branch may have written to, stay in it.

        ``is_given``: it is there before the branch, whatever its type.
        """
        tensors = [leaf for leaf in leaves(value) if isinstance(leaf, torch.Tensor)]
        has_floats = any(t.is_floating_point() or t.is_complex() for t in tensors)
        if not tensors or (has_floats and not is_given):
            raise _MustStay
        if self._aliases.written_since_entry(storages(tensors)):
            raise _MustStay

    def outside(self, node: torch.fx.Node) -> torch.fx.Node:
        value = node.meta.get("example_value")
        is_given = node.graph is self._graph.outermost or node.target is operator.getitem
        self.require_plain(value, is_given=is_given)
        if node.graph is self._graph.outermost:
            return node
        if node not in self._copies:
            self._require_harmless(node)
            if len(self._copies) >= _MAX_NODES:
                raise _MustStay
            inside = torch.fx.map_arg((node.args, node.kwargs), self.outside)
            copy = self._graph.outermost.create_node(node.op, node.target, *inside)
            copy.meta.update(node.meta)
            copy.meta[HOISTED] = True
            self._copies[node] = copy
        return self._copies[node]

    def _require_harmless(self, node: torch.fx.Node) -> None:
        if node.op not in ("call_function", "call_method"):
            raise _MustStay
        has_place = node.target is operator.getitem and len(node.all_input_nodes) > 1
        if has_effect(node) or ((may_raise(node) or has_place) and not self._is_known_place(node)):
            raise _MustStay

    def _is_known_place(self, node: torch.fx.Node) -> bool:
        """Whether a subscript is a tensor of places that are known, and inside."""
        if node.target is not operator.getitem or not isinstance(node.args[1], torch.fx.Node):
            return False
        tensor, places = (argument.meta["example_value"] for argument in node.all_input_nodes)
        size = tensor.shape[0] if isinstance(tensor, torch.Tensor) and tensor.dim() else None
        contents = known_contents(self._evaluator, _Value(node.args[1], places))
        if contents is None or contents.dtype is torch.bool or type(size) is not int:
            return False
        return all(0 <= place < size for place in contents.flatten().tolist())
