"""Sizes and numbers that steps of a program determine: which step gives them, and which steps use them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import sympy

from weft_loop_ir.bodies import LoopBody
from weft_loop_ir.ir import Buffer, ExternCall, Kernel, Loop, Region, SymbolDefinition
from weft_loop_ir.loop_graph import Item, LoopNode, all_items, item_reads, item_writes
from weft_loop_ir.size_float import SizeFloat

RELATIONS: dict[Any, tuple[str, Callable[[sympy.Expr, sympy.Expr], sympy.Expr]]] = {
    sympy.Ge: ("nonnegative", lambda left, right: left - right),
    sympy.Gt: ("nonnegative", lambda left, right: left - right - 1),
    sympy.Le: ("nonnegative", lambda left, right: right - left),
    sympy.Lt: ("nonnegative", lambda left, right: right - left - 1),
    sympy.Eq: ("zero", lambda left, right: left - right),
    sympy.Ne: ("nonzero", lambda left, right: left - right),
}
"""Comparisons of integers, as the relation of a :class:`Requirement` and the expression that it is of."""


def definitions(items: Sequence[Item]) -> Iterable[tuple[ExternCall, SymbolDefinition]]:
    """What calls among ``items`` define, in order."""
    for item in all_items(items):
        if isinstance(item, ExternCall):
            for definition in item.defines:
                yield item, definition


def defined_symbols(items: Sequence[Item]) -> set[sympy.Symbol]:
    """The symbols whose values calls among ``items`` give."""
    return {definition.symbol for _, definition in definitions(items)}


def symbols_within(item: Item) -> set[sympy.Symbol]:
    """The symbols that have values inside a region only: what its calls define, and loops' counters."""
    parts = list(all_items([item])) if isinstance(item, Region) else []
    counters = {p.count.symbol for p in parts if isinstance(p, Loop) and p.count is not None}
    return counters | defined_symbols(parts)


def layout_symbols(buffer: Buffer) -> set[sympy.Symbol]:
    """The symbols that a buffer's layout depends on."""
    extents = {*buffer.layout.size, *buffer.layout.stride}
    return {s for n in extents if not isinstance(n, sympy.Integer) for s in n.free_symbols}


def sized_within(item: Item, buffers: Mapping[str, Buffer]) -> set[str]:
    """The buffers that ``item``, a region, writes, and whose sizes only steps inside it give."""
    inner = symbols_within(item)
    return {n for n in item_writes(item) if inner and layout_symbols(buffers[n]) & inner}


def item_symbols(item: Item, buffers: Mapping[str, Buffer]) -> set[sympy.Symbol]:
    """The symbols that an item, what is in it, or a buffer that it touches depends on."""
    found: set[sympy.Symbol] = set()
    for part in all_items([item]):
        for name in (*item_reads(part), *item_writes(part)):
            if name in buffers:
                found |= layout_symbols(buffers[name])
        if isinstance(part, ExternCall):
            found |= _symbols_in(part.leaves)
            found |= {s for r in part.requires for s in r.expression.free_symbols}
        elif isinstance(part, Loop) and part.count is not None:
            found |= _symbols_in([part.count.start, part.count.step, part.count.stop])
        elif isinstance(part, LoopNode):
            found |= _symbols_in([*(v.size for v in part.all_loops), part.body])
        elif isinstance(part, Kernel):
            found |= _symbols_in([*(v.size for v in part.all_loops), *part.bodies])
    return found


def _symbols_in(value: Any) -> set[sympy.Symbol]:
    if isinstance(value, sympy.Expr | SizeFloat):
        return set(value.free_symbols)
    if isinstance(value, LoopBody):
        return value.free_symbols | value.host_symbols
    if isinstance(value, list | tuple):
        return set().union(*map(_symbols_in, value))
    size = getattr(value, "size", None)  # of a buffer view
    if isinstance(size, tuple):
        return _symbols_in((*size, *value.stride, value.offset))
    return set()
