"""What a region operator is given, and the recorded blocks that it runs on that."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
import torch.fx

from ._torch import expression_of
from .aten_recorder import AtenRecorder
from .gradient_history import Reach, Sources
from .region_conversion import convert_block
from .region_recorder import RegionRecorder
from .region_sharing import MaybeOne, StorageGroups, storage_of, written_storages
from .region_ties import Sharing
from .symbolic_numbers import SYMBOLIC_TYPES, symbols_given_by
from .tensor_ssa.alias_graph import build_alias_graph
from .tensor_ssa.block_propagation import order_parameters
from .tensor_ssa.layout import copied_order, dense_order
from .tensor_ssa.region_aliases import RegionAlias
from .unsupported import Unsupported
from .writes_to_one_of_several import Gain

aten = torch.ops.aten

_NO_SOURCES = Sources()
_SIZE_QUERIES = (aten.sym_size.int, aten.sym_stride.int)

MAX_ATTEMPTS = 8  # at recording a region whose operands turn out to have to be passed otherwise


class RegionRunner(Protocol):
    """Runs a captured graph's nodes on values under a recorder: what the graph returns."""

    def record(
        self, module: torch.fx.GraphModule, recorder: AtenRecorder, values: Sequence[Any]
    ) -> tuple[Any, ...]:
        """``values`` become the recorder's inputs."""

    def inline(
        self, module: torch.fx.GraphModule, recorder: AtenRecorder, values: Sequence[Any]
    ) -> tuple[Any, ...]:
        """``values`` are the recorder's own, which is active."""


@dataclass
class Operands(Sharing):
    """What a region operator is given: the program's values, and what is passed for them.

    ``passed`` differs from ``values`` where a copy with other strides is passed.
    """

    passed: list[Any] = field(init=False)

    def __post_init__(self) -> None:
        self.passed = list(self.values)

    def give_strides(self, position: int, wanted: torch.Tensor) -> None:
        """Pass a copy in the dense layout of ``wanted``; raises Unsupported where sizes don't say which."""
        order = dense_order(wanted)
        if order is None:
            raise Unsupported("carried tensor whose layout depends on its sizes", str(wanted))
        inverse = [order.index(d) for d in range(len(order))]
        dense = self.passed[position].permute(order).clone(memory_format=torch.contiguous_format)
        self.passed[position] = dense.permute(inverse)

    def pass_dense(self, parent: AtenRecorder, written: Iterable[int]) -> bool:
        """Pass dense copies for written operands that are not; whether any had to be changed."""
        changed = False
        for position in written:
            if position < len(self.passed) and dense_order(self.passed[position]) is None:
                self.give_strides(position, placed(parent, self.passed[position]))
                changed = True
        return changed


@dataclass
class RecordedRegion:
    """A region as recorded: what it was run on, and what it returned, in its recorder's tensors."""

    recorder: RegionRecorder
    given: Sequence[Any]
    outputs: tuple[Any, ...]

    def order(self, taken: Sequence[Any]) -> list[int]:
        """The block's inputs in the order of the operator's operands, then ``taken``."""
        return [*range(len(self.given)), *(self.recorder.take(outer) for outer in taken)]

    def names(self, taken: Sequence[Any]) -> dict[int, int]:
        """By position among operands and ``taken``, the storages that they have inside."""
        storages = {
            position: storage_of(value)
            for position, value in enumerate([*self.given, *taken])
            if position not in self.recorder.views
        }
        return {position: s for position, s in storages.items() if s is not None}

    def reach(self, value: Any, order: Sequence[int]) -> Reach:
        """The positions in ``order`` of what ``value`` has gradients to."""
        if not isinstance(value, torch.Tensor):
            return Reach(frozenset(), frozenset())
        with self.recorder.parent.paused(), self.recorder.paused():
            found = self.recorder.own_history.reach(value)
        return Reach(*(frozenset(map(order.index, s)) for s in (found.certain, found.possible)))

    def may_detach(self) -> bool:
        """Whether autograd may not know of a result that it is one with what the block is given."""
        aliases = build_alias_graph(self.recorder.graph)
        results = [self.recorder.node_of(v) for v in self.outputs if isinstance(v, torch.Tensor)]
        paths = (edge for node in results for edge in aliases.path_to_origin(node))
        pairs = self.recorder.region_aliases
        return any(edge.is_unseen for edge in paths) or any(p.may_be_unseen for p in pairs)

    def inside(self) -> StorageGroups:
        """What may share storage when the block's own regions are all that joins anything."""
        groups = StorageGroups()
        groups.join_region_results(self.recorder)
        return groups


def touched_operands(
    block: RecordedRegion, names: Mapping[int, int], groups: StorageGroups | None = None
) -> set[int]:
    """The positions in ``names`` of operands that the block may write."""
    groups = groups or block.inside()
    written = {groups.find(storage) for storage in written_storages(block.recorder)}
    return {position for position, storage in names.items() if groups.find(storage) in written}


def record_block(
    parent: AtenRecorder,
    module: torch.fx.GraphModule,
    values: Sequence[Any],
    sharing: Sharing,
    runner: RegionRunner,
) -> RecordedRegion:
    """Record a region on ``values``, which belong to ``parent``."""
    recorder = RegionRecorder(module, parent, sharing.views, list(sharing.ties.values()))
    with parent.paused():
        return RecordedRegion(recorder, values, runner.record(module, recorder, values))


def share_taken(blocks: Sequence[RecordedRegion]) -> list[Any]:
    """Let every block have a placeholder for what any has taken; these values, in one order."""
    outers = {key: outer for b in blocks for key, (outer, _) in b.recorder.taken.items()}
    for block in blocks:
        for outer in outers.values():
            block.recorder.take(outer)
    return list(outers.values())


def convert(
    block: RecordedRegion,
    outputs: Sequence[tuple[Any, Any]],
    written: Sequence[int],
    order: Sequence[int],
    given_away: Collection[int] = (),
    is_condition: bool = False,
) -> torch.fx.GraphModule:
    """The functional region, with the placeholders in ``order``; those left out have to be unused.

    All are positions in the recorder's inputs.
    """
    recorder = block.recorder
    graph = recorder.graph
    if any(getattr(node.target, "is_gradient_rule", False) for node in graph.nodes):
        raise Unsupported("gradients that the program wrote itself, in a region")
    with recorder.parent.paused():
        convert_block(recorder, outputs, written, given_away)
        nodes = [recorder.inputs[i].node for i in order]
        for node in set(graph.find_nodes(op="placeholder")).difference(nodes):
            _read_sizes_elsewhere(node, nodes)
            graph.erase_node(node)
        order_parameters(graph, nodes)
        if is_condition:
            _return_bare(graph)
        graph.lint()
        return torch.fx.GraphModule(dict(recorder.regions), graph, "Region")


def _read_sizes_elsewhere(left_out: torch.fx.Node, placeholders: Sequence[torch.fx.Node]) -> None:
    """Read symbols from other placeholders; an operand that is made anew as a view is none."""
    places = symbols_given_by([node.meta["val"] for node in placeholders])
    for user in [node for node in left_out.users if node.target in _SIZE_QUERIES]:
        symbol = expression_of(user.meta["val"])
        if symbol not in places:
            raise Unsupported("number that the inputs do not determine", str(symbol))
        place = places[symbol]
        node = placeholders[place.index]
        if place.dimension is None:
            user.replace_all_uses_with(node)
            left_out.graph.erase_node(user)
        else:
            user.target = aten.sym_stride.int if place.is_stride else aten.sym_size.int
            user.args = (node, place.dimension)


def _return_bare(graph: torch.fx.Graph) -> None:
    """torch's loops want the condition's value itself, not a tuple of one."""
    (output,) = graph.find_nodes(op="output")
    output.args = output.args[0]
    output.meta["val"] = output.meta["val"][0]


def fresh(parent: AtenRecorder, like: torch.Tensor, sources: Sources = _NO_SOURCES) -> torch.Tensor:
    """A fake tensor with storage of its own in the layout of ``like``; with gradients if that has them.

    ``sources`` are the parent's tensors that it is computed from.
    """
    with parent.paused():
        made = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=like.device)
    if like.requires_grad:
        parent.give_gradients((made, sources))
    return made


def count_region_writes(parent: AtenRecorder, tensor: torch.Tensor, times: int) -> None:
    """Have autograd count the writes of a region to the parent's ``tensor``."""
    if times and not tensor.is_inference():
        with parent.paused():
            torch.autograd.graph.increment_version([tensor] * times)


def written_by_region(parent: AtenRecorder, tensor: torch.Tensor, sources: Sources) -> list[Gain]:
    """What may be one with ``tensor``, which a region writes to, and gains gradients to ``sources``."""
    if not parent.history.may_be_others(tensor):
        return []
    return parent.gaining_others(tensor, [s for s in sources.possible if s.requires_grad])


def sources_at(values: Sequence[Any], reach: Reach) -> Sources:
    """The tensors among ``values`` at the positions."""
    return Sources(*([values[p] for p in sorted(s)] for s in (reach.certain, reach.possible)))


def placed(
    parent: AtenRecorder, tensor: torch.Tensor, sources: Sources = _NO_SOURCES
) -> torch.Tensor:
    """A fresh tensor like ``tensor``, as ``empty_like`` makes one if that has gaps; ``sources`` as there."""
    if dense_order(tensor) is not None:
        return fresh(parent, tensor, sources)
    order = copied_order(tensor)
    with parent.paused():
        dense = torch.empty([tensor.shape[d] for d in order], device="meta")
        strides = [dense.stride(order.index(d)) for d in range(len(order))]
        made = torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=tensor.device)
    if tensor.requires_grad:
        parent.give_gradients((made, sources))
    return made


def operand_node(parent: AtenRecorder, value: Any) -> Any:
    """The parent's node of a tensor or a symbolic number; another value as it is."""
    if isinstance(value, torch.Tensor):
        return parent.node_of(value)
    return parent.numbers.node_of(value) if isinstance(value, SYMBOLIC_TYPES) else value


def check_same(left: torch.Tensor, right: torch.Tensor, kind: str) -> None:
    """Raise :class:`Unsupported` for tensors of different sizes, dtypes or devices."""
    described = [(tuple(t.shape), t.dtype, t.device) for t in (left, right)]
    if described[0] != described[1]:
        raise Unsupported(kind, f"{described[0]} and {described[1]}")


def note_aliases(
    parent: AtenRecorder,
    items: Mapping[int, torch.fx.Node],
    values: Sequence[Any],
    pairs: Mapping[MaybeOne, torch.Tensor | bool | None],
    *,
    may_be_unseen: bool,
) -> None:
    """Note in the parent what results (by position in the region) may be one with, and the flags for that.

    ``may_be_unseen``: the region may have detached some.
    """
    for pair, flag in pairs.items():
        if pair.result not in items:
            continue
        other: Any = None
        if not pair.is_operand:
            other = items.get(pair.position)
        elif isinstance(values[pair.position], torch.Tensor):
            other = parent.node_of(values[pair.position])
        if other is not None:
            node = parent.node_of(flag) if isinstance(flag, torch.Tensor) else flag
            parent.region_aliases.append(
                RegionAlias(items[pair.result], other, node, may_be_unseen=may_be_unseen)
            )
            if flag is not False:
                history = parent.history
                history.note_maybe_one(items[pair.result].meta["val"], other.meta["val"])
