"""Which outputs are views of inputs or of one another, and what the graph has to return for that."""

from __future__ import annotations

import itertools
from collections.abc import Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.fx

from ._torch import (
    WriteRefusal,
    known_equal,
    share_version,
    storage_identity,
    version_of,
    write_refusal,
)
from .aten_recorder import AtenRecorder
from .functional_graph import (
    Constant,
    HeldValues,
    Number,
    OutputDescriptor,
    OutputKind,
    Reading,
    SameAsArgument,
    SameAsInput,
    SameAsOutput,
    ViewOfInput,
    ViewOfOutput,
    WholeOutput,
)
from .gradient_history import Held, Reach, is_unrecorded_view
from .region_layouts import returned_layout
from .symbolic_numbers import SYMBOLIC_TYPES, data_dependent_parts
from .tensor_ssa.alias_graph import AliasGraph
from .tensor_ssa.layout import dense_order
from .tensor_ssa.writes import block_writes
from .unsupported import Unsupported
from .ways_through_others import note_ways_through_others


@dataclass
class OutputPlan:
    """What the functional graph returns, as values of the program before conversion.

    ``values`` are the graph's outputs in order: variables whose last version is returned, each with the
    fake tensor whose layout it must have.  ``differentiated`` are the program's tensors that have gradients
    by an output, by its index; ``spared`` says of a storage what :meth:`GradientHistory.spared` does.
    ``led_through``: whether others have their gradients by inputs that lie in one storage, as these are now.
    """

    values: list[tuple[torch.fx.Node, torch.Tensor | None]] = field(default_factory=list)
    descriptors: list[OutputDescriptor] = field(default_factory=list)
    differentiated: dict[int, list[torch.Tensor]] = field(default_factory=dict)
    spared: dict[int, frozenset[int]] = field(default_factory=dict)
    led_through: bool = False

    def spared_by(self, tensor: torch.Tensor) -> frozenset[int]:
        """The outputs whose gradients autograd does not hold ``tensor`` for, if it does for others."""
        return self.spared.get(storage_identity(tensor), frozenset())

    def add(
        self, node: torch.fx.Node, layout: torch.Tensor | None, descriptor: OutputDescriptor
    ) -> int:
        index = len(self.values)
        self.values.append((node, layout))
        self.descriptors.append(replace(descriptor, graph_index=index))
        return index


def plan_outputs(
    outputs: Sequence[Any],
    recorder: AtenRecorder,
    aliases: AliasGraph,
    mutated: Sequence[int],
    written: Set[torch.fx.Node],
    *,
    read_as_eager: bool = False,
    views_as_eager: bool = False,
) -> OutputPlan:
    """Decide what is returned; ``mutated`` are indices into ``recorder.inputs``.

    ``written`` are the origins that the program writes to.  ``read_as_eager``: backward has to find
    what autograd holds of the outputs' memory there.  ``views_as_eager``: an output that is a view there is
    one.
    """
    plan = OutputPlan()
    for index in mutated:
        recorded = recorder.inputs[index]
        described = OutputDescriptor(
            OutputKind.MUTATED_INPUT,
            None,
            input_index=index,
            requires_grad=recorder.history.changes(index, recorded.value),
            reached=recorder.history.reached(recorded.value),
            writes=_counted_writes(recorded.value, recorder),
        )
        is_kept = recorder.history.holds(recorded.value) and dense_order(recorded.value) is not None
        index = plan.add(recorded.node, recorded.value if is_kept else None, described)
        if described.requires_grad:
            plan.differentiated[index] = [recorded.value]
    like_eager = read_as_eager, views_as_eager
    _UserOutputs(plan, recorder, aliases, outputs, written, *like_eager).add_all()
    plan.spared = recorder.history.spared(plan.differentiated)
    for k, descriptor in enumerate(plan.descriptors):
        returned = descriptor.graph_index
        if returned in plan.differentiated:
            spared = plan.spared_by(plan.differentiated[returned][0])
            plan.descriptors[k] = replace(descriptor, spared=spared)
    _note_held(plan, recorder, outputs)
    nodes = [node for node, _ in plan.values]
    plan.led_through = note_ways_through_others(
        plan.descriptors, plan.differentiated, nodes, outputs, recorder
    )
    return plan


def _counted_writes(value: torch.Tensor, recorder: AtenRecorder) -> int:
    """How often autograd counts that an input was written to; once for what no fake shows."""
    if value.is_inference():  # which count no versions
        return 1
    told = recorder.regions and recorder.history.was_told_of_write(value)
    return max(value._version, 1) if told else value._version


def _counts_with(variable: Any, given: torch.Tensor) -> bool:
    """Whether autograd counts writes to a variable as writes to ``given``, as far as its fake shows."""
    if not isinstance(variable, torch.Tensor) or variable.is_inference() or given.is_inference():
        return True
    return share_version(variable, given)


def _note_held(plan: OutputPlan, recorder: AtenRecorder, outputs: Sequence[Any]) -> None:
    """Say what eager's autograd holds for the outputs' gradients, of what the caller has and writes to."""
    inputs: dict[int, set[int]] = {}
    for index, recorded in enumerate(recorder.inputs):
        for tensor in (recorded.value, recorded.tensor):
            if isinstance(tensor, torch.Tensor):
                inputs.setdefault(storage_identity(tensor), set()).add(index)
    returned: dict[int, set[int]] = {}
    for descriptor in plan.descriptors:
        place, alias = descriptor.graph_index, descriptor.alias
        if isinstance(alias, (ViewOfOutput, WholeOutput)):
            place = alias.output_index
        if descriptor.kind is OutputKind.USER_OUTPUT and place is not None:
            value = outputs[descriptor.position or 0]
            returned.setdefault(storage_identity(value), set()).add(place)

    def found(storages: Set[int], places: dict[int, set[int]]) -> frozenset[int]:
        return frozenset(place for s in storages for place in places.get(s, ()))

    same: dict[Held, HeldValues] = {}  # most are on the way from many outputs

    def told(held: Held) -> HeldValues:
        if held not in same:
            storages = held.storages
            given, results = found(storages, inputs), found(storages, returned)
            same[held] = HeldValues(held.reached, given, results, held.error)
        return same[held]

    for k, descriptor in enumerate(plan.descriptors):
        tensors = plan.differentiated.get(-1 if (g := descriptor.graph_index) is None else g)
        if not tensors:
            continue
        every = map(told, recorder.history.held_for(tensors))
        held = tuple(h for h in every if h.inputs or h.outputs or h.error)
        plan.descriptors[k] = replace(descriptor, held=held)


class _UserOutputs:
    def __init__(
        self,
        plan: OutputPlan,
        recorder: AtenRecorder,
        aliases: AliasGraph,
        outputs: Sequence[Any],
        written: Set[torch.fx.Node],
        read_as_eager: bool,
        views_as_eager: bool,
    ) -> None:
        self._views_as_eager = views_as_eager
        self._read_as_eager = read_as_eager
        self._plan = plan
        self._recorder = recorder
        self._aliases = aliases
        self._outputs = outputs
        self._written = written
        self._input_of = {recorded.node: i for i, recorded in enumerate(recorder.inputs)}
        self._argument_of = recorder.shared_views
        self._origins: dict[int, torch.fx.Node] = {}
        self._groups: dict[torch.fx.Node, dict[int, torch.Tensor]] = {}
        for value in outputs:
            if isinstance(value, torch.Tensor):
                node = recorder.node_of(value)
                origin = aliases.origin(node)
                self._origins[id(value)] = origin
                self._groups.setdefault(origin, {})[id(value)] = value

    def add_all(self) -> None:
        first: dict[int, int] = {}  # by id of the tensor: position of its first return
        described = [
            self._describe(position, value, first) for position, value in enumerate(self._outputs)
        ]
        bases = {
            origin: self._add_base(origin)
            for origin in self._groups
            if origin not in self._input_of and self._needs_base(origin)
        }
        for descriptor, value in zip(described, self._outputs, strict=True):
            if descriptor.graph_index is None and descriptor.alias is None:
                index = bases[self._origins[id(value)]]
                part = self._part_of_base(value, index)
                is_apart = isinstance(part, ViewOfOutput) and not part.shares_version
                writes = version_of(value) if is_apart else 0
                descriptor = replace(descriptor, alias=part, writes=writes)
            self._plan.descriptors.append(descriptor)
        for origin, index in bases.items():
            self._plan.descriptors.append(self._describe_base(origin, index))
        self._add_numbers()

    def _part_of_base(self, value: torch.Tensor, index: int) -> ViewOfOutput | WholeOutput:
        """Where a user output lies in output ``index``; eager's own base is no view of another."""
        base = self._plan.values[index][0]
        views = self._groups[self._origins[id(value)]].values()
        has_all_gradients = value.requires_grad or not any(v.requires_grad for v in views)
        if self._recorder.node_of(value) is base and not value._is_view() and has_all_gradients:
            return WholeOutput(index)
        node, origin = self._recorder.node_of(value), self._origins[id(value)]
        whole, part = self._layout(base), self._layout(node)
        view = ViewOfOutput(index, *_view_of(part, whole), covers=_covers(part, whole))
        view = replace(view, refusal=write_refusal(value))
        if value.requires_grad:
            return view
        first = self._first_of_version(value, base)
        if first is not None:  # another than the base's
            position = next(k for k, output in enumerate(self._outputs) if output is first)
            made_of = None if first is value else position
            view = replace(view, shares_version=False, made_of=made_of)
            return replace(view, is_view=self._is_view(value))
        is_older = self._is_written_behind(node, origin, whole)
        return replace(view, is_view=self._is_view(value) or is_older, is_older=is_older)

    def _first_of_version(self, value: torch.Tensor, base: torch.fx.Node) -> torch.Tensor | None:
        """The first output that counts writes as ``value`` does; None where the base does too."""
        origin = self._origins[id(value)]
        if _counts_with(value, self._main_view(origin, base)):
            return None
        return next(v for v in self._groups[origin].values() if _counts_with(value, v))

    def _main_view(self, origin: torch.fx.Node, base: torch.fx.Node) -> torch.Tensor:
        """The output that counts writes as the base: one that has gradients, or else the base itself."""
        views = list(self._groups[origin].values())
        recorded = (v for v in views if v.requires_grad)
        whole = (v for v in views if self._recorder.node_of(v) is base and not v._is_view())
        return next(itertools.chain(recorded, whole), views[0])

    def _add_numbers(self) -> None:
        """Return the numbers that depend on data which the places of views are computed from."""
        views = [d.alias for d in self._plan.descriptors]
        numbers = [
            number
            for view in views
            if isinstance(view, (ViewOfInput, ViewOfOutput))
            for number in (*view.size, *view.stride, view.offset)
        ]
        for number in data_dependent_parts(numbers):
            node = self._recorder.numbers.node_of(number)
            descriptor = OutputDescriptor(OutputKind.NUMBER, None, alias=Number(number))
            self._plan.add(node, None, descriptor)

    def _describe(self, position: int, value: Any, first: dict[int, int]) -> OutputDescriptor:
        described = OutputDescriptor(OutputKind.USER_OUTPUT, None, position=position)
        if isinstance(value, (list, tuple, dict, set)):
            raise Unsupported("nested output", type(value).__name__, "return a flat tuple")
        if isinstance(value, SYMBOLIC_TYPES):
            return replace(described, alias=Number(value))
        if not isinstance(value, torch.Tensor):
            return replace(described, alias=Constant(value))
        history = self._recorder.history
        reach = history.reach(value)
        described = replace(
            described,
            requires_grad=value.requires_grad,
            reached=reach.possible,
            reached_in_some=reach.possible - reach.certain,
            unrecorded=is_unrecorded_view(value),
            exposed=not history.holds(value),
        )
        node, origin = self._recorder.node_of(value), self._origins[id(value)]
        if node in self._input_of:
            return replace(described, alias=SameAsInput(self._input_of[node]))
        if node in self._argument_of:
            return replace(described, alias=SameAsArgument(self._argument_of[node]))
        if first.setdefault(id(value), position) != position:
            return replace(described, alias=SameAsOutput(first[id(value)]))
        if origin in self._input_of:
            index = self._input_of[origin]
            if not self._recorder.with_gradients:
                described = self._as_the_input(described, index, value)
            if value.requires_grad and self._detached(value):
                raise Unsupported(
                    "returned view of an input with a history of its own",
                    str(value),
                    "return a clone() of the detached tensor",
                )
            given = self._recorder.inputs[index].value
            view = ViewOfInput(index, *_view_of(value, given))
            if not value.requires_grad:
                is_counted = (
                    value.is_inference() or given.is_inference() or share_version(value, given)
                )
                view = replace(
                    view,
                    is_view=self._is_view(value),
                    shares_version=is_counted,
                    is_older=is_counted and self._is_written_behind(node, origin, given),
                )
            writes = 0 if view.shares_version else version_of(value)
            return replace(described, alias=view, writes=writes)
        if not self._needs_base(origin):
            index = len(self._plan.values)
            self._plan.values.append((node, self._layout(node)))
            self._note_gradients(index, [value])
            return replace(described, graph_index=index, writes=version_of(value))
        return described  # regenerated from the base

    def _is_view(self, value: torch.Tensor) -> bool:
        """Whether a result was made as a view, of inference tensors too, where ``detach`` is none.

        Autograd knows no views of those, and refuses writes to them outside inference mode, but for what
        ``detach`` gives.
        """
        if not value.is_inference():
            return value._is_view()
        return self._recorder.node_of(value) not in self._detached(value)[:1]

    def _is_written_behind(
        self, view: torch.fx.Node, origin: torch.fx.Node, given: torch.Tensor
    ) -> bool:
        """Whether the program writes to a view's memory after it has made the view, not by ``data``."""
        if origin not in self._written:
            return False
        behind = itertools.dropwhile(lambda node: node is not view, self._recorder.graph.nodes)
        written = itertools.chain.from_iterable(map(block_writes, behind))
        return any(
            self._aliases.origin(variable) is origin
            and _counts_with(variable.meta.get("val"), given)
            for variable in written
        )

    def _layout(self, node: torch.fx.Node) -> torch.Tensor:
        return returned_layout(self._recorder, node, self._aliases)

    def _note_gradients(self, index: int, tensors: Sequence[torch.Tensor]) -> None:
        recorded = [t for t in tensors if t.requires_grad and not is_unrecorded_view(t)]
        if recorded:
            self._plan.differentiated[index] = recorded

    def _as_the_input(
        self, described: OutputDescriptor, index: int, value: torch.Tensor
    ) -> OutputDescriptor:
        """A view that is made with gradients disabled says that it requires one where what it is of does."""
        inherits = self._recorder.inputs[index].requires_grad and not self._detached(value)
        return replace(described, requires_grad=inherits, unrecorded=True)

    def _describe_base(self, origin: torch.fx.Node, index: int) -> OutputDescriptor:
        """The base has gradients as its views together have."""
        history = self._recorder.history
        views = list(self._groups[origin].values())
        main = self._main_view(origin, self._plan.values[index][0])
        self._note_gradients(index, views)
        if len(views) == 1:
            reach = history.reach(views[0])
        else:
            reached = frozenset[int]().union(*map(history.reached, views))
            reach = Reach(reached, reached)
        return OutputDescriptor(
            OutputKind.ALIAS_BASE,
            index,
            requires_grad=any(v.requires_grad and not is_unrecorded_view(v) for v in views),
            reached=reach.possible,
            reached_in_some=reach.possible - reach.certain,
            exposed=not history.holds(views[0]),
            writes=max(version_of(v) for v in views if _counts_with(v, main)),
        )

    def _needs_base(self, origin: torch.fx.Node) -> bool:
        """Whether outputs share the origin's storage, or lie in it as a version would not, or are views.

        ``zeros(3).copy_(x)[1:]`` has an offset of 1, and slicing ``x``, copied, would have none.  A view that
        autograd lets nobody write to has to be one, where it looks on.
        """
        values = self._groups[origin].values()
        if len(values) > 1:
            return True
        (value,) = values
        if value.is_conj() or value.is_neg():  # lazily: the graph computes what it is to be read as
            return True
        if self._recorder.with_gradients and write_refusal(value) is not None:
            return True
        if self._views_as_eager and value.requires_grad and value._is_view():
            return True
        if self._read_as_eager and self._recorder.history.holds(value):
            return self._recorder.node_of(value) is not origin
        if origin not in self._written:
            return False
        whole = origin.meta["val"]
        begins = known_equal(value.storage_offset(), whole.storage_offset())
        is_plain = value.dtype == whole.dtype and not value.is_conj() and not value.is_neg()
        return dense_order(value) is None or (is_plain and not begins)

    def _add_base(self, origin: torch.fx.Node) -> int:
        index = len(self._plan.values)
        base = self._base_with_history(origin)
        self._plan.values.append((base, self._layout(base)))
        return index

    def _base_with_history(self, origin: torch.fx.Node) -> torch.fx.Node:
        """The origin, or what all returned views of it are of as autograd sees it: after ``detach``.

        What is written to that has another history than the origin.  torch detaches what ``zeros`` and its
        kin make.
        """
        values = list(self._groups[origin].values())
        detached = [self._detached(value) for value in values]
        common = [
            node
            for node in detached[0]
            if all(node in others for others in detached) and _is_laid_out_as(node, origin)
        ]
        for value, nodes in zip(values, detached, strict=True):
            if value.requires_grad and nodes[: 1 if common else None] != common[:1]:
                raise Unsupported(
                    "returned views of one tensor with several histories",
                    str(value),
                    "return a clone() of the detached tensor",
                )
        return common[0] if common else origin

    def _detached(self, value: torch.Tensor) -> list[torch.fx.Node]:
        """The results of ``detach`` that a value is a view of, or is itself, the last one first."""
        path = self._aliases.path_to_origin(self._recorder.node_of(value))
        return [edge.view for edge in path if edge.is_detached]


def _is_laid_out_as(node: torch.fx.Node, origin: torch.fx.Node) -> bool:
    """Whether a view has all of its origin's elements where that has them."""
    view, whole = node.meta["val"], origin.meta["val"]
    places = [(each.shape, each.stride(), each.storage_offset()) for each in (view, whole)]
    return bool(places[0] == places[1])


def _view_of(
    value: torch.Tensor, base: torch.Tensor
) -> tuple[tuple[int, ...], tuple[int, ...], int, WriteRefusal | None, Reading | None]:
    own, other = (tensor.dtype.itemsize for tensor in (value, base))
    unit = min(own, other)
    offset: Any = value.storage_offset() * (own // unit) - base.storage_offset() * (other // unit)
    conjugated = value.is_conj() != base.is_conj() and value.is_complex()
    reading = Reading(value.dtype, conjugated, value.is_neg() != base.is_neg())
    plain = None if reading == Reading(base.dtype) else reading
    return tuple(value.shape), tuple(value.stride()), offset, write_refusal(value), plain


def _covers(value: torch.Tensor, base: torch.Tensor) -> bool:
    """Whether a view has every element of its base where the base has it."""
    if value.dtype != base.dtype or value.dim() != base.dim():
        return False
    places = ((t.storage_offset(), *t.shape, *t.stride()) for t in (value, base))
    return all(known_equal(own, other) for own, other in zip(*places, strict=True))


def shared_storage(values: Sequence[Any]) -> list[set[int]]:
    """Groups of positions of tensors that share storage."""
    groups: dict[int, set[int]] = {}
    for position, value in enumerate(values):
        if isinstance(value, torch.Tensor):
            groups.setdefault(storage_identity(value), set()).add(position)
    return [group for group in groups.values() if len(group) > 1]
