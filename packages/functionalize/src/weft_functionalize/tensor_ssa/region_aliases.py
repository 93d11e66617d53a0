"""Control-flow dependencies: what a region's result may be one with.

The result of a conditional may be the operand that one branch returns as it is: such names may alias, while
TensorSSA handles memory dependencies, which must.  As long as nobody can tell, the result is a value of its
own.  Where a write would show through the other name, whether the two are one is data of the program: a
flag, which the region gives beside its results.  The write then reaches the other name by ``where``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.fx

from .._torch import known_true
from ..unsupported import Unsupported
from .alias_graph import AliasGraph
from .block_propagation import region_clobbers
from .writes import block_writes

aten = torch.ops.aten
F = TypeVar("F")

_WHOLE = frozenset({aten.alias.default, aten.detach.default})
_MAX_WAYS = 32  # by which two values may be one, through other values
_MAX_STEPS = 2000  # of a search for them: there are as many as paths through a graph


@dataclass(frozen=True)
class RegionAlias:
    """``result`` may be what ``other`` is: where ``flag`` (a bool tensor's node, or a constant) holds.

    ``flag`` is None where it isn't known.  ``is_exact``: there is no other way in which they are one.
    ``may_be_unseen``: a region may have taken one of the other by ``detach``, say, so that what is written to
    one is not in the other's history.
    """

    result: torch.fx.Node
    other: torch.fx.Node
    flag: torch.fx.Node | bool | None
    is_exact: bool = False
    may_be_unseen: bool = False


def _differ(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether two tensors are not one whatever data says: their sizes, dtypes or devices differ."""
    if (left.dim(), left.dtype, left.device) != (right.dim(), right.dtype, right.device):
        return True
    return any(known_true(a != b) for a, b in zip(left.shape, right.shape, strict=True))


class NeedsMoreEffort(Unsupported):
    """What a more costly form of the program's regions would allow."""


class ClobberedOperand(NeedsMoreEffort):
    """A loop writes to what it begins with, which is used after it."""

    def __init__(self, name: str) -> None:
        super().__init__("write to a carried tensor that is used after the loop", name)


def is_whole(aliases: AliasGraph, node: torch.fx.Node) -> bool:
    """Whether ``node`` has all elements of its origin as these are."""
    return all(edge.access.target in _WHOLE for edge in aliases.path_to_origin(node))


class SharedValues:
    """The values of a block that may be one: a graph of the origins that pairs join."""

    def __init__(
        self, graph: torch.fx.Graph, aliases: AliasGraph, pairs: Sequence[RegionAlias]
    ) -> None:
        self.aliases = aliases
        self.position = {node: index for index, node in enumerate(graph.nodes)}
        self._edges: dict[torch.fx.Node, list[tuple[torch.fx.Node, RegionAlias]]] = {}
        for pair in pairs:
            first, second = (aliases.origin(n) for n in (pair.result, pair.other))
            self._edges.setdefault(first, []).append((second, pair))
            self._edges.setdefault(second, []).append((first, pair))

    def __bool__(self) -> bool:
        return bool(self._edges)

    def others(self, origin: torch.fx.Node, before: int) -> list[torch.fx.Node]:
        """The origins at positions ``before`` that may be one with ``origin``, which is itself one."""
        found, pending = [origin], [origin]
        while pending:
            for other, _ in self._edges.get(pending.pop(), ()):
                if other not in found and self.position[other] < before:
                    found.append(other)
                    pending.append(other)
        return [other for other in found[1:] if self.ways(origin, other) != []]

    def ways(self, left: torch.fx.Node, right: torch.fx.Node) -> list[list[torch.fx.Node]] | None:
        """When the origins ``left`` and ``right`` are one: where all flags of one of these lists hold.

        None where that is not known: a region may have taken a view of one of them, or there are too many.
        """
        # What the later of the two is, it is by what there was when it was made.
        until = max(self.position[left], self.position[right])
        found: list[list[torch.fx.Node]] = []
        for chain in self._chains(left, right, until):
            if chain is None:
                return None
            flags = [pair.flag for pair in chain]
            if False in flags:
                continue
            whole = all(
                is_whole(self.aliases, node) for pair in chain for node in (pair.result, pair.other)
            )
            if None in flags or not whole or len(found) == _MAX_WAYS:
                return None
            if _differ(left.meta["val"], right.meta["val"]):
                continue  # the flags never hold together
            found.append([flag for flag in flags if isinstance(flag, torch.fx.Node)])
        return found

    def seen(self, left: torch.fx.Node, right: torch.fx.Node) -> bool | None:
        """Whether autograd takes the origins ``left`` and ``right`` for one where they are; None: perhaps.

        A write to the one is then in the other's history.
        """
        until = max(self.position[left], self.position[right])
        chains: list[list[RegionAlias]] = []
        for chain in self._chains(left, right, until):
            if chain is None:
                return None
            chains.append(chain)
        hidden = [any(self._is_unseen(pair) for pair in chain) for chain in chains]
        if any(hidden):
            return False if all(hidden) else None
        return None if any(pair.may_be_unseen for chain in chains for pair in chain) else True

    def _is_unseen(self, pair: RegionAlias) -> bool:
        """Whether one of the pair is a view that autograd does not know of what owns its storage."""
        return any(
            edge.is_unseen
            for node in (pair.result, pair.other)
            for edge in self.aliases.path_to_origin(node)
        )

    def _chains(
        self, left: torch.fx.Node, right: torch.fx.Node, until: int
    ) -> Iterator[list[RegionAlias] | None]:
        """The chains of pairs from one origin to the other that pass no origin twice.

        The last is None where the search for more is given up.
        """
        exact = next((p for o, p in self._edges.get(left, ()) if o is right and p.is_exact), None)
        if exact is not None:
            yield [exact]
            return
        chain: list[RegionAlias] = []
        passed = {left: None}  # in order
        pending = [iter(self._edges.get(left, ()))]
        for _ in range(_MAX_STEPS):
            other, pair = next(pending[-1], (None, None))
            if other is None or pair is None:
                pending.pop()
                passed.popitem()
                if not pending:
                    return
                chain.pop()
            elif other is right:
                yield [*chain, pair]
            elif other not in passed and self.position[other] <= until:
                chain.append(pair)
                passed[other] = None
                edges = self._edges.get(other, ())
                known = [edge for edge in edges if edge[0] is right and edge[1].is_exact]
                pending.append(iter(known[:1] or edges))
        yield None


def any_of(
    ways: Sequence[Sequence[torch.fx.Node]],
    value_of: Callable[[torch.fx.Node], F],
    both: Callable[[F, F], F],
    either: Callable[[F, F], F],
) -> F | bool:
    """Whether all flags of one of the ``ways`` hold: a constant, or a flag that the functions make."""
    found: F | bool = False
    for way in ways:
        if not way:
            return True
        flag = value_of(way[0])
        for node in way[1:]:
            flag = both(flag, value_of(node))
        found = flag if isinstance(found, bool) else either(found, flag)
    return found


def check_region_aliases(
    graph: torch.fx.Graph,
    shared: SharedValues,
    kept: Iterable[torch.fx.Node],
    given_away: Collection[torch.fx.Node] = (),
) -> None:
    """Raise :class:`Unsupported` where a write would show through another name in a way that isn't known.

    ``kept`` are the values that are needed after the graph's end.  So are all placeholders but those
    ``given_away``: what a loop carries is of no use after the iteration.
    """
    aliases, position = shared.aliases, shared.position
    clobbers = [(node, other) for node in graph.nodes for other in region_clobbers(node)]
    if not shared and not clobbers:
        return
    inputs = [n for n in graph.find_nodes(op="placeholder") if n not in given_away]
    last = _last_uses(aliases, position, [*inputs, *kept])
    for node, index in position.items():
        for variable in block_writes(node):
            origin = aliases.origin(variable)
            for other in shared.others(origin, index):
                if index < last.get(other, -1) and shared.ways(origin, other) is None:
                    raise NeedsMoreEffort(
                        "write to a tensor that a region may return",
                        f"{origin.name}, {other.name}",
                        "clone() the tensor before writing to it",
                    )
    for node, clobbered in clobbers:
        origin = aliases.origin(clobbered)
        for other in (origin, *shared.others(origin, position[node])):
            if position[node] < last.get(other, -1):
                raise ClobberedOperand(other.name)


def _last_uses(
    aliases: AliasGraph,
    position: dict[torch.fx.Node, int],
    kept: Iterable[torch.fx.Node],
) -> dict[torch.fx.Node, float]:
    """By origin, the last node that uses it or a view of it; what the caller sees is used to the end."""
    last: dict[torch.fx.Node, float] = {}
    for node, index in position.items():
        for used in node.all_input_nodes:
            last[aliases.origin(used)] = index
    for node in kept:
        last[aliases.origin(node)] = float("inf")
    return last
