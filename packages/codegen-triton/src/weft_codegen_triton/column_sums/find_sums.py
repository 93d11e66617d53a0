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
    BufferKind,
    Kernel,
    LoopBody,
    LoopVariable,
    ReplacedSteps,
    Schedule,
    ScheduleOptions,
    Stage,
    Step,
)
from weft_loop_ir.bodies import Combining, Indirect, Load, Random, Reduction, Store
from weft_loop_ir.bodies.edit import with_expressions
from weft_loop_ir.expressions import contiguous_stride, dot, unit_stride

from weft_codegen_triton.gpu import Gpu
from weft_codegen_triton.kernel.blocks import SUMMING_PROGRAMS, extent, lies_by_columns
from weft_codegen_triton.kernel.rows_and_columns import RowsAndColumns

MIN_PART = 8
"""Rows: the sums of fewer would be about as much to write and read as the rows."""
MAX_SUMS = 6
"""In one kernel: a thread holds some elements of each."""


@dataclass(frozen=True)
class _Sums:
    """Sums of columns, of parts of so many rows each: ``kernel`` goes through ``row`` inside ``part``.

    It is at ``place`` of the program.  ``columns`` are its other outer loops.
    """

    place: int
    kernel: Kernel
    part: LoopVariable
    row: LoopVariable
    columns: tuple[LoopVariable, ...]

    @property
    def body(self) -> LoopBody:
        return self.kernel.stages[0].body

    @property
    def count(self) -> int:
        """How many rows there are in all parts."""
        return int(self.part.size) * int(self.row.size)

    @property
    def width(self) -> int:
        return _extent(self.columns)

    def over_rows(self, row: sympy.Expr, columns: Mapping[sympy.Symbol, sympy.Expr]) -> LoopBody:
        """The body for one ``row`` of all, with other symbols for the columns; partial results stay."""
        known = {self.part.symbol: sympy.S.Zero, self.row.symbol: row, **columns}
        changed = with_expressions(self.body, lambda e: sympy.expand(e.xreplace(known)))
        both = zip(changed.instructions, self.body.instructions, strict=True)
        return LoopBody(tuple(old if isinstance(old, Store) else new for new, old in both))


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

    sums: _Sums
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
            buffers[name] = _of_parts(buffers[name], parts)
            for place in around.readers(name):
                symbol = _loop_over_parts(_kernel_at(place, around), name, sums)
                assert symbol is not None
                loops.setdefault(place, {})[symbol] = parts
    new = ReplacedSteps(replace(schedule, buffers=buffers))
    for place, sizes in loops.items():
        new.change(place, _with_sizes(_kernel_at(place, around), sizes))
    for rows, joining in _by_rows(plans.values()):
        kernel = _with_sums(rows, joining, joining[0].length)
        new.put([rows.place, *(plan.sums.place for plan in joining)], rows.place, [kernel])
    return new.planned(options)


def _plans(around: ReplacedSteps, gpu: Gpu, longest: int) -> dict[int, _Plan]:
    """By places of sums how others are to make them."""
    buffers = around.buffers
    found = [s for place, step in around if (s := _read_sums(place, step, buffers)) is not None]
    partial = {name for sums in found for name in sums.kernel.writes}
    lengths = {count: _part(count, gpu) for count in {sums.count for sums in found}}
    forms = {(s.count, s.width) for s in found if lengths[s.count] is not None}
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
        length = lengths[sums.count]
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


def _read_sums(place: int, step: Step, buffers: Mapping[str, Buffer]) -> _Sums | None:
    """The sums of columns that a kernel makes of parts; None if it is none of that kind."""
    if (
        type(step) is not Kernel
        or len(step.stages) != 1
        or step.local_buffers
        or len(step.outer) < 2
    ):
        return None
    (stage,), (part, *columns) = step.stages, step.outer
    body = stage.body
    if not stage.is_reduction or len(stage.inner) != 1 or body.holds(Combining, Indirect, Random):
        return None
    if not all(v.size.is_Integer for v in step.all_loops):
        return None
    sums = _Sums(place, step, part, stage.inner[0], tuple(columns))
    kinds = {(r.kind, r.accumulated.is_floating_point) for r in body.reductions()}
    if kinds != {("sum", True)} or not all(_is_partial(s, sums, buffers) for s in body.stores()):
        return None
    row, length = sums.row.symbol, sums.row.size
    shift = {part.symbol: sympy.S.Zero, row: length * part.symbol + row}
    others = (e for i in body.walk() if not isinstance(i, Store) for e in i.expressions)
    one_after_another = all(sympy.expand(e - e.xreplace(shift)) == 0 for e in others)
    return sums if one_after_another else None


def _is_partial(store: Store, sums: _Sums, buffers: Mapping[str, Buffer]) -> bool:
    """Whether a sum goes to its place among those of all parts, in a buffer that has nothing else."""
    buffer = buffers[store.buffer]
    place = _flat(sums.columns) + sums.width * sums.part.symbol
    is_sum = isinstance(sums.body.at(store.value), Reduction)
    is_own = buffer.kind is BufferKind.INTERMEDIATE and store.mode is None
    return is_sum and is_own and sympy.expand(store.index - place) == 0


def _may_join(sums: _Sums, rows: _Rows, around: ReplacedSteps) -> bool:
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


def _plan(sums: _Sums, length: int, rows: _Rows, buffers: Mapping[str, Buffer]) -> _Plan | None:
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


def _bytes_of_rows(sums: _Sums, buffers: Mapping[str, Buffer]) -> int:
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
    symbol = _loop_over_parts(reader, name, partial[name].sums)
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
        and _loop_over_parts(reader, other, partial[other].sums) == symbol
        for other in names
    )


def _loop_over_parts(reader: Kernel, name: str, sums: _Sums) -> sympy.Symbol | None:
    """The reduced loop of ``reader`` that every load of ``name`` steps by whole parts along."""
    sizes = {v.symbol: v.size for v in reader.inner_loops}
    loads = [load for body in reader.bodies for load in body.loads(name)]
    found = {
        s
        for load in loads
        for s in load.index.free_symbols & sizes.keys()
        if sympy.expand(load.index).coeff(s) == sums.width
    }
    if len(found) != 1 or not all(found <= load.index.free_symbols for load in loads):
        return None
    (symbol,) = found
    uses = [i for i in reader.walk() if symbol in i.free_symbols]
    if sizes[symbol] != sums.part.size or not all(isinstance(i, Load) for i in uses):
        return None
    return symbol


def _with_sums(rows: _Rows, plans: Sequence[_Plan], part: int) -> RowsAndColumns:
    """``rows`` and the sums of ``plans`` in one kernel."""
    kernel = rows.kernel
    stages = tuple(Stage(rows.inner, plan.body, is_reduction=True) for plan in plans)
    kernels = tuple(_in_parts(plan.sums, part) for plan in plans)
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


def _beside(sums: _Sums, rows: _Rows) -> LoopBody:
    """The body of ``sums`` over the loops of ``rows``; a sum's place is that among all columns."""
    columns = {v.symbol: own.symbol for v, own in zip(sums.columns, rows.inner, strict=True)}
    body = sums.over_rows(_flat(rows.kernel.outer), columns)
    place = _flat(rows.inner)
    return LoopBody(tuple(i.at(place) if isinstance(i, Store) else i for i in body.instructions))


def _in_parts(sums: _Sums, part: int) -> Kernel:
    """The kernel of ``sums`` for parts of another length."""
    length, count = sympy.Integer(part), sympy.Integer(sums.count // part)
    row = length * sums.part.symbol + sums.row.symbol
    stage = Stage(
        (LoopVariable(sums.row.symbol, length),), sums.over_rows(row, {}), is_reduction=True
    )
    outer = (LoopVariable(sums.part.symbol, count), *sums.columns)
    return replace(sums.kernel, outer=outer, stages=(stage,))


def _of_parts(buffer: Buffer, parts: sympy.Integer) -> Buffer:
    """``buffer`` for so many parts."""
    layout = buffer.layout
    return replace(buffer, layout=replace(layout, size=(parts, *layout.size[1:])))


def _kernel_at(place: int, around: ReplacedSteps) -> Kernel:
    """The reader of partial results at ``place``."""
    reader = around.step(place)
    assert isinstance(reader, Kernel)
    return reader


def _with_sizes(reader: Kernel, sizes: Mapping[sympy.Symbol, sympy.Integer]) -> Kernel:
    """``reader`` with its reduced loops of these symbols so long."""

    def of(loops: tuple[LoopVariable, ...]) -> tuple[LoopVariable, ...]:
        return tuple(replace(v, size=sizes.get(v.symbol, v.size)) for v in loops)

    return reader.with_ranges(of)


def _part(count: int, gpu: Gpu) -> int | None:
    """A divisor of ``count`` near the rows of one of as many programs as a GPU runs; None without one."""
    wanted = max(MIN_PART, count / (SUMMING_PROGRAMS * gpu.multiprocessors))
    near = [k for k in range(MIN_PART, int(2 * wanted) + 1) if count % k == 0 and 2 * k >= wanted]
    return min(near, key=lambda k: (k < wanted, abs(k - wanted)), default=None)


def _extent(loops: tuple[LoopVariable, ...]) -> int:
    return int(extent(loops))


def _sizes(loops: tuple[LoopVariable, ...]) -> tuple[sympy.Expr, ...]:
    return tuple(v.size for v in loops)


def _flat(loops: tuple[LoopVariable, ...]) -> sympy.Expr:
    """The number of an iteration of ``loops``, the last of which goes fastest."""
    symbols = tuple(v.symbol for v in loops)
    return dot(symbols, contiguous_stride(_sizes(loops)), sympy.S.Zero)
