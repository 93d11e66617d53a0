"""The result of lowering: loop nodes and extern calls over named buffers, before any fusion."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import sympy
import torch

from weft_loop_ir import _torch
from weft_loop_ir.bodies import LoopBody, Scan
from weft_loop_ir.ir import (
    Buffer,
    BufferKind,
    BufferView,
    ExternCall,
    Kernel,
    Loop,
    LoopVariable,
    ParallelKernels,
    Region,
    Schedule,
    SymbolInput,
)


@dataclass(frozen=True)
class LoopNode:
    """One unfused loop nest: ``for loops: for reduction_loops: body``.

    A pointwise node has no ``reduction_loops``.  In a reduction node every store is of a reduction's
    result, at an index over ``loops``, but in a scan, whose stores are of what follows from ``ops.scan``.
    Nodes of different ``block`` are not fused.
    """

    name: str
    loops: tuple[LoopVariable, ...]
    reduction_loops: tuple[LoopVariable, ...]
    body: LoopBody
    origins: tuple[str, ...]
    block: int = 0

    @functools.cached_property
    def reads(self) -> tuple[str, ...]:
        """The buffers that it reads, in order of first access."""
        return self.body.reads

    @functools.cached_property
    def writes(self) -> tuple[str, ...]:
        """The buffers that it writes, in order of first access."""
        return self.body.writes

    @property
    def all_loops(self) -> tuple[LoopVariable, ...]:
        """Those over results, and those that are reduced."""
        return (*self.loops, *self.reduction_loops)

    @property
    def is_scan(self) -> bool:
        """Whether it scans along its reduction loop."""
        return self.body.holds(Scan)


@dataclass(frozen=True)
class LoopGraph:
    """A lowered graph: nodes in a valid order of execution.  Fields as in :class:`~weft_loop_ir.Schedule`."""

    name: str
    inputs: tuple[str | SymbolInput, ...]
    symbols: tuple[SymbolInput, ...]
    buffers: Mapping[str, Buffer]
    nodes: tuple[Node, ...]
    outputs: tuple[BufferView | sympy.Expr | int | float | bool | None, ...]
    fallbacks: Mapping[str, int] = field(default_factory=dict)
    constants: Mapping[str, torch.Tensor] = field(default_factory=dict)
    operators: Mapping[str, str] = field(default_factory=dict)
    """The operators (``aten::add``) of the nodes in ``origins``, by name, in their order."""


Node = LoopNode | ExternCall | Region | Kernel
"""A loop graph has a kernel only in place of a loop."""

Item = Node | ParallelKernels


def item_reads(item: Item) -> tuple[str, ...]:
    """The names of the buffers that ``item`` reads, once each; a loop reads what it carries."""
    if isinstance(item, LoopNode | Kernel | ExternCall):
        return item.reads
    if isinstance(item, ParallelKernels):
        return tuple(dict.fromkeys(name for kernel in item.kernels for name in kernel.reads))
    names = [] if item.predicate is None else [item.predicate.buffer]
    if isinstance(item, Loop):
        names += item.carried
    names += [name for inner in nested_items(item) for name in item_reads(inner)]
    return tuple(dict.fromkeys(names))


def item_writes(item: Item) -> tuple[str, ...]:
    """The names of the buffers that ``item`` writes, once each."""
    if isinstance(item, LoopNode | Kernel):
        return item.writes
    if isinstance(item, ExternCall):
        return extern_writes(item)
    if isinstance(item, ParallelKernels):
        return tuple(dict.fromkeys(name for kernel in item.kernels for name in kernel.writes))
    return tuple(dict.fromkeys(name for inner in nested_items(item) for name in item_writes(inner)))


def nested_items(region: Region) -> list[Item]:
    """What the blocks of ``region`` hold, in order; regions within are not opened."""
    return [item for block in region.blocks for item in block]


def all_items(items: Iterable[Item]) -> Iterator[Item]:
    """``items`` in order, each followed by the kernels or the blocks that are in it, at any depth."""
    for item in items:
        yield item
        if isinstance(item, ParallelKernels):
            yield from item.kernels
        if isinstance(item, Region):
            yield from all_items(nested_items(item))


def changes_state(item: Item) -> bool:
    """Whether a call in ``item`` does more than give results or raise: draws numbers, communicates."""
    calls = (i for i in all_items([item]) if isinstance(i, ExternCall))
    return any(_torch.changes_state(call.operator) for call in calls)


def has_effect(item: Item, buffers: Mapping[str, Buffer]) -> bool:
    """Whether ``item`` writes to what a program is given, or changes state."""
    return any(buffers[name].kind.is_given for name in item_writes(item)) or changes_state(item)


def raises_by_value(item: Item, *, asserts_later: bool = False) -> bool:
    """Whether ``item`` is a call that raises an error for some values of its operands, or a check of them.

    ``asserts_later``: as on a GPU, where what a kernel finds is told after the call has returned.
    """
    if not isinstance(item, ExternCall):
        return False
    if item.requires:
        return True
    name = item.operator._schema.name.removeprefix("aten::")
    if name == "histc":
        low, high = (item.named_arguments.get(bound, 0) for bound in ("min", "max"))
        return bool(low == high)  # which are the data's own then, and have to be finite
    return name in _REFUSING or (name in _ASSERTING and not asserts_later)


_ASSERTING = frozenset(
    (
        *("floor_divide", "remainder", "fmod", "div", "pow", "_assert_async"),
        *("nll_loss_forward", "nll_loss2d_forward", "binary_cross_entropy"),
        *("embedding", "_embedding_bag", "index", "index_select", "gather", "take", "index_put"),
        *("put", "index_add", "index_copy", "index_fill", "index_reduce", "scatter", "scatter_add"),
        *("scatter_reduce", "masked_scatter", "multilabel_margin_loss_forward"),
    )
)
"""Integers divided by zero, positions out of range, what is no class or probability."""

_REFUSING = frozenset(
    (
        *("_linalg_check_errors", "bincount", "repeat_interleave", "max_unpool2d", "max_unpool3d"),
        *("linalg_inv_ex", "_linalg_solve_ex", "_linalg_svd", "_linalg_eigh", "linalg_eig"),
        *("linalg_lstsq", "linalg_ldl_solve"),
    )
)
"""What a call looks at before it returns, wherever it runs: counts below zero, singular matrices."""


def last_uses(schedule: Schedule) -> dict[str, float]:
    """The number of the last step that touches each buffer; infinite for those that results are made of."""
    last: dict[str, float] = {}
    for number, step in enumerate(schedule.steps):
        last.update(dict.fromkeys((*item_reads(step), *item_writes(step)), number))
    for view in schedule.outputs:
        if isinstance(view, BufferView):
            last[view.buffer] = float("inf")
    return last


def copied_results(program: LoopGraph | Schedule) -> set[str]:
    """The outputs that a program copies to another device for its caller, and doesn't touch but for that."""
    items = program.nodes if isinstance(program, LoopGraph) else program.steps
    copies = {
        name
        for item in all_items(items)
        if isinstance(item, ExternCall) and item.operator is torch.ops.aten._to_copy.default
        for name in item.outputs
        if name is not None and program.buffers[name].kind is BufferKind.OUTPUT
    }
    touched = touches(items)
    return {name for name in copies if touched[name] == 1 and _changes_device(program, name)}


def _changes_device(program: LoopGraph | Schedule, name: str) -> bool:
    device = program.buffers[name].layout.device
    return any(b.layout.device != device for b in program.buffers.values())


def devices_of(program: LoopGraph | Schedule) -> set[torch.device]:
    """The devices that kernels run on: those of the program's buffers.

    Results that it copies elsewhere don't count, nor does the CPU beside another device: what is there,
    operators compute.
    """
    copied = copied_results(program)
    found = {b.layout.device for name, b in program.buffers.items() if name not in copied}
    return {device for device in found if device.type != "cpu"} or found


def is_on_several_devices(program: LoopGraph | Schedule) -> bool:
    """Whether a step touches what is on none of :func:`devices_of`, but to copy a result there."""
    devices, copied = devices_of(program), copied_results(program)
    items = program.nodes if isinstance(program, LoopGraph) else program.steps
    touched = touches(items).keys() - copied
    return any(program.buffers[name].layout.device not in devices for name in touched)


def touches(nodes: Iterable[Item]) -> Counter[str]:
    """How many nodes, extern calls and regions' own parts touch each buffer, at any depth."""
    found: Counter[str] = Counter()
    for item in all_items(nodes):
        if isinstance(item, Region):
            found.update(item.carried if isinstance(item, Loop) else ())
            if item.predicate is not None:
                found[item.predicate.buffer] += 1
        else:
            found.update({*item_reads(item), *item_writes(item)})
    return found


def touches_in_graph(loop_graph: LoopGraph) -> Counter[str]:
    """The same for all nodes of a graph, whose outputs count as well."""
    found = touches(loop_graph.nodes)
    found.update(o.buffer for o in loop_graph.outputs if isinstance(o, BufferView))
    return found


def extern_writes(call: ExternCall) -> tuple[str, ...]:
    """The names of the buffers that ``call`` makes."""
    return tuple(name for name in call.outputs if name is not None)
