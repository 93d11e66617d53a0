"""What the tensors that branches and loops give are computed from, for gradients asked inside the program.

To autograd on fakes such a tensor, and what a loop's body is given, is computed from a leaf of its own, which
leads nowhere.  What stands behind each leaf is noted here: what either branch gives, or what the loop begins
with and an iteration leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx
from torch.autograd.graph import get_gradient_edge

from ...unsupported import Unsupported
from .optional_gradients import OptionalGradients
from .storages import Tensor

_Edge = tuple[Any, int]  # a node of autograd's graph, and which of its results


@dataclass(frozen=True)
class Reached:
    """Positions of the tensors whose gradients are asked: reached in every call, and in some."""

    certain: frozenset[int] = frozenset()
    possible: frozenset[int] = frozenset()

    def and_also(self, other: Reached) -> Reached:
        """What both lead to, of one tensor."""
        return Reached(self.certain | other.certain, self.possible | other.possible)

    def or_else(self, other: Reached) -> Reached:
        """Where data says which of the two it is."""
        return Reached(self.certain & other.certain, self.possible | other.possible)


@dataclass(frozen=True, eq=False)
class _Branch:
    """What either branch gives, the true one first."""

    given: tuple[torch.Tensor, torch.Tensor]
    graphs: tuple[torch.fx.Graph, torch.fx.Graph]
    predicate: Tensor


@dataclass(frozen=True, eq=False)
class _Loop:
    """By the leaf of what a loop carries: what it begins with, and what an iteration leaves.

    ``is_entered``: whether there is a first iteration; False where that isn't known.
    """

    carried: Mapping[int, tuple[torch.Tensor, torch.Tensor]]
    body: torch.fx.Graph
    is_entered: Tensor | bool


Decide = Callable[[Tensor], bool | None]
"""What a predicate is in every call, which the graph checks; None where that is not to be relied on."""


class RegionHistories:
    """Those of one graph."""

    def __init__(self, optional: OptionalGradients) -> None:
        self._optional = optional
        self._leaves: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # by fake
        self._behind: dict[int, _Branch | _Loop | None] = {}  # by leaf; None is not known

    def note_leaf(self, fake: torch.Tensor, leaf: torch.Tensor) -> None:
        """``fake`` has gradients by ``leaf`` from now on."""
        self._leaves[id(fake)] = fake, leaf
        self._behind[id(leaf)] = None

    def note_branch(
        self,
        predicate: Tensor,
        graphs: tuple[torch.fx.Graph, torch.fx.Graph],
        results: Iterable[torch.Tensor],
        given: Iterable[tuple[torch.Tensor, torch.Tensor]],
    ) -> None:
        """``results`` of a branch, and what each of the two gives for them."""
        for result, both in zip(results, given, strict=True):
            if id(result) in self._leaves:
                self._behind[id(self._leaves[id(result)][1])] = _Branch(both, graphs, predicate)

    def note_loop(
        self,
        carried: Iterable[tuple[torch.Tensor, torch.Tensor, torch.Tensor]],
        body: torch.fx.Graph,
        is_entered: Tensor | bool,
    ) -> None:
        """What a loop carries: for each tensor its start, its parameter, and what an iteration leaves.

        ``is_entered``: whether there is a first iteration; False where that isn't known.
        """
        rows = {
            id(self._leaves[id(parameter)][1]): (start, left)
            for start, parameter, left in carried
            if id(parameter) in self._leaves
        }
        self._behind.update(dict.fromkeys(rows, _Loop(rows, body, is_entered)))

    def reached(
        self, results: Sequence[torch.Tensor], asked: Sequence[torch.Tensor], decide: Decide
    ) -> frozenset[int]:
        """The positions of those of ``asked`` that ``results`` have gradients to.

        ``decide`` is asked for the regions by which data says which these are.

        :raises Unsupported: they are not to be relied on, or not known.
        """
        search = _Search(self._behind, self._optional, asked)
        while True:
            found = Reached()
            for result in results:
                found = found.and_also(search.from_tensor(result, {}))
            if found.certain == found.possible:
                return found.certain
            pending = [p for p in search.deciding if id(p) not in search.decided]
            decided = decide(pending[0]) if pending else None
            if decided is None:
                raise Unsupported(DECIDED_BY_DATA, "backward through a region")
            search.decided[id(pending[0])] = decided

    def behind(self, results: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """``results``, and all that regions on the way to them may give or be given."""
        search = _Search(self._behind, self._optional, ())
        found = {id(result): result for result in results}
        pending = list(results)
        while pending:
            for leaf in search.walk(pending.pop()).leaves:
                fresh = [tensor for tensor in self._before(leaf) if id(tensor) not in found]
                found |= {id(tensor): tensor for tensor in fresh}
                pending += fresh
        return list(found.values())

    def leaves_of(self, results: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The leaves that autograd's graph of ``results`` leads to."""
        search = _Search(self._behind, self._optional, ())
        return [leaf for result in results for leaf in search.walk(result).leaves]

    def knows(self, leaf: torch.Tensor) -> bool:
        """Whether it is noted what stands behind ``leaf``, which a region's tensor has gradients by."""
        return self._behind.get(id(leaf)) is not None

    def _before(self, leaf: torch.Tensor) -> Sequence[torch.Tensor]:
        behind = self._behind.get(id(leaf))
        if isinstance(behind, _Branch):
            return behind.given
        return behind.carried[id(leaf)] if behind is not None else ()


KIND = "backward pass inside the function"
DECIDED_BY_DATA = "gradients that data decides"

_Known = Mapping[int, Reached]  # by leaf of what the loops at hand carry


@dataclass(frozen=True)
class _Walk:
    """What is behind a tensor in autograd's graph: positions asked for, leaves, and regions that write."""

    asked: frozenset[int]
    leaves: Sequence[torch.Tensor]
    regions: Sequence[torch.fx.Graph]


class _Search:
    """The ways to the tensors ``asked`` for."""

    def __init__(
        self,
        behind: Mapping[int, _Branch | _Loop | None],
        optional: OptionalGradients,
        asked: Sequence[torch.Tensor],
    ) -> None:
        self._behind = behind
        self._optional = optional
        self._asked: dict[_Edge, int] = {_edge(t): k for k, t in enumerate(asked)}
        self._walks: dict[_Edge, _Walk] = {}
        self.decided: dict[int, bool] = {}  # by predicate
        self.deciding: list[Tensor] = []  # the predicates on which it depends what is reached

    def from_tensor(
        self, tensor: torch.Tensor, known: _Known, inside: tuple[torch.fx.Graph, ...] = ()
    ) -> Reached:
        """What ``tensor`` leads to, which is given ``inside`` regions that have run.

        :raises Unsupported: it leads through what a region writes that may not have run.
        """
        walk = self.walk(tensor)
        if not all(region in inside for region in walk.regions):
            raise Unsupported(KIND, "backward: by what a region writes in some calls")
        found = Reached(walk.asked, walk.asked)
        for leaf in walk.leaves:
            found = found.and_also(self._from_leaf(leaf, known, inside))
        return found

    def _from_leaf(
        self, leaf: torch.Tensor, known: _Known, inside: tuple[torch.fx.Graph, ...]
    ) -> Reached:
        if id(leaf) in known:
            return known[id(leaf)]
        if id(leaf) not in self._behind:
            return Reached()
        behind = self._behind[id(leaf)]
        if behind is None:
            raise Unsupported(KIND, "backward: by a region that gradients are not followed through")
        if isinstance(behind, _Loop):
            return self._from_loop(behind, known, inside)[id(leaf)]
        ways = [
            self.from_tensor(tensor, known, (*inside, graph))
            for tensor, graph in zip(behind.given, behind.graphs, strict=True)
        ]
        if id(behind.predicate) in self.decided:
            return ways[not self.decided[id(behind.predicate)]]
        if ways[0] != ways[1]:
            self.deciding.append(behind.predicate)
        return ways[0].or_else(ways[1])

    def _from_loop(
        self, loop: _Loop, known: _Known, inside: tuple[torch.fx.Graph, ...]
    ) -> dict[int, Reached]:
        """After the iterations that there may be, whose numbers repeat themselves at some point."""
        rows = loop.carried.items()
        now = {k: self.from_tensor(start, known, inside) for k, (start, _) in rows}
        entered = loop.is_entered
        if not isinstance(entered, bool):
            is_entered = self.decided.get(id(entered), entered)
            if is_entered is False:
                return now
            entered = is_entered
        found: dict[int, Reached] | None = None if entered is True else dict(now)
        seen: list[dict[int, Reached]] = []
        within = (*inside, loop.body)
        while now not in seen:
            seen.append(now)
            before = {**known, **now}
            now = {k: self.from_tensor(left, before, within) for k, (_, left) in rows}
            if not isinstance(entered, bool) and found != now:
                self.deciding.append(entered)
            found = now if found is None else {k: found[k].or_else(now[k]) for k in now}
        assert found is not None
        return found

    def walk(self, tensor: torch.Tensor) -> _Walk:
        """What autograd's graph has behind ``tensor``."""
        if not tensor.requires_grad:
            return _Walk(frozenset(), (), ())
        start = _edge(tensor)
        if start not in self._walks:
            self._walks[start] = self._walked(start)
        return self._walks[start]

    def _walked(self, start: _Edge) -> _Walk:
        asked, leaves = set[int](), dict[int, torch.Tensor]()
        regions: list[torch.fx.Graph] = []
        pending, seen = [start], {start}
        while pending:
            edge = pending.pop()
            region = self._optional.made_in(edge[0])
            if region is not None:
                regions.append(region)
            if edge in self._asked:
                asked.add(self._asked[edge])
            leaf = getattr(edge[0], "variable", None)
            if isinstance(leaf, torch.Tensor):
                leaves[id(leaf)] = leaf
            fresh = {e for e in edge[0].next_functions if e[0] is not None} - seen
            pending += fresh
            seen |= fresh
        return _Walk(frozenset(asked), list(leaves.values()), regions)


def _edge(tensor: torch.Tensor) -> _Edge:
    """Where autograd's graph of a tensor begins.

    :raises Unsupported: autograd refuses to say, as of some views.
    """
    try:
        edge = get_gradient_edge(tensor)
    except RuntimeError as error:
        raise Unsupported(KIND, f"backward: {error}") from error
    return edge.node, edge.output_nr
