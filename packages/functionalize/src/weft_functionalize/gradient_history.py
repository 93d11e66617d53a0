"""What eager's autograd does with a program, seen while the program runs on fake tensors.

Which tensors it holds for backward, and so protects from later writes; which inputs it gives gradients to
when a result has one; and whether an input that is written to gets another history.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch.autograd.graph import get_gradient_edge

from ._torch import (
    alias_of_one_version,
    nodes_of_autograd_made,
    number_of_node,
    saved_tensor_hooks_enabled,
    share_version,
    storage_identity,
)
from .histories_of_tensors import edge_of
from .list_results import Place, edges_of, function_at, place_of, places_behind
from .saved_tensors import WRITTEN, Pack, Saved, saved_tensors
from .tensor_map import TensorMap
from .tensor_ssa.layout import Window
from .unsupported import Unsupported

T = TypeVar("T")

# A node of autograd's graph.
_Function = Any


@dataclass(frozen=True)
class Sources:
    """What a region's result has gradients to: in every call, and in some, as which branch is taken says."""

    certain: Sequence[torch.Tensor] = ()
    possible: Sequence[torch.Tensor] = ()


@dataclass(frozen=True)
class Reach:
    """As :class:`Sources`, by numbers of inputs."""

    certain: frozenset[int]
    possible: frozenset[int]


@dataclass(frozen=True)
class Held:
    """What is held on the way to the inputs ``reached``, by storage; the error if some was overwritten."""

    reached: frozenset[int]
    storages: frozenset[int]
    error: str


@dataclass(frozen=True)
class _Write:
    """An operator's write to ``tensor``, the ``number``-th of all."""

    tensor: torch.Tensor
    window: Window
    number: int


# By a leaf that stands for what a region gives: the places of its sources, the certain ones and all.
Made = TensorMap[tuple[Sequence[Place], Sequence[Place]]]


# Beginnings of the names of nodes of autograd's whose gradient is an error.
_WITHOUT_DERIVATIVE = ("torch::autograd::NotImplemented", "Unique", "GeqrfBackward")

_DECIDED_BY_DATA = "gradients inside the program that depend on data"


def _unheld(method: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """``method`` without a hold on its object, for a hook: autograd keeps it as long as what it has saved.

    The object holds that in turn, which Python's collector does not see.
    """
    weak = weakref.WeakMethod(method)

    def hook(value: Any) -> Any:
        bound = weak()
        assert bound is not None, "hooks are set while the object is in use"
        return bound(value)

    return hook


class GradientHistory:
    """Observes one recording.  Inputs are told apart by number.

    What regions give is made here of leaves that stand for it, which lead to the regions' sources.
    """

    def __init__(self, made: Made | None = None) -> None:
        self.made: Made = TensorMap() if made is None else made
        self._held: dict[int, torch.Tensor] = {}  # by storage, which lives as long as this
        self._held_in_regions: set[int] = set()
        self._saved_in_region: list[tuple[torch.Tensor, int]] = []  # that is being recorded
        self._held_by: dict[_Function, frozenset[int]] = {}
        self._overwritten: dict[_Function, str] = {}
        self._call = 0  # how many nodes there were where the captured call at hand begins
        self._calls: dict[int, int] = {}  # the same by how many there were at a write in it
        # By how many nodes there were.
        self._saved: dict[int, weakref.WeakSet[Pack]] = {}
        # By storage, while backward may want them.
        self._packs: dict[int, weakref.WeakSet[Pack]] = {}
        self._writes: dict[int, list[_Write]] = {}  # by storage
        self.write_count = 0
        self._maybe_one: dict[int, list[torch.Tensor]] = {}  # by storage, as data says
        self._following: dict[Place, tuple[Place, ...]] = {}
        # By whether certain, and for None what holds something.
        self._known_behind: dict[bool | None, dict[Place, frozenset[Any]]] = {}
        self._known_with = 0  # how much was made then
        self._input_of: dict[_Function, int] = {}
        self._leaves: TensorMap[int] = TensorMap()
        self._inputs: TensorMap[int] = TensorMap()
        self._saved_inputs: set[int] = set()
        self._edges: dict[int, tuple[_Function, int]] = {}

    @contextlib.contextmanager
    def versions_saved(self) -> Iterator[None]:
        """Have autograd tell of writes to what it saves meanwhile, which it does not under others' hooks."""
        if not saved_tensor_hooks_enabled():
            yield
            return
        hooks = _unheld(self._save_version), _unheld(self._check_pack)
        with torch.autograd.graph.saved_tensors_hooks(*hooks):
            yield

    def note_call(self) -> None:
        """A call of the captured graph begins."""
        self._call = nodes_of_autograd_made()

    def note_write(self, tensor: torch.Tensor) -> None:
        """An operator has written to ``tensor``, whether autograd was told or not."""
        self._calls[nodes_of_autograd_made()] = self._call
        # It counts the same versions, and holds nothing that backward needs.
        alone = alias_of_one_version(tensor)
        write = _Write(alone, Window.of_tensor(tensor), self.write_count)
        self._writes.setdefault(storage_identity(tensor), []).append(write)
        self.write_count += 1
        for other in self._maybe_one.get(storage_identity(tensor), ()):
            self.check_uncertain_write(other)

    def note_maybe_one(self, result: torch.Tensor, other: torch.Tensor) -> None:
        """What a region gives may be ``other``, as data says."""
        for left, right in ((result, other), (other, result)):
            self._maybe_one.setdefault(storage_identity(left), []).append(right)

    def may_be_others(self, tensor: torch.Tensor) -> bool:
        """Whether data says that a tensor shares storage with one that it does not share any with here."""
        return storage_identity(tensor) in self._maybe_one

    def hand_on_writes(self, inside: torch.Tensor, outside: torch.Tensor, since: int) -> None:
        """A region has written to ``inside``, if it has ``since`` that number; it stands for ``outside``."""
        found = self._writes.get(storage_identity(inside), [])
        is_counted = not inside.is_inference()
        for k, write in enumerate(found):
            if write.number < since:
                continue
            told = is_counted and share_version(inside, write.tensor)
            if storage_identity(inside) != storage_identity(outside):
                self.note_write(outside if told else outside.data)  # whose versions are others
            elif told:
                found[k] = replace(write, tensor=outside)

    def check_writes(self, tensor: torch.Tensor, since: int) -> None:
        """What a region has saved is not to be written to: backward raises, or reads what was written.

        :raises Unsupported: ``tensor`` was, ``since`` that number.
        """
        for write in self._writes.get(storage_identity(tensor), ()):
            if write.number < since or not write.window.may_meet(Window.of_tensor(tensor)):
                continue
            if share_version(tensor, write.tensor):
                raise Unsupported(
                    "write to what a region has saved", f"shape {tuple(tensor.shape)}"
                )
            raise _written_by_data(tensor)

    def was_told_of_write(self, tensor: torch.Tensor) -> bool:
        """Whether autograd counts any of the writes to this memory as a write to ``tensor``."""
        return any(
            write.tensor.is_inference() or share_version(tensor, write.tensor)
            for write in self._writes.get(storage_identity(tensor), ())
        )

    def _save_version(self, tensor: torch.Tensor) -> Pack:
        version = -1 if tensor.is_inference() else tensor._version
        pack = Pack(Saved(tensor, version, self.write_count))
        if (index := self._inputs.get(tensor)) is not None:
            self._saved_inputs.add(index)
        self._saved.setdefault(nodes_of_autograd_made(), weakref.WeakSet()).add(pack)
        self._packs.setdefault(storage_identity(tensor), weakref.WeakSet()).add(pack)
        return pack

    def check_uncertain_write(self, tensor: torch.Tensor) -> None:
        """A region writes to ``tensor`` in some calls, as data says.

        :raises Unsupported: autograd holds it for a backward, so that data says whether that raises.
        """
        if self._packs.get(storage_identity(tensor)):
            raise Unsupported("write to what autograd has saved, as data says", str(tensor.shape))

    def _check_pack(self, pack: Pack) -> torch.Tensor:
        return self._check_version(pack.saved)

    def _check_version(self, saved: Saved) -> torch.Tensor:
        tensor, version = saved.tensor, saved.version
        if version >= 0 and tensor._version != version:
            raise RuntimeError(
                f"{WRITTEN}: {list(tensor.shape)} is at version {tensor._version}; expected {version}"
            )
        writes = self._writes.get(storage_identity(tensor), [])
        since = [write.window for write in writes if write.number >= saved.writes]
        if since and any(map(Window.of_tensor(tensor).may_meet, since)):
            raise _written_by_data(tensor)
        return tensor

    def _saved_by(self, function: _Function, numbers: Set[int]) -> tuple[list[torch.Tensor], str]:
        """As :func:`saved_tensors`, also for a write to a view, whose own node is not to be seen.

        That node has the number before the one of ``function``, or before that, where another, not to be
        seen either, copies what is written to.  What such a write saves of its result comes behind the nodes
        of the base and of the view.  ``numbers`` are those of the nodes that are seen.
        """
        found, error = saved_tensors(function)
        if function.name() != "torch::autograd::CopySlices":
            return found, error
        number = number_of_node(function)
        begin = self._calls.get(number, -1)  # no node of an earlier call is the write's
        for count in (number - 1, number, number + 2):
            if count <= begin or (count < number and count - 1 in numbers):
                continue
            for pack in self._saved.get(count, ()):
                try:
                    found.append(self._check_version(pack.saved))
                except RuntimeError as raised:
                    error = str(raised)
        return found, error

    @contextlib.contextmanager
    def observed(self) -> Iterator[list[tuple[torch.Tensor, int]]]:
        """Note the tensors that autograd saves meanwhile: in a region, which results do not lead to.

        Gives a list that has them afterwards, each with how many writes there were by then.
        """
        found: list[tuple[torch.Tensor, int]] = []
        if not saved_tensor_hooks_enabled():
            yield found
            return
        before, self._saved_in_region = self._saved_in_region, found
        hooks = _unheld(self._hold_in_region), lambda tensor: tensor
        try:
            with torch.autograd.graph.saved_tensors_hooks(*hooks):
                yield found
        finally:
            self._saved_in_region = before

    def _hold_in_region(self, tensor: torch.Tensor) -> torch.Tensor:
        self._held_in_regions.add(self._hold(tensor))
        self._saved_in_region.append((tensor, self.write_count))
        return tensor

    def _hold(self, tensor: torch.Tensor) -> int:
        storage = storage_identity(tensor)
        self._held[storage] = tensor
        return storage

    def note_results(self, results: Sequence[Any]) -> None:
        """Note the tensors that autograd has saved for the gradients of ``results``."""
        tensors = (value for value in results if isinstance(value, torch.Tensor))
        functions = self._functions([t.grad_fn for t in tensors if t.grad_fn is not None])
        numbers = set(map(number_of_node, functions))
        self._known_behind.clear()
        for function in functions:
            saved, error = self._saved_by(function, numbers)
            self._held_by[function] = frozenset(map(self._hold, saved))
            if error:
                self._overwritten[function] = error

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether autograd saved a tensor in this memory: it raises if that is written to before backward."""
        return storage_identity(tensor) in self._held

    def holds_by_views(self, index: int, tensor: torch.Tensor) -> bool:
        """Whether autograd saved nothing but views of the input, which stay where it gets other ``data``."""
        storage = storage_identity(tensor)
        apart = index in self._saved_inputs or storage in self._held_in_regions
        return storage in self._held and not apart

    def spared(self, results: Mapping[int, Sequence[torch.Tensor]]) -> dict[int, frozenset[int]]:
        """By storage that autograd holds: the ``results`` whose gradients it holds others for, but not this.

        What a region holds counts as held for all.  Each result is one tensor or more, by its number.
        """
        held = {
            number: frozenset[int]().union(
                *(self._held_by[function] for function in self._holding_behind(tensors))
            )
            for number, tensors in results.items()
        }
        known = frozenset[int]().union(*held.values()) - self._held_in_regions
        return {
            storage: frozenset(number for number in held if storage not in held[number])
            for storage in known
        }

    def held_for(self, results: Sequence[torch.Tensor]) -> list[Held]:
        """What autograd holds for the gradients of ``results``, apart for each set of inputs on the way."""
        functions = self._holding_behind(results)
        reached = self._inputs_behind(functions)
        held: dict[frozenset[int], set[int]] = {}
        errors: dict[frozenset[int], str] = {}
        for function in functions:
            inputs = reached[function]
            storages, error = self._held_by.get(function), self._overwritten.get(function)
            if inputs and (storages or error):
                held.setdefault(inputs, set()).update(storages or ())
                if error:
                    errors.setdefault(inputs, error)
        return [Held(i, frozenset(found), errors.get(i, "")) for i, found in held.items()]

    def _known(self, what: bool | None) -> dict[Place, frozenset[Any]]:
        """What has been found, which is kept until more is known of inputs and regions."""
        if len(self.made) != self._known_with:
            self._known_behind.clear()
            self._known_with = len(self.made)
        return self._known_behind.setdefault(what, {})

    def _holding_behind(self, results: Sequence[torch.Tensor]) -> frozenset[_Function]:
        """The nodes that hold something, or held what was overwritten, for the gradients of ``results``."""
        starts = [t.grad_fn for t in results if t.grad_fn is not None]

        def own(place: Place) -> frozenset[_Function]:
            function = function_at(place)
            holds = self._held_by.get(function) or function in self._overwritten
            return frozenset({function} if holds else ())

        behind = self._gather(starts, own, self._known(None), of_results=False)
        return frozenset[_Function]().union(*(behind[start] for start in starts))

    def _inputs_behind(
        self, starts: Iterable[Place], *, is_certain: bool = False
    ) -> Mapping[Place, frozenset[int]]:
        """By place, those that ``starts`` lead to among them: the inputs that it leads to in turn.

        In every call, or in some.
        """
        known = self._known(is_certain and len(self.made) > 0)

        def own(place: Place) -> frozenset[int]:
            index = self._input_number(function_at(place))
            return frozenset() if index is None else frozenset({index})

        return self._gather(starts, own, known, is_certain=is_certain)

    def _gather(
        self,
        starts: Iterable[Place],
        own: Callable[[Place], frozenset[T]],
        known: dict[Place, frozenset[T]],
        *,
        is_certain: bool = False,
        of_results: bool = True,
    ) -> Mapping[Place, frozenset[T]]:
        """Add to ``known`` what ``starts`` have of their ``own``, and all that they lead to has.

        ``of_results``: places that are one result of a node lead on by that alone.
        """
        pending = [*starts]
        while pending:
            place = pending[-1]
            if place in known:
                pending.pop()
                continue
            whole = place if of_results else function_at(place)
            following = self._behind(whole, is_certain=is_certain)
            unknown = [f for f in following if f not in known]
            if unknown:
                pending += unknown
                continue
            parts = {own(place), *(known[f] for f in following)}
            largest = max(parts, key=len)  # shared by most nodes
            known[place] = largest if all(map(largest.issuperset, parts)) else largest.union(*parts)
        return known

    def _behind(self, place: Place, *, is_certain: bool) -> Sequence[Place]:
        """What ``place`` leads to, in every call or in some, up to the inputs' own."""
        function = function_at(place)
        if function in self._input_of:
            return ()
        following = self._following.get(place)
        if following is None:
            following = self._following[place] = places_behind(place)
        if following or not len(self.made):
            return following
        leaf = getattr(function, "variable", None)
        if leaf is None or leaf not in self.made:
            return following
        certain, possible = self.made[leaf]
        return certain if is_certain else possible

    def note_input(self, index: int, tensor: torch.Tensor) -> None:
        """``tensor`` stands for the input ``index``, before anything has used it."""
        self._inputs[tensor] = index
        if not tensor.requires_grad:
            return
        self._edges[index] = edge_of(tensor)
        self.note_stand_in(index, tensor)

    def note_stand_in(self, index: int, tensor: torch.Tensor) -> None:
        """``tensor``, which a module holds, may stand for the input ``index`` in autograd's graph."""
        if not tensor.requires_grad:
            return
        self._known_behind.clear()
        if tensor.grad_fn is None:
            self._leaves[tensor] = index
        else:
            self._input_of[tensor.grad_fn] = index

    def note_made(self, leaf: torch.Tensor, sources: Sources) -> None:
        """``leaf`` stands for what a region computes of ``sources``."""
        certain, possible = (
            [
                place_of(tensor)
                for tensor in tensors
                if tensor.requires_grad and not is_unrecorded_view(tensor)
            ]
            for tensors in (sources.certain, sources.possible)
        )
        self.made[leaf] = certain, possible

    def check_derivatives(self, results: Sequence[Any]) -> None:
        """:raises Unsupported: results have gradients by an operator that autograd has no derivative of.

        What a program writes over what such an operator gave leaves eager's history in place, and no trace
        in a graph without writes: ``(x // 2).zero_()`` raises in backward.
        """
        starts = [
            get_gradient_edge(value).node
            for value in results
            if isinstance(value, torch.Tensor)
            and value.requires_grad
            and not is_unrecorded_view(value)
        ]
        for function in self._functions(starts):
            if function.name().startswith(_WITHOUT_DERIVATIVE):
                raise Unsupported("operator without a derivative", function.name())

    def changes(self, index: int, tensor: torch.Tensor) -> bool:
        """Whether the input, now ``tensor``, has gradients by another history than it came with."""
        if not tensor.requires_grad:
            return False
        return self._edges.get(index) != edge_of(tensor)

    def leads_through(self, values: Mapping[int, torch.Tensor]) -> dict[int, frozenset[int]]:
        """Which of ``values``, by number, each of them is computed from, itself apart."""
        numbers = {edge_of(value): number for number, value in values.items()}

        by_place: dict[Place, set[int]] = {}
        starts: dict[int, Place] = {}
        for number, value in values.items():
            if value.grad_fn is not None:
                starts[number] = place_of(value)
                by_place.setdefault(starts[number], set()).add(numbers[edge_of(value)])

        def met(place: Place) -> frozenset[int]:
            edges = edges_of(place)
            if not edges:  # it may stand for what a region computes
                sources = self._behind(place, is_certain=False)
                return frozenset[int]().union(*(by_place.get(source, ()) for source in sources))
            return frozenset(numbers[e] for e in edges if e in numbers)

        behind = self._gather(starts.values(), met, {})
        return {
            number: behind.get(starts.get(number), frozenset()) - {numbers[edge_of(value)]}
            for number, value in values.items()
        }

    def reach(self, tensor: torch.Tensor) -> Reach:
        """The inputs that have a gradient, be it zero, when ``tensor`` alone has."""
        recorded = tensor.requires_grad and not torch.is_inference_mode_enabled()
        if not recorded or is_unrecorded_view(tensor):
            return Reach(frozenset(), frozenset())
        start = place_of(tensor)
        certain, possible = (
            self._inputs_behind([start], is_certain=is_certain)[start]
            for is_certain in (True, False)
        )
        return Reach(certain, possible)

    def reached(self, tensor: torch.Tensor) -> frozenset[int]:
        """As :meth:`reach`, where that does not depend on data.

        :raises Unsupported: it does.
        """
        reach = self.reach(tensor)
        if reach.certain != reach.possible:
            raise Unsupported(
                "gradients that depend on the branch of a conditional or the length of a loop"
            )
        return reach.certain

    def region_leaves(self, results: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The leaves that stand for what regions give, and that ``results`` are computed from."""
        if not len(self.made):
            return []
        found = self._functions([t.grad_fn for t in results if t.grad_fn is not None])
        leaves = (getattr(function, "variable", None) for function in found)
        return [leaf for leaf in leaves if leaf is not None and leaf in self.made]

    def reached_among(
        self,
        results: Sequence[torch.Tensor],
        wanted: Sequence[torch.Tensor],
        expected: Sequence[bool] | None,
    ) -> list[bool]:
        """Whether each of ``wanted`` has a gradient where ``results`` have: as ``expected``, if data decides.

        :raises Unsupported: something else is known, or data decides and nothing is expected.
        """
        starts = [place_of(t) for t in results if t.requires_grad]
        nodes = [get_gradient_edge(tensor).node for tensor in wanted]

        def own(place: Place) -> frozenset[int]:
            return frozenset(k for k, node in enumerate(nodes) if node is function_at(place))

        known, possible = (
            frozenset[int]().union(
                *(self._gather(starts, own, {}, is_certain=is_certain)[start] for start in starts)
            )
            for is_certain in (True, False)
        )
        if expected is None and known != possible:
            raise Unsupported(_DECIDED_BY_DATA)
        there = known if expected is None else {k for k, e in enumerate(expected) if e}
        if not known <= there <= possible:
            raise Unsupported(_DECIDED_BY_DATA, "in another way than captured")
        return [k in there for k in range(len(wanted))]

    def _input_number(self, function: _Function) -> int | None:
        """The input whose gradient ``function`` takes."""
        leaf = getattr(function, "variable", None)
        return self._input_of.get(function) if leaf is None else self._leaves.get(leaf)

    def _functions(self, starts: Sequence[_Function]) -> set[_Function]:
        """``starts`` and what they lead to, in some calls at least, up to the inputs' own."""
        seen, pending = set(starts), [*starts]
        while pending:
            for place in self._behind(pending.pop(), is_certain=False):
                function = function_at(place)
                if function not in seen:
                    seen.add(function)
                    pending.append(function)
        return seen


def is_unrecorded_view(tensor: torch.Tensor) -> bool:
    """Whether this is a view that was made under ``no_grad``: it says that it requires a gradient if its base
    does, but autograd knows nothing of it."""
    if not (tensor.requires_grad and tensor.grad_fn is None and tensor._is_view()):
        return False
    base = tensor._base  # if it requires none this is a leaf, which was made to require gradients
    return base is None or base.requires_grad


def _written_by_data(tensor: torch.Tensor) -> Unsupported:
    return Unsupported(
        "write by .data to what autograd has saved",
        f"shape {tuple(tensor.shape)}",
        "write before the value is used, or to a clone()",
    )
