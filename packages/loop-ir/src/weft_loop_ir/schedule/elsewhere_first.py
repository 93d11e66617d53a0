"""What a program beside the CPU computes there, and sends from there, comes before all else.

A model may keep a table on the CPU that each call sends to the GPU, as one of positions that is no buffer
(``x + self.table.type_as(x)``), or draw numbers there.  Between kernels such a call has the host wait, and
keeps what is around it from being recorded; before all kernels it does neither.  A loop sends it once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

import sympy
import torch

from weft_loop_ir import _torch
from weft_loop_ir.data_symbols import item_symbols
from weft_loop_ir.ir import Buffer, ExternCall, Loop, Region
from weft_loop_ir.loop_graph import (
    LoopGraph,
    all_items,
    devices_of,
    has_effect,
    item_reads,
    item_writes,
    raises_by_value,
)

_OWN_GENERATORS = ("aten", "weft")
"""Namespaces whose operators draw numbers only from the generator of the device where they give them."""


def calls_elsewhere_first(loop_graph: LoopGraph, items: Sequence[Any]) -> tuple[Any, ...]:
    """``items``, which are nodes or steps of ``loop_graph``, with the calls first that read the CPU alone.

    Loops of the host give theirs up, where these do the same in each iteration.
    """
    buffers = loop_graph.buffers
    if len({buffer.layout.device for buffer in buffers.values()}) < 2:
        return tuple(items)
    known = frozenset(symbol.symbol for symbol in loop_graph.symbols)
    moving = _Moving(buffers, devices_of(loop_graph), known)
    for item in all_items(items):
        if not isinstance(item, Region):
            moving.writers.update({*item_writes(item)})
    kept = moving.without_moved(items, in_loop=False)
    return (*moving.first, *kept)


def _is_elsewhere(
    call: ExternCall, buffers: Mapping[str, Buffer], devices: Set[torch.device]
) -> bool:
    """Whether ``call`` reads nothing on ``devices``; if it reads nothing at all, gives nothing there."""
    names = {*item_reads(call)} or {*item_writes(call)}
    return bool(names) and devices.isdisjoint(buffers[name].layout.device for name in names)


@dataclass
class _Moving:
    """Takes out of blocks, in order, what comes ``first``."""

    buffers: Mapping[str, Buffer]
    devices: Set[torch.device]
    symbols: Set[sympy.Symbol]
    writers: Counter[str] = field(default_factory=Counter)
    first: list[ExternCall] = field(default_factory=list)
    stays: set[str] = field(default_factory=set)
    """What is written by something that is not moved."""
    has_drawn: bool = False
    """Whether something that stays may draw numbers from the CPU's generator, or raise before one does."""
    has_effect: bool = False

    def without_moved(self, items: Sequence[Any], *, in_loop: bool) -> tuple[Any, ...]:
        kept: list[Any] = []
        for item in items:
            if isinstance(item, ExternCall) and self._is_movable(item, in_loop=in_loop):
                self.first.append(item)
                continue
            if isinstance(item, Loop):
                self.stays.update((*item_writes(item), *item.carried))
                first, second = item.blocks
                item = item.with_blocks(
                    self.without_moved(first, in_loop=True),
                    self.without_moved(second, in_loop=True),
                )
            kept.append(item)
            self._note(item)
        return tuple(kept)

    def _note(self, item: Any) -> None:
        self.stays.update(item_writes(item))
        self.has_effect |= has_effect(item, self.buffers)
        for part in all_items([item]):
            if isinstance(part, ExternCall) and (
                raises_by_value(part) or self._may_draw_elsewhere(part)
            ):
                self.has_drawn = True

    def _may_draw_elsewhere(self, call: ExternCall) -> bool:
        if not _torch.changes_state(call.operator):
            return False
        names = (*item_reads(call), *item_writes(call))
        is_here = all(self.buffers[name].layout.device in self.devices for name in names)
        return not is_here or call.operator.namespace not in _OWN_GENERATORS

    def _is_movable(self, call: ExternCall, *, in_loop: bool) -> bool:
        operator = call.operator
        if operator.namespace != "aten" or not _is_elsewhere(call, self.buffers, self.devices):
            return False
        if call.defines or not item_symbols(call, self.buffers) <= self.symbols:
            return False
        if not self.stays.isdisjoint(item_reads(call)):
            return False
        if any(self.writers[n] > 1 or self.buffers[n].kind.is_given for n in item_writes(call)):
            return False
        draws, raises = _torch.must_keep(operator), raises_by_value(call)
        if in_loop:
            return not draws and not raises
        return not (draws and self.has_drawn) and not (raises and self.has_effect)
