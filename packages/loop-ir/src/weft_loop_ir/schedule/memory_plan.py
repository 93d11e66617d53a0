"""The memory plan: where intermediates lie in one arena, by liveness.

Memory is given before the loops run: for what expressions in their counters are at most.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import sympy

from weft_loop_ir.bodies import Indirect, Load, Store
from weft_loop_ir.data_symbols import defined_symbols, layout_symbols
from weft_loop_ir.expressions import FloorDiv, integer
from weft_loop_ir.ir import (
    Buffer,
    BufferKind,
    Count,
    ExternCall,
    Kernel,
    Loop,
    MemoryPlan,
    ParallelKernels,
    Region,
    Stage,
    Step,
)
from weft_loop_ir.loop_graph import Item, all_items, extern_writes, item_reads, item_writes
from weft_loop_ir.schedule.options import ScheduleOptions
from weft_loop_ir.unsupported import Unsupported

Ends = tuple[sympy.Expr | None, sympy.Expr | None]
Bounds = Mapping[sympy.Symbol, Ends]
"""By counter, outer ones first: its least and its greatest value, None where there is no bound."""


def counter_bounds(steps: Sequence[Item]) -> Bounds:
    """The bounds of all counters of loops in ``steps``, in terms of sizes and of loops around."""
    found: dict[sympy.Symbol, Ends] = {}
    for step in steps:
        if isinstance(step, Loop) and step.count is not None:
            found[step.count.symbol] = _bounds(step.count)
        if isinstance(step, Region):
            for block in step.blocks:
                found |= counter_bounds(block)
    return found


def _bounds(count: Count) -> Ends:
    last = None if count.stop is None else count.stop - (1 if count.ascends else -1)
    return (count.start, last) if count.ascends else (last, count.start)


def largest(buffer: Buffer, bounds: Bounds) -> Buffer:
    """``buffer`` in the largest layout that it has in any iteration."""
    layout = buffer.layout
    extents = [*layout.size, *layout.stride]
    if not any(symbol in bounds for extent in extents for symbol in extent.free_symbols):
        return buffer
    found = [greatest(extent, bounds) for extent in extents]
    rank = len(layout.size)
    size, stride = tuple(found[:rank]), tuple(found[rank:])
    return replace(buffer, layout=replace(layout, size=size, stride=stride))


def greatest(extent: sympy.Expr, bounds: Bounds) -> sympy.Expr:
    expression = sympy.expand(extent)
    for symbol, (least, greatest) in reversed(list(bounds.items())):
        if symbol not in expression.free_symbols:
            continue
        factor = expression.coeff(symbol)
        rest = sympy.expand(expression - factor * symbol)
        bound = greatest if factor.is_nonnegative else least
        has_sign = factor.is_nonnegative or factor.is_nonpositive
        if symbol in rest.free_symbols or bound is None or not has_sign:
            raise Unsupported(
                "size that differs by iteration", str(extent), "Its greatest value is not known."
            )
        expression = sympy.expand(rest + factor * bound)
    return expression if expression.is_nonnegative else sympy.Max(expression, 0)


def settled(expression: sympy.Expr, bounds: Bounds) -> sympy.Expr:
    """``expression`` without the minima and maxima that are one of their arguments in all iterations."""
    found = {term: _decided(term, bounds) for term in expression.atoms(sympy.Min, sympy.Max)}
    return expression.xreplace({term: value for term, value in found.items() if value != term})


def _decided(term: sympy.Min | sympy.Max, bounds: Bounds) -> sympy.Expr:
    kept = list(term.args)
    for left, right in itertools.permutations(term.args, 2):
        if left in kept and right in kept and _never_above(left, right, bounds):
            kept.remove(right if isinstance(term, sympy.Min) else left)
    return term.func(*kept)


def _never_above(left: sympy.Expr, right: sympy.Expr, bounds: Bounds) -> bool:
    try:
        return bool(greatest(left - right, bounds) == 0)
    except Unsupported:
        return False


@dataclass(frozen=True)
class Lifetime:
    """The first and the last step that touch a buffer."""

    first: int
    last: int


def storage_elements(buffer: Buffer) -> sympy.Expr:
    """How many elements the buffer's memory spans."""
    layout = buffer.layout
    if any(n == 0 for n in layout.size):
        return sympy.S.Zero
    if all(isinstance(n, sympy.Integer) for n in (*layout.size, *layout.stride)):
        steps = zip(layout.size, layout.stride, strict=True)
        return integer(1 + sum((int(extent) - 1) * int(stride) for extent, stride in steps))
    span: sympy.Expr = sympy.S.One
    for extent, stride in zip(layout.size, layout.stride, strict=True):
        span = span + (extent - 1) * stride
    return sympy.expand(span)


def allocated_by_extern(steps: Sequence[Item]) -> set[str]:
    """The buffers that extern calls allocate themselves."""
    return {
        name
        for step in all_items(steps)
        if isinstance(step, ExternCall) and step.out_variant is None
        for name in extern_writes(step)
    }


def _results_alone(steps: Sequence[Step]) -> set[str]:
    """Results that calls allocate, each alone in its memory: several of a call may be parts of one tensor."""
    calls = [step for step in steps if isinstance(step, ExternCall)]
    return {
        name
        for call in calls
        if call.out_variant is None and len(call.operator._schema.returns) == 1
        for name in call.outputs
        if name is not None and len(call.outputs) == 1
    }


def _touched_in_regions(steps: Sequence[Step]) -> set[str]:
    regions = [step for step in steps if isinstance(step, Region)]
    return {name for r in regions for name in (*item_reads(r), *item_writes(r))}


def lifetimes(steps: Sequence[Step]) -> dict[str, Lifetime]:
    """The lifetime of every buffer that a step touches, by position in ``all_items(steps)``.

    What a region shares with what is around it lives through the whole region: an iteration may follow.
    Kernels that run in parallel begin and end together.
    """
    result: dict[str, Lifetime] = {}
    _extend(result, steps, 0)
    return result


def _extend(result: dict[str, Lifetime], steps: Sequence[Step], position: int) -> int:
    """Add the lifetimes within a block that starts at ``position``; the position after it."""
    for step in steps:
        start = position
        position += 1
        inner: dict[str, Lifetime] = {}
        names = (*item_reads(step), *item_writes(step))
        if isinstance(step, Region):
            shared = _shared(step, names)
            for block in step.blocks:
                position = _extend(inner, block, position)
            names = tuple(shared)
        elif isinstance(step, ParallelKernels):
            position += len(step.kernels)
        for name, life in inner.items():
            if name not in names:
                _add(result, name, life)
        for name in names:
            _add(result, name, Lifetime(start, position - 1))
    return position


def _shared(region: Region, names: Sequence[str]) -> set[str]:
    """The buffers that live through ``region``: all but those that one block writes before it reads them.

    Whether something outside touches them too shows when their lifetimes are joined.
    """
    fixed = set() if region.predicate is None else {region.predicate.buffer}
    if isinstance(region, Loop):
        fixed |= set(region.carried)
    touched = [{n for i in b for n in (*item_reads(i), *item_writes(i))} for b in region.blocks]
    fixed |= touched[0] & touched[1]
    written_first: set[str] = set()
    for block in region.blocks:
        known: set[str] = set()
        for item in block:
            known |= set(item_writes(item)) - set(item_reads(item)) - known
        written_first |= known
    return fixed | {name for name in names if name not in written_first}


def _add(result: dict[str, Lifetime], name: str, life: Lifetime) -> None:
    known = result.get(name, life)
    result[name] = Lifetime(min(known.first, life.first), max(known.last, life.last))


def plan_memory(
    steps: Sequence[Step], buffers: Mapping[str, Buffer], options: ScheduleOptions | None = None
) -> MemoryPlan:
    """Where the intermediates lie that kernels and ``out=`` variants write.

    Those whose size only a step determines are not in the arena, which is made before the first step.  One
    whose size differs by the iteration of a loop gets the most that it needs.  Large ones may be left to an
    allocator, so that they share memory with what calls allocate.
    """
    options = options or ScheduleOptions()
    external = allocated_by_extern(steps)
    flat = list(all_items(steps))
    lives = lifetimes(steps)
    late = defined_symbols(steps)
    planned = [
        name
        for name in lives
        if buffers[name].kind is BufferKind.INTERMEDIATE
        and name not in external
        and not layout_symbols(buffers[name]) & late
    ]
    planned.sort(key=lambda name: (lives[name].first, name))
    arena = _Arena()
    offsets: dict[str, sympy.Expr] = {}
    bounds = counter_bounds(steps)
    sizes = {n: _size(largest(buffers[n], bounds), options.alignment) for n in planned}
    reused: dict[str, str] = {}
    in_regions = _touched_in_regions(steps)
    alone = {n for n in planned if n not in in_regions and _is_large(buffers[n], options)}
    sources = set(alone)  # memory that may be overwritten, in the arena and outside
    if options.reuse_results:
        results = _results_alone(steps) - in_regions
        sources |= {n for n in results if buffers[n].kind is BufferKind.INTERMEDIATE}
    dying = _dying_at(planned, lives)
    released: set[str] = set()
    current = 0
    for name in planned:
        first = lives[name].first
        while options.reuse_memory and current < first:
            for old in dying.get(current, ()):
                if old in offsets and old not in released:
                    arena.release(offsets[old], sizes[old])
            current += 1
        source = None
        if options.reuse_memory:
            safe = _overwrites_rows if options.reuse_rows else _overwrites_safely
            source = _in_place_source(flat[first], name, first, lives, buffers, sources, safe)
        if source is None:
            if name not in alone:
                offsets[name] = arena.allocate(sizes[name])
                sources.add(name)
            continue
        released.add(source)  # its memory is released with the buffer that took it over
        sources.remove(source)
        sources.add(name)
        if source in offsets:
            offsets[name] = offsets[source]
        else:
            reused[name] = source
    alone -= {*offsets, *reused}
    return MemoryPlan(arena.total, offsets, reused, frozenset(alone))


def _is_large(buffer: Buffer, options: ScheduleOptions) -> bool:
    """Whether the buffer is of those that have memory of their own."""
    size = _size(buffer, options.alignment)
    return options.own_bytes is not None and bool(
        size.is_Integer and int(size) >= options.own_bytes
    )


def bytes_outside_arena(
    steps: Sequence[Step],
    buffers: Mapping[str, Buffer],
    plan: MemoryPlan,
    alignment: int,
    least: int,
) -> int:
    """Bytes of one block in which an allocator that takes the best fit finds room for all outside the arena.

    These are intermediates of ``steps`` and results, which live on, that calls or the program allocate, of
    sizes that are numbers and more than ``least`` bytes.
    """
    lives = lifetimes(steps)
    end = sum(1 for _ in all_items(steps))
    last = {
        name: end if buffers[name].kind is BufferKind.OUTPUT else life.last
        for name, life in lives.items()
    }
    for name in sorted(
        plan.reused.keys() & lives.keys(), key=lambda n: lives[n].first, reverse=True
    ):
        source = plan.reused[name]
        last[source] = max(last.get(source, 0), last[name])
    waiting: dict[int, list[tuple[sympy.Expr, sympy.Expr]]] = {}
    arena, current = _Arena(), 0
    for name in sorted(lives, key=lambda n: (lives[n].first, n)):
        if name in plan.offsets or name in plan.reused:
            continue
        size = _size(buffers[name], alignment)
        if buffers[name].kind not in (BufferKind.INTERMEDIATE, BufferKind.OUTPUT):
            continue
        if not size.is_Integer or int(size) <= least:
            continue
        while current < lives[name].first:
            for place in waiting.pop(current, ()):
                arena.release(*place)
            current += 1
        waiting.setdefault(last[name], []).append((arena.allocate(size), size))
    return int(arena.total)


def _dying_at(planned: Sequence[str], lives: Mapping[str, Lifetime]) -> dict[int, list[str]]:
    result: dict[int, list[str]] = {}
    for name in planned:
        result.setdefault(lives[name].last, []).append(name)
    return result


def _size(buffer: Buffer, alignment: int) -> sympy.Expr:
    """Bytes, rounded up to the alignment."""
    size = storage_elements(buffer) * buffer.layout.dtype.itemsize
    if isinstance(size, sympy.Integer):
        return integer(-(-int(size) // alignment) * alignment)
    return FloorDiv(size + alignment - 1, integer(alignment)) * alignment


class _Arena:
    """First fit among free blocks; blocks of symbolic size are reused by an equal size only."""

    def __init__(self) -> None:
        self.total: sympy.Expr = sympy.S.Zero
        self._free: list[tuple[int, int]] = []  # (offset, size), sorted, never adjacent
        self._free_symbolic: dict[sympy.Expr, list[sympy.Expr]] = {}

    def allocate(self, size: sympy.Expr) -> sympy.Expr:
        if not isinstance(size, sympy.Integer) or not isinstance(self.total, sympy.Integer):
            return self._allocate_symbolic(size)
        wanted = int(size)
        best: int | None = None
        for position, (_, free) in enumerate(self._free):
            if free >= wanted and (best is None or free < self._free[best][1]):
                best = position
        if best is not None:
            offset, free = self._free.pop(best)
            if free > wanted:
                self._free.insert(best, (offset + wanted, free - wanted))
            return integer(offset)
        end = int(self.total)
        if self._free and sum(self._free[-1]) == end:
            offset, _ = self._free.pop()
            self.total = integer(offset + wanted)
            return integer(offset)
        self.total = integer(end + wanted)
        return integer(end)

    def _allocate_symbolic(self, size: sympy.Expr) -> sympy.Expr:
        waiting = self._free_symbolic.get(size)
        if waiting:
            return waiting.pop()
        offset = self.total
        self.total = sympy.Add(self.total, size)
        return offset

    def release(self, offset: sympy.Expr, size: sympy.Expr) -> None:
        if not isinstance(offset, sympy.Integer) or not isinstance(size, sympy.Integer):
            self._free_symbolic.setdefault(size, []).append(offset)
            return
        if not isinstance(self.total, sympy.Integer):
            self._free_symbolic.setdefault(size, []).append(offset)
            return
        if size == 0:
            return
        self._free.append((int(offset), int(size)))
        self._free.sort()
        merged: list[tuple[int, int]] = []
        for start, length in self._free:
            if merged and sum(merged[-1]) == start:
                merged[-1] = (merged[-1][0], merged[-1][1] + length)
            else:
                merged.append((start, length))
        self._free = merged


def _in_place_source(
    step: Item,
    name: str,
    position: int,
    lives: Mapping[str, Lifetime],
    buffers: Mapping[str, Buffer],
    sources: set[str],
    is_safe: Callable[[Kernel, str, str], bool],
) -> str | None:
    """The one of ``sources`` that dies here and that the kernel may overwrite with ``name``, if any."""
    excluded: set[str] = set()
    last = position
    if isinstance(step, ParallelKernels):
        (kernel,) = (k for k in step.kernels if name in k.writes)
        excluded.update(n for k in step.kernels if k is not kernel for n in k.reads)
        last += len(step.kernels)
        step = kernel
    if not isinstance(step, Kernel):
        return None
    target = buffers[name].layout
    for source in step.reads:
        if source not in sources or source in excluded or source in step.writes:
            continue
        layout = buffers[source].layout
        if lives[source].last != last or layout.dtype.itemsize != target.dtype.itemsize:
            continue
        if storage_elements(buffers[source]) != storage_elements(buffers[name]):
            continue
        if is_safe(step, source, name):
            return source
    return None


def _overwrites_safely(kernel: Kernel, source: str, name: str) -> bool:
    """Whether ``source`` is read in one stage, at the one index at which ``name`` is stored, before that."""
    both = {source, name}
    touching = [s for s in kernel.stages if both & {*s.body.reads, *s.body.writes}]
    if len(touching) != 1:
        return False
    body = touching[0].body
    accesses = [a for a in body.accesses() if a.buffer in (source, name)]
    if len(accesses) != 2 or not all(a in body.instructions for a in accesses):
        return False
    load, store = accesses
    if not (isinstance(load, Load) and load.buffer == source and isinstance(store, Store)):
        return False
    if store.mode is not None or load.index != store.index:
        return False
    loops = kernel.outer + touching[0].inner
    return all(v.symbol in store.index.free_symbols or v.size == 1 for v in loops)


def _overwrites_rows(kernel: Kernel, source: str, name: str) -> bool:
    """Whether an outer iteration reads ``source`` in its own row only, and stores ``name`` there last.

    Where it stores, it reads no other element of the row any more.
    """
    if _overwrites_safely(kernel, source, name):
        return True
    *before, last = [s for s in kernel.stages if {source, name} & {*s.body.reads, *s.body.writes}]
    accesses = [a for a in last.body.accesses() if a.buffer in (source, name)]
    stores = [a for a in accesses if isinstance(a, Store)]
    if len(stores) != 1 or accesses[-1] is not stores[0] or stores[0].mode is not None:
        return False
    index, is_last = stores[0].index, stores[0] in last.body.instructions
    if not is_last or any(name in s.body.writes for s in before) or last.is_sequential:
        return False
    if any(a.index != index or (isinstance(a, Store) and a.buffer != name) for a in accesses):
        return False
    if any(v.symbol not in index.free_symbols and v.size != 1 for v in last.inner):
        return False
    row = _row_of(kernel, index)
    if row is None:
        return False
    start, length = row
    return all(
        _is_within(sympy.expand(a.index - start), length, stage)
        for stage in (*before, last)
        for a in stage.body.accesses()
        if a.buffer in (source, name)
    )


def _row_of(kernel: Kernel, index: sympy.Expr) -> tuple[sympy.Expr, int] | None:
    """Where the row of an outer iteration begins, and how long it may be to meet no other; None: unknown."""
    start: sympy.Expr = sympy.S.Zero
    reach = None
    for variable in reversed(kernel.outer):  # from the narrowest on
        step = index.coeff(variable.symbol)
        if not step.is_Integer or step <= 0:
            return None
        if reach is not None and not (reach.is_Integer and step >= reach):
            return None
        start += step * variable.symbol
        reach = step * variable.size
    if reach is None or sympy.expand(index - start).free_symbols & {v.symbol for v in kernel.outer}:
        return None
    return start, int(index.coeff(kernel.outer[-1].symbol))


def _is_within(place: sympy.Expr, length: int, stage: Stage) -> bool:
    """Whether a place in a row is one of its first ``length``, whatever the stage's loops and data are."""
    sizes = {v.symbol: v.size for v in stage.inner}
    sizes |= {i.symbol: i.size for i in stage.body.walk() if isinstance(i, Indirect)}
    ends = {}
    for symbol in place.free_symbols:
        step, size = place.coeff(symbol), sizes.get(symbol)
        if size is None or not (step.is_Integer and step > 0 and size.is_Integer):
            return False
        ends[symbol] = size - 1
    greatest, least = place.xreplace(ends), place.xreplace(dict.fromkeys(ends, sympy.S.Zero))
    return bool(least.is_Integer and greatest.is_Integer and least >= 0 and greatest < length)
