"""Which sums of columns a kernel of rows makes besides: those of what it reads or computes.

The gradient of a layer norm's input is computed row by row, those of its weight and bias, and of the biases
and scales before it, are sums of columns of the same rows.  The scheduler leaves them split in parts: they
become stages of the kernel of rows, whose programs then go through one part each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace

import sympy
from weft_loop_ir import (
    Buffer,
    Kernel,
    LoopBody,
    LoopVariable,
    ReplacedSteps,
    Schedule,
    ScheduleOptions,
    Stage,
    Step,
)
from weft_loop_ir.bodies import Combining, Load, Reduction, Store
from weft_loop_ir.expressions import unit_stride

from weft_codegen_triton.column_sums.parts import PartsOfColumns, flat, with_parts, with_sizes
from weft_codegen_triton.gpu import Gpu
from weft_codegen_triton.kernel.blocks import extent, lies_by_columns, summing_programs
from weft_codegen_triton.kernel.column_totals import RowsAndColumns

MIN_PART = 8
"""Rows: the sums of fewer would be about as much to write and read as the rows."""
MAX_SUMS = 6
"""In one kernel: a thread holds some elements of each."""


@dataclass(frozen=True)
class _Rows:
    """A kernel at ``place`` whose outer iterations each go through ``inner``.

    ``stored`` says where it stores a buffer, ``touched`` are its accesses, of buffers at indices.
    """

    place: int
    kernel: Kernel
    inner: tuple[LoopVariable, ...]
    stored: Mapping[str, Set[sympy.Expr]]
    touched: Set[tuple[str, sympy.Expr]]

    @classmethod
    def of_kernel(cls, place: int, kernel: Kernel) -> _Rows:
        """That of a kernel that goes by rows."""
        stored: dict[str, set[sympy.Expr]] = {}
        touched = set()
        for access in kernel.accesses():
            index = sympy.expand(access.index)
            touched.add((access.buffer, index))
            if isinstance(access, Store):
                stored.setdefault(access.buffer, set()).add(index)
        return cls(place, kernel, kernel.ranges[0], stored, touched)


@dataclass(frozen=True)
class _Plan:
    """``sums``, of ``length`` rows each, are made by ``rows``, over whose loops their ``body`` is.

    ``shared``: bytes that they read and the kernel of rows reads or writes in the same places.
    """

    sums: PartsOfColumns
    length: int
    rows: _Rows
    body: LoopBody
    shared: int


def sum_columns_by_rows(
    schedule: Schedule, options: ScheduleOptions, gpu: Gpu, longest: int
) -> Schedule:
    """``schedule`` with sums of columns in kernels of rows of up to ``longest`` elements."""
    around = ReplacedSteps(schedule)
    plans = _plans(around, gpu, longest)
    _keep_readable(plans, around)
    if not plans:
        return schedule
    buffers = dict(schedule.buffers)
    loops: dict[int, dict[sympy.Symbol, sympy.Integer]] = {}
    for plan in plans.values():
        sums, parts = plan.sums, sympy.Integer(plan.sums.count // plan.length)
        for name in sums.kernel.writes:
            buffers[name] = with_parts(buffers[name], parts)
            for place in around.readers(name):
                symbol = sums.loop_over_parts(_kernel_at(place, around), name)
                assert symbol is not None
                loops.setdefault(place, {})[symbol] = parts
    new = ReplacedSteps(replace(schedule, buffers=buffers))
    for place, sizes in loops.items():
        new.change(place, with_sizes(_kernel_at(place, around), sizes))
    for rows, joining in _by_rows(plans.values()):
        kernel = _with_sums(rows, joining, joining[0].length)
        new.put([rows.place, *(plan.sums.place for plan in joining)], rows.place, [kernel])
    return new.planned(options)


def _plans(around: ReplacedSteps, gpu: Gpu, longest: int) -> dict[int, _Plan]:
    """By places of sums how others are to make them."""
    buffers = around.buffers
    found = [
        s
        for place, step in around
        if (s := PartsOfColumns.of_step(place, step, buffers, _is_sum)) is not None
    ]
    partial = {name for sums in found for name in sums.kernel.writes}
    lengths = {form: _part(*form, gpu) for form in {(s.count, s.width) for s in found}}
    forms = {form for form, length in lengths.items() if length is not None}
    rows = [
        _Rows.of_kernel(place, step)
        for place, step in around
        if isinstance(step, Kernel)
        and _goes_by_rows(step, forms, longest)
        and partial.isdisjoint(step.reads)
    ]
    plans: dict[int, _Plan] = {}
    counts: Counter[int] = Counter()
    for sums in found:
        length = lengths[sums.count, sums.width]
        if length is None:
            continue
        joined = [
            plan
            for r in rows
            if _may_join(sums, r, around) and (plan := _plan(sums, length, r, buffers)) is not None
        ]
        best = max(joined, key=lambda plan: plan.shared, default=None)
        if best is None or 2 * best.shared < _bytes_of_rows(sums, buffers):
            continue
        more = len(sums.body.reductions())
        if counts[id(best.rows)] + more <= MAX_SUMS:
            plans[sums.place] = best
            counts[id(best.rows)] += more
    return plans


def _by_rows(plans: Iterable[_Plan]) -> list[tuple[_Rows, list[_Plan]]]:
    """The kernels of rows, each with the plans that it is a part of."""
    found: dict[int, tuple[_Rows, list[_Plan]]] = {}
    for plan in plans:
        found.setdefault(id(plan.rows), (plan.rows, []))[1].append(plan)
    return list(found.values())


def _goes_by_rows(kernel: Kernel, forms: Set[tuple[int, int]], longest: int) -> bool:
    """Whether each outer iteration goes through one range, which a block holds.

    ``forms``: how many rows of how many elements there may be.
    """
    if type(kernel) is not Kernel or not all(v.size.is_Integer for v in kernel.all_loops):
        return False
    if len(kernel.ranges) != 1 or not any(stage.is_reduction for stage in kernel.stages):
        return False
    length = _extent(kernel.ranges[0])
    if length > longest or (_extent(kernel.outer), length) not in forms:
        return False
    if kernel.holds(Combining) or any(body.accumulates for body in kernel.bodies):
        return False
    return not any(s.is_sequential for s in kernel.stages) and not lies_by_columns(kernel)


def _may_join(sums: PartsOfColumns, rows: _Rows, around: ReplacedSteps) -> bool:
    """Whether the sums may be made in ``rows``: what they read is there, what reads them comes later."""
    kernel, read, written = rows.kernel, sums.kernel.reads, sums.kernel.writes
    touched = {*kernel.reads, *kernel.writes}
    if touched.isdisjoint(read) or not touched.isdisjoint(written):
        return False
    if _extent(kernel.outer) != sums.count or _sizes(rows.inner) != _sizes(sums.columns):
        return False
    here, there = rows.place, sums.place
    own = [name for name in read if name in kernel.writes]
    others = [name for name in read if name not in own]
    if not around.stay(others, min(here, there), max(here, there)):
        return False
    if own and (here > there or not around.stay(own, here + 1, there)):
        return False
    users = (p for n in written for p in (*around.readers(n), *around.written(n)))
    return all(place > here or place == there for place in users)


def _plan(
    sums: PartsOfColumns, length: int, rows: _Rows, buffers: Mapping[str, Buffer]
) -> _Plan | None:
    """How ``rows`` makes ``sums``; None where they read what another iteration of it writes."""
    body = _beside(sums, rows)
    loads = body.loads()
    if not all(rows.stored.get(load.buffer, {load.index}) == {load.index} for load in loads):
        return None
    shared = {
        load.buffer
        for load in loads
        if (load.buffer, load.index) in rows.touched
        and unit_stride(load.index, rows.inner[-1].symbol)
    }
    nbytes = _bytes(shared, buffers) * sums.count * sums.width
    return _Plan(sums, length, rows, body, nbytes)


def _bytes_of_rows(sums: PartsOfColumns, buffers: Mapping[str, Buffer]) -> int:
    """Bytes of what the sums read of all rows and columns."""
    wanted = {sums.row.symbol, *(v.symbol for v in sums.columns if v.size != 1)}
    read = {load.buffer for load in sums.body.loads() if wanted <= load.index.free_symbols}
    return _bytes(read, buffers) * sums.count * sums.width


def _bytes(names: Iterable[str], buffers: Mapping[str, Buffer]) -> int:
    """Bytes of one element of each."""
    return sum(buffers[name].layout.dtype.itemsize for name in names)


def _keep_readable(plans: dict[int, _Plan], around: ReplacedSteps) -> None:
    """Drop those of whose partial results a kernel also reads others, or reads them in no plain way."""
    while True:
        partial = {name: plan for plan in plans.values() for name in plan.sums.kernel.writes}
        dropped = {
            plan.sums.place
            for name, plan in partial.items()
            for place in around.readers(name)
            if not _adds_parts(around.step(place), name, partial)
        }
        if not dropped:
            return
        for key in dropped:
            del plans[key]


def _adds_parts(reader: Step | None, name: str, partial: Mapping[str, _Plan]) -> bool:
    """Whether a loop of ``reader`` is over the parts of ``name``, or of others in ``partial`` as well."""
    if type(reader) is not Kernel:
        return False
    symbol = partial[name].sums.loop_over_parts(reader, name)
    if symbol is None:
        return False
    names = {
        load.buffer
        for load in reader.walk()
        if isinstance(load, Load) and symbol in load.index.free_symbols
    }
    length = partial[name].sums.count // partial[name].length
    return all(
        other in partial
        and partial[other].sums.count // partial[other].length == length
        and partial[other].sums.loop_over_parts(reader, other) == symbol
        for other in names
    )


def _with_sums(rows: _Rows, plans: Sequence[_Plan], part: int) -> RowsAndColumns:
    """``rows`` and the sums of ``plans`` in one kernel."""
    kernel = rows.kernel
    stages = tuple(Stage(rows.inner, plan.body, is_reduction=True) for plan in plans)
    kernels = tuple(plan.sums.of_length(part) for plan in plans)
    reads = dict.fromkeys((*kernel.reads, *(n for k in kernels for n in k.reads)))
    return RowsAndColumns(
        kernel.name,
        kernel.outer,
        kernel.stages + stages,
        kernel.local_buffers,
        tuple(n for n in reads if n in kernel.reads or n not in kernel.writes),
        (*kernel.writes, *(n for k in kernels for n in k.writes)),
        tuple(dict.fromkeys((*kernel.origins, *(n for k in kernels for n in k.origins)))),
        kernel,
        kernels,
        part,
    )


def _beside(sums: PartsOfColumns, rows: _Rows) -> LoopBody:
    """The body of ``sums`` over the loops of ``rows``; a sum's place is that among all columns."""
    columns = {v.symbol: own.symbol for v, own in zip(sums.columns, rows.inner, strict=True)}
    body = sums.over_rows(flat(rows.kernel.outer), columns)
    place = flat(rows.inner)
    return LoopBody(tuple(i.at(place) if isinstance(i, Store) else i for i in body.instructions))


def _kernel_at(place: int, around: ReplacedSteps) -> Kernel:
    """The reader of partial results at ``place``."""
    reader = around.step(place)
    assert isinstance(reader, Kernel)
    return reader


def _is_sum(reduction: Reduction) -> bool:
    return reduction.kind == "sum" and reduction.accumulated.is_floating_point


def _part(count: int, width: int, gpu: Gpu) -> int | None:
    """A divisor of ``count`` near the rows of one of as many programs as a GPU runs; None without one.

    ``width``: the elements of a row.
    """
    wanted = max(MIN_PART, count / (summing_programs(width) * gpu.multiprocessors))
    near = [k for k in range(MIN_PART, int(2 * wanted) + 1) if count % k == 0 and 2 * k >= wanted]
    return min(near, key=lambda k: (k < wanted, abs(k - wanted)), default=None)


def _extent(loops: tuple[LoopVariable, ...]) -> int:
    return int(extent(loops))


def _sizes(loops: tuple[LoopVariable, ...]) -> tuple[sympy.Expr, ...]:
    return tuple(v.size for v in loops)
