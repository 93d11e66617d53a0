"""The alias graph: which values are views of which, from the operators' schemas.

Edges are memory dependencies, each a must-alias (paper section 2.3): a view has one base.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
import torch.fx

from .._torch import OpOverload, known_equal, known_true, schema_arguments
from ..symbolic_numbers import NumberNodes, with_numbers
from ..unsupported import Unsupported
from .emitter import GRADIENTS_DISABLED
from .layout import dense_order

aten = torch.ops.aten

# Operators whose results share storage with their first argument although their schemas don't say so.
_UNDECLARED_VIEWS = frozenset(
    {
        aten._unsafe_view.default,
        aten.unsafe_split.Tensor,
        aten.unsafe_split_with_sizes.default,
    }
)

_DETACHED = "detached"
"""Key of the metadata of an ``as_strided`` of what was detached from the tensor that it is now a view of."""


@dataclass(frozen=True, eq=False)
class ViewEdge:
    """``view`` shares the storage of ``base`` through ``access`` (paper: v <- x[.]).

    ``index`` is the position in the result of an operator that gives several views, None otherwise.
    """

    view: torch.fx.Node
    base: torch.fx.Node
    access: torch.fx.Node
    index: int | None = None

    @property
    def is_unseen(self) -> bool:
        """Whether autograd does not take the view for one of its base: a write to it changes data only."""
        unseen = GRADIENTS_DISABLED in self.access.meta
        return unseen or self.access.target is aten.detach.default

    @property
    def is_detached(self) -> bool:
        """Whether the view says of gradients what it was made to say, and not what its base says."""
        return self.access.target is aten.detach.default or _DETACHED in self.access.meta


@dataclass
class AliasGraph:
    """The view edges of a block, by view and by base."""

    edge_of: dict[torch.fx.Node, ViewEdge] = field(default_factory=dict)
    views_of: dict[torch.fx.Node, list[ViewEdge]] = field(default_factory=dict)

    def add(self, edge: ViewEdge) -> None:
        self.edge_of[edge.view] = edge
        self.views_of.setdefault(edge.base, []).append(edge)

    def origin(self, node: torch.fx.Node) -> torch.fx.Node:
        """The value that owns the storage of ``node`` (paper: T.t)."""
        while node in self.edge_of:
            node = self.edge_of[node].base
        return node

    def path_to_origin(self, node: torch.fx.Node) -> Iterator[ViewEdge]:
        """The edges from ``node`` up to its origin."""
        while node in self.edge_of:
            yield self.edge_of[node]
            node = self.edge_of[node].base


@functools.cache
def aliased_argument(target: OpOverload) -> str | None:
    """Name of the argument that the operator's results are views of, None if they are not views."""
    if target in _UNDECLARED_VIEWS:
        return str(schema_arguments(target)[0].name)
    sets = {
        name
        for result in target._schema.returns
        if result.alias_info is not None and not result.alias_info.is_write
        for name in result.alias_info.before_set
    }
    if not sets:
        return _scattered_argument(target)
    names = [
        str(argument.name)
        for argument in schema_arguments(target)
        if argument.alias_info is not None
        and not argument.alias_info.is_write
        and sets & set(argument.alias_info.before_set)
    ]
    if len(names) != 1:
        raise Unsupported("view of several tensors", str(target))
    return names[0]


def _scattered_argument(target: OpOverload) -> str | None:
    """The argument that a list of views is taken of: its alias set becomes the wildcard (a -> *)."""
    for argument in schema_arguments(target):
        info = argument.alias_info
        if info is not None and not info.is_write and "*" in info.after_set:
            return str(argument.name)
    return None


def argument_value(node: torch.fx.Node, name: str) -> object:
    """The value of the argument ``name`` of an operator's node, its default where it is not given."""
    assert isinstance(node.target, OpOverload)
    for position, argument in enumerate(schema_arguments(node.target)):
        if argument.name == name:
            if position < len(node.args):
                return node.args[position]
            return node.kwargs.get(
                name, argument.default_value if argument.has_default_value() else None
            )
    raise KeyError(name)


def build_alias_graph(graph: torch.fx.Graph) -> AliasGraph:
    """Find every view in ``graph``, whose nodes are ATen operators and ``getitem``."""
    aliases = AliasGraph()
    for node in graph.nodes:
        if node.op != "call_function" or not isinstance(node.target, OpOverload):
            continue
        name = aliased_argument(node.target)
        if name is None:
            continue
        base = argument_value(node, name)
        if not isinstance(base, torch.fx.Node):
            raise Unsupported("view of a list of tensors", str(node.target))
        if node.target is aten.as_strided.default:
            base = _strided_origin(node, base, aliases)
        if isinstance(node.meta["val"], torch.Tensor):
            aliases.add(ViewEdge(node, base, node))
        else:
            for user in node.users:
                if user.target is operator.getitem and isinstance(user.args[1], int):
                    aliases.add(ViewEdge(user, base, node, user.args[1]))
    return aliases


def _strided_origin(node: torch.fx.Node, base: torch.fx.Node, aliases: AliasGraph) -> torch.fx.Node:
    """Make ``node``, an ``as_strided``, a view of the origin: it reads the storage, past its base.

    What a graph computes begins at the start of its memory, which eager's may not.
    """
    origin = aliases.origin(base)
    view, whole = node.meta["val"], origin.meta["val"]
    start = whole.storage_offset() if origin.op == "call_function" else 0
    if origin is base and known_equal(start, 0):
        return base
    if whole.dtype != view.dtype:
        raise Unsupported("as_strided of a view with another dtype", str(view.dtype))
    if view.requires_grad and not _is_within(view, base.meta["val"]):
        raise Unsupported(
            "gradient of as_strided past a view",
            f"of shape {tuple(base.meta['val'].shape)}",
            "take it of the tensor that the view is of",
        )
    placement = (list(view.shape), list(view.stride()), view.storage_offset() - start)
    path = list(aliases.path_to_origin(base))
    if any(edge.is_unseen for edge in path):
        node.meta[GRADIENTS_DISABLED] = True
    if any(edge.is_detached for edge in path):
        node.meta[_DETACHED] = True
    node.args = (origin, *with_numbers(placement, NumberNodes(node.graph).node_of))
    node.kwargs = {}
    return origin


def _is_within(view: torch.Tensor, base: torch.Tensor) -> bool:
    """Whether all elements of ``view`` are in ``base``, one each: eager drops the gradients of others."""
    last = view.storage_offset() + sum(
        (n - 1) * stride for n, stride in zip(view.shape, view.stride(), strict=True)
    )
    first, end = base.storage_offset(), base.storage_offset() + base.numel()
    return (
        dense_order(base) is not None
        and known_true(view.storage_offset() >= first)
        and known_true(last < end)
    )
