"""Which results of regions may be one tensor with another: what they are given, or one another.

In the graph each result of a region is a tensor of its own.  Returned to the caller the difference would
show, and so it would where code after a break writes to one: unless the code after the graph can choose the
tensor (:mod:`.choices`), the frame is then evaluated without the region.

A region gives all its results by one of several *alternatives* at once: those of either branch,
those of a loop's last iteration, what a loop without an iteration began with.  So two tensors may be one
only if they are in some alternative.  Tensors are known by their storages.

Where eager has one tensor at two places the graph may have a copy at one of them, which is as good until
something is written to either: the ledger knows the copies and the writes.
"""

from __future__ import annotations

import collections
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.fx

from ...._torch import HigherOrderOperator, storage_identity
from ...._torch.fakes import is_unrecorded_view
from ....unsupported import Unsupported
from ...graph.purity import possibly_written, writes
from ...graph.storages import Tensor, node_values, storages
from ..decisions import ProgramPoint
from ..state.loop_strides import LoopStrides


@dataclass(frozen=True)
class _Value:
    """A tensor at one time: ``is_state`` for what a loop's iteration begins with, not what the loop gives."""

    storage: int
    is_state: bool = False


@dataclass(frozen=True)
class _Region:
    """``graph`` is where the region's node stands, ``body`` a loop's; ``after`` what it may give.

    ``before`` are the alternatives for the state that an iteration begins with.
    """

    place: ProgramPoint
    number: int
    graph: torch.fx.Graph
    body: torch.fx.Graph | None
    results: tuple[int, ...]
    after: tuple[tuple[_Value, ...], ...]
    before: tuple[tuple[_Value, ...], ...] = ()

    def alternatives(self, value: _Value) -> tuple[tuple[_Value, ...], ...]:
        return self.before if value.is_state else self.after


def storages_of(variables: Iterable[object]) -> set[int]:
    """The storages of the tensors among ``variables``."""
    return storages(getattr(variable, "fake", None) for variable in variables)


class Carried(Protocol):
    """A tensor that a loop carries."""

    @property
    def start(self) -> Tensor: ...

    @property
    def parameter(self) -> Tensor: ...

    @property
    def result(self) -> Tensor | None: ...


class Copies(Protocol):
    """Tensors of the graph that stand for others of eager's until something is written."""

    def check(self, outputs: Sequence[Any]) -> None:
        """
        :raises RegionRefused: they differ from eager's, or leave the graph as others.
        """


def _check_unrecorded(targets: Iterable[torch.Tensor]) -> None:
    """Refuse a region that writes to a view of which autograd raises once it, or its base, was written to.

    Only data knows whether the region does, and the graph writes what it gives in any case.
    """
    for target in targets:
        if target.requires_grad and is_unrecorded_view(target):
            raise Unsupported(
                "gradient through a region", "a view that was made without gradients is written to"
            )


class AliasLedger:
    """What the regions of a frame give, in terms of what they are given and make, and what is written.

    Writes are noted from the first region or copy on: their storages in order, and their number by type.
    """

    def __init__(self) -> None:
        self.copies: list[Copies] = []
        self.branches: dict[torch.fx.Node, ProgramPoint] = {}  # where each begins
        self.elements: list[Any] = []
        self.writes_by_type: collections.Counter[torch.dtype] = collections.Counter()
        self.written: list[int] = []
        self._entered = 0  # how many writes there were where the outermost region begins
        self.attributes: set[int] = set()  # storages of the program's tensors that regions name
        self._regions: dict[int, _Region] = {}  # by each result
        self._viewed: dict[int, list[tuple[ProgramPoint, int]]] = {}
        self.strides = LoopStrides()
        self._around: dict[torch.fx.Graph, torch.fx.Graph] = {}
        self._made_in: dict[int, torch.fx.Graph] = {}
        self._replaced: dict[int, int] = {}
        # Storages are known by their addresses, which another may have once a tensor is gone.
        self._alive: list[torch.Tensor] = []

    def note_node(self, node: torch.fx.Node, is_in_region: bool) -> None:
        """Note the tensors that a node may write to."""
        is_watching = self.elements or self.copies or is_in_region
        if not is_watching or isinstance(node.target, HigherOrderOperator) or not writes(node):
            return
        fakes = node_values(node.all_input_nodes)
        self.writes_by_type.update({f.dtype for f in fakes if isinstance(f, torch.Tensor)})
        fakes = node_values(possibly_written(node))
        targets = [f for f in fakes if isinstance(f, torch.Tensor)]
        self.written += map(storage_identity, targets)
        if is_in_region:
            _check_unrecorded(targets)
        else:
            for element in self.elements:
                element.check()

    def note_entry(self) -> None:
        """A region of the outermost graph begins here."""
        self._entered = len(self.written)

    def written_since_entry(self, storages: Collection[int]) -> bool:
        """Whether the region at hand may have written to a tensor of ``storages``."""
        return self.may_be_among(storages, self.written[self._entered :])

    def may_be_among(
        self, storages: Collection[int], others: Collection[int], base: int | None = None
    ) -> bool:
        """Whether a tensor of ``storages`` may be one of ``others``; see :meth:`uniting`."""
        return any(
            storage == other or self.uniting(storage, other, base=base) is not None
            for other in set(others)
            for storage in storages
        )

    def enter(self, graph: torch.fx.Graph, around: torch.fx.Graph) -> None:
        """``graph`` is that of a region inside the graph ``around``."""
        self._around[graph] = around

    def with_around(self, graph: torch.fx.Graph) -> Iterator[torch.fx.Graph]:
        """``graph`` and those that it is inside of, the outermost last."""
        found: torch.fx.Graph | None = graph
        while found is not None:
            yield found
            found = self._around.get(found)

    def note_attributes(self, graph: torch.fx.Graph) -> None:
        """Note the program's tensors that a region's graph names: no region makes them."""
        self.attributes |= storages(node_values(graph.find_nodes(op="get_attr")))

    def note_branch(
        self,
        place: ProgramPoint,
        graph: torch.fx.Graph,
        results: Sequence[Tensor],
        branches: Sequence[Sequence[Tensor]],
        taken: Sequence[torch.fx.Node],
    ) -> None:
        """Each of ``results`` is what is in its place in one of ``branches``."""
        self._note_made(taken, [variable for branch in branches for variable in branch])
        self._add(place, graph, None, results, tuple(map(self._values, branches)))

    def note_loop(
        self,
        place: ProgramPoint,
        graph: torch.fx.Graph,
        body: torch.fx.Graph,
        kept: Sequence[Carried],
        taken: Sequence[torch.fx.Node],
        may_be_empty: bool,
    ) -> None:
        """Each of ``kept`` is its start at first, and what the body leaves after an iteration."""
        states, started = [c.parameter for c in kept], [c.start for c in kept]
        left = [c.result for c in kept if c.result is not None]
        self._note_made(taken, [*started, *left])
        own = {storage_identity(variable.fake) for variable in states}
        first = self._values(started)
        iterated = tuple(
            _Value(v.storage, self.current(v.storage) in own) for v in self._values(left)
        )
        after = (iterated, first) if may_be_empty else (iterated,)
        self._add(place, graph, body, states, after, (first, iterated))

    def note_view(self, place: ProgramPoint, result: Tensor, base: Tensor) -> None:
        """``result`` is eager's view of ``base``."""
        viewed = self._viewed.setdefault(self._storage(result.fake), [])
        viewed.append((place, self._storage(base.fake)))

    def note_unchanged(self, carried: Carried) -> None:
        """What the regions inside a loop were given as its state is the tensor that it begins with."""
        self._replaced[self._storage(carried.parameter.fake)] = self._storage(carried.start.fake)

    def note_resized(self, state: torch.Tensor, result: torch.Tensor) -> None:
        """``result`` has the sizes that ``state``, which a loop carries, has after it."""
        self._replaced[self._storage(state)] = self._storage(result)

    def is_result(self, storage: int) -> bool:
        """Whether a region gives a tensor of this storage."""
        storage = self.current(storage)
        return storage in self._regions or storage in self._viewed

    def another(self, storage: int, inputs: Collection[int]) -> ProgramPoint | None:
        """The region by which a result may be one tensor with another, or with an input; None if it can't."""
        if not self.is_result(storage):
            return None
        others = dict.fromkeys((*self._regions, *inputs))
        places = (self.uniting(storage, other) for other in others if other != storage)
        return next((place for place in places if place is not None), None)

    def giver(self, storage: int) -> ProgramPoint | None:
        """Where a region starts that gives a tensor of this storage; None if there is none."""
        storage = self.current(storage)
        region = self._regions.get(storage)
        if region is not None:
            return region.place
        return next((place for place, _ in self._viewed.get(storage, ())), None)

    def is_inside(self, graph: torch.fx.Graph, body: torch.fx.Graph) -> bool:
        """Whether a region's graph is ``body``, or that of a region inside it."""
        at: torch.fx.Graph | None = graph
        while at is not None and at is not body:
            at = self._around.get(at)
        return at is body

    def is_operand_or_new(
        self, result: torch.Tensor, operand: torch.Tensor, visible: set[int]
    ) -> bool:
        """Whether a region's result is ``operand`` in one way, in all others a tensor that it has made."""
        storage, other = storage_identity(result), storage_identity(operand)
        region = self._regions[storage]
        if storage in self._viewed:
            return False
        k = region.results.index(storage)
        rows = [[self.current(value.storage) for value in row] for row in region.after]
        ways = [row[k] for row in rows]
        return ways.count(other) == 1 and all(
            row[k] == other
            or (row.count(row[k]) == 1 and row[k] not in self._regions and row[k] not in visible)
            for row in rows
        )

    def uniting(
        self, left: int, right: int, known: Collection[int] = (), base: int | None = None
    ) -> ProgramPoint | None:
        """The region by which two tensors may be one, the innermost; None if they can't be.

        They may be one that has a storage in ``known``: that is decided otherwise.  What ``base`` is a
        view of in eager does not count.
        """
        first = (_Value(self.current(left)), _Value(self.current(right)))
        pending: list[tuple[tuple[_Value, _Value], ProgramPoint | None]] = [(first, None)]
        seen = {first}
        while pending:
            pair, place = pending.pop()
            if pair[0] == pair[1]:
                if pair[0].storage in known:
                    continue
                every = self._every(pair[0]) if known else None
                if every is None:
                    return place
                pending += [((v, v), place) for v in every if (v, v) not in seen]
                seen.update((v, v) for v in every)
                continue
            for following in self._unfolded(*pair, base):
                if following[0] not in seen:
                    seen.add(following[0])
                    pending.append(following)
        return None

    def _every(self, value: _Value) -> list[_Value] | None:
        """What a region's result is, one of these; None for another tensor, or one that may be a view."""
        region = self._regions.get(value.storage)
        if region is None or value.storage in self._viewed:
            return None
        k = region.results.index(value.storage)
        return [self._at(row[k], region) for row in region.alternatives(value)]

    def _unfolded(
        self, left: _Value, right: _Value, base: int | None
    ) -> Iterator[tuple[tuple[_Value, _Value], ProgramPoint]]:
        """The pairs of which one has to be one tensor for ``left`` and ``right`` to be."""
        for one, other in ((left, right), (right, left)):
            for place, viewed in self._viewed.get(one.storage, ()) if one.storage != base else ():
                yield (_Value(self.current(viewed)), other), place
        first, second = self._regions.get(left.storage), self._regions.get(right.storage)
        if first is not None and first is second and left.is_state == right.is_state:
            i, k = (first.results.index(value.storage) for value in (left, right))
            for row in first.alternatives(left):
                yield (self._at(row[i], first), self._at(row[k], first)), first.place
            return
        if first is None or (second is not None and self._comes_before(left, right)):
            left, right, first = right, left, second
        if first is None:
            return
        made_in = self._made_in.get(right.storage)
        if left.is_state and right.storage not in self._regions and made_in is not None:
            assert first.body is not None
            if self.is_inside(made_in, first.body):
                return  # made in this iteration, after its state
        k = first.results.index(left.storage)
        for row in first.alternatives(left):
            yield (self._at(row[k], first), right), first.place

    def _at(self, value: _Value, region: _Region) -> _Value:
        """A value among those that a region gives: inside a loop's body the loop's results are its state."""
        storage = self.current(value.storage)
        owner = self._regions.get(storage)
        if owner is None or owner.body is None or not self.is_inside(region.graph, owner.body):
            return _Value(storage, value.is_state)
        return _Value(storage, is_state=True)

    def current(self, storage: int) -> int:
        """The storage of the tensor that stands in the place of one that a loop did not change."""
        while storage in self._replaced:
            storage = self._replaced[storage]
        return storage

    def _storage(self, tensor: torch.Tensor) -> int:
        self._alive.append(tensor)
        return storage_identity(tensor)

    def _comes_before(self, left: _Value, right: _Value) -> bool:
        """Whether what the region of ``right`` gives may be in terms of ``left``."""
        first, second = self._regions[left.storage], self._regions[right.storage]
        if first is second:
            return left.is_state
        if second.body is not None and self.is_inside(first.graph, second.body):
            return False
        if first.body is not None and self.is_inside(second.graph, first.body):
            return True
        return first.number < second.number

    def _values(self, variables: Sequence[Tensor]) -> tuple[_Value, ...]:
        return tuple(_Value(self._storage(variable.fake)) for variable in variables)

    def _add(
        self,
        place: ProgramPoint,
        graph: torch.fx.Graph,
        body: torch.fx.Graph | None,
        results: Sequence[Tensor],
        after: tuple[tuple[_Value, ...], ...],
        before: tuple[tuple[_Value, ...], ...] = (),
    ) -> None:
        storages = tuple(self._storage(variable.fake) for variable in results)
        region = _Region(place, len(self._regions), graph, body, storages, after, before)
        self._regions.update(dict.fromkeys(storages, region))

    def _note_made(self, taken: Sequence[torch.fx.Node], variables: Sequence[Tensor]) -> None:
        for node in (*taken, *(variable.node for variable in variables)):
            value = node.meta.get("example_value")
            if isinstance(value, torch.Tensor) and storage_identity(value) not in self.attributes:
                self._made_in.setdefault(self._storage(value), node.graph)
