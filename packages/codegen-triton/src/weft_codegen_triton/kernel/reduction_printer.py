"""Prints kernels of several stages: reductions in one block (persistent) or in a loop, and what follows them.

Rows lie along ``x``; the elements of a row along ``r``, with an axis for each distinct inner range.  Loops
over long rows whose elements lie side by side read them by vectors, which have the axis ``v``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import replace

import sympy
import torch
from weft_loop_ir import FloorDiv, LoopBody, LoopVariable, Stage
from weft_loop_ir.bodies import Load
from weft_loop_ir.bodies.edit import slice_of
from weft_loop_ir.unsupported import Unsupported

from weft_codegen_triton.kernel.accumulators import COLUMN, Accumulators, FoundVector
from weft_codegen_triton.kernel.blocks import (
    MAX_BLOCK_SCALE,
    VECTOR_BYTES,
    ReductionBlocks,
    extent,
    reduction_blocks,
    static,
    summing_blocks,
    vector_blocks,
    widened,
    widest_reads,
)
from weft_codegen_triton.kernel.body_printer import BodyPrinter, ReductionResult, RowAccess, Text
from weft_codegen_triton.kernel.cache_hints import CacheHints, recomputable_rows
from weft_codegen_triton.kernel.column_totals import ColumnTotals, RowsAndColumns
from weft_codegen_triton.kernel.dtypes import loop_bound
from weft_codegen_triton.kernel.frame import (
    KernelFrame,
    RowLimits,
    print_axis,
    program_id,
    split_index,
    unrolled,
)
from weft_codegen_triton.kernel.online_softmax import filled_rows, sums_of_exponentials
from weft_codegen_triton.kernel.row_space import RowSpace, Span, row_start, row_vectors

UNROLLED = 4
"""Steps of a loop over vectors that are done at once."""


def row_blocks(frame: KernelFrame, limits: RowLimits) -> ReductionBlocks:
    """Blocks for ``frame.kernel``, by the sizes that it is called with first."""
    stages = frame.kernel.stages
    varies = any(not extent(stage.inner).is_Integer for stage in stages)
    positions = [[s.inner for s in stages].index(inner) for inner in frame.kernel.ranges]
    called = tuple(frame.called.stages[k].inner for k in positions)
    rows_vary = not extent(frame.kernel.outer).is_Integer
    width = widest_reads(frame.called, frame.printer.dtype_of)
    if isinstance(frame.kernel, RowsAndColumns):
        kernel = frame.kernel
        sums = sum(len(body.reductions()) for each in kernel.sums for body in each.bodies)
        return summing_blocks(frame.called, kernel.part, frame.gpu, width, sums)
    blocks = reduction_blocks(
        frame.called,
        called or ((),),
        limits.persistent,
        frame.gpu,
        width,
        varies,
        rows_vary,
    )
    return widened(blocks, frame.called, limits.tile)


class ReductionPrinter:
    """Prints the stages of ``frame.kernel``.

    ``overwritten`` names the buffers that the kernel reads and whose memory it writes.  ``beside`` prints the
    same for rows of any length, where this is for those that fit a block, or are whole vectors.
    """

    def __init__(
        self,
        frame: KernelFrame,
        limits: RowLimits,
        overwritten: frozenset[str],
        beside: ReductionPrinter | None = None,
    ) -> None:
        self.frame = frame
        self.printer: BodyPrinter = frame.printer
        self.kernel = frame.kernel
        self.totals = ColumnTotals.of_kernel(self.kernel, self.printer)
        self.ranges = self.kernel.ranges
        self.blocks = row_blocks(frame, limits)
        self.may_hold = bool(self.varying) and self.blocks.persistent
        if self.may_hold and beside is None:
            self.blocks = replace(self.blocks, persistent=False, loops_over_rows=True)
        self.first_scratch = 0 if beside is None else len(beside.scratch)
        vectors = None
        if self.blocks.loops_over_rows and not self.may_hold:
            vectors = row_vectors(self.kernel, self.ranges, self.printer.dtype_of)
        self.may_be_whole = vectors is not None and vectors.whole is not None and not limits.tile
        if vectors is not None:
            self.blocks = vector_blocks(
                frame.called,
                len(self.ranges),
                limits.step,
                vectors.width,
                frame.gpu,
                is_shifted=vectors.start is not None,
            )
            if vectors.whole is not None and beside is None:
                vectors = None
        self.space = RowSpace(self.printer, self.blocks.persistent, vectors)
        self.overwritten = overwritten
        self.scratch: list[tuple[str, torch.dtype, sympy.Expr]] = []
        self.stored: dict[tuple[int, str], tuple[ReductionResult, str, sympy.Expr]] = {}
        self.sums: dict[int, int] = {}  # stages of sums to those that find them with a maximum
        self.finished: dict[int, tuple[Accumulators, Text]] = {}  # those stages' results

    @property
    def varying(self) -> tuple[sympy.Expr, ...]:
        """The lengths of rows that vary."""
        extents = dict.fromkeys(map(extent, self.ranges))
        return tuple(e for e in extents if not e.is_Integer)

    @property
    def condition(self) -> str:
        """When rows are as this reads them: whole vectors, or each one block."""
        vectors = self.space.vectors
        if vectors is not None and vectors.whole is not None:
            return f"({self.printer.number(vectors.whole)} % {vectors.width} == 0)"
        tests = []
        for number, inner in enumerate(self.ranges):
            self._select(number)
            if not extent(inner).is_Integer:
                tests.append(f"({self.space.elements} <= {self.space.block})")
        return " & ".join(dict.fromkeys(tests))

    def _scratch_rows(self) -> sympy.Expr:
        """How many rows scratch memory has: none where rows are held in registers."""
        rows = extent(self.kernel.outer)
        if not self.may_hold or self.blocks.persistent:
            return rows
        longer = [
            FloorDiv(extent(inner), sympy.Integer(block + 1))
            for inner, block in zip(self.ranges, self.blocks.columns, strict=True)
        ]
        return rows * sympy.Min(1, sympy.Max(*longer))

    def print(self) -> tuple[tuple[sympy.Expr, ...], tuple[int, ...], int]:
        """The grid's extents, the blocks along it, and the number of warps."""
        printer, kernel, space = self.printer, self.kernel, self.space
        self._place_rows()
        read_again = {k for k in range(len(kernel.stages)) if k not in self.sums}
        self.cache_hints = CacheHints(kernel, printer.recomputed, read_again)
        printer.tile.unit = space.unit
        rows = self.blocks.rows
        if self.totals is not None:
            return self._print_parts(self.totals)
        # Where rows are gone through in a loop, its blocks are what varies.
        scale = MAX_BLOCK_SCALE if self.blocks.persistent else 1
        print_axis(self.frame, "x", 0, kernel.outer, rows, space.column, scale=scale)
        if space.vectors is not None:
            printer.emit(f"VECTOR: tl.constexpr = {space.vectors.width}")
            printer.emit("lane = tl.arange(0, VECTOR)[None, None, :]")
            printer.row_access = self._row_access
        for number, _ in enumerate(self.ranges):
            self._select(number)
            self.frame.constants[space.block] = self.blocks.columns[number]
            self._base()
            if self.blocks.persistent:
                self._range(f"{space.axis}base")
            else:
                self.frame.loop_axes.append(space.axis)
        if self.blocks.persistent and self._has_few_programs:
            self._load_ahead(kernel.stages)
        self._stages()
        return (extent(kernel.outer),), (rows,), self.blocks.warps

    @property
    def _has_few_programs(self) -> bool:
        """Whether each has a multiprocessor for itself, where nothing else hides what it waits for."""
        programs = static(extent(self.frame.called.outer)) // self.blocks.rows
        return programs <= self.frame.gpu.multiprocessors

    def _stages(self) -> None:
        printer = self.printer
        written: set[str] = set()
        for position, stage in enumerate(self.kernel.stages):
            reads, writes = set(stage.body.reads), set(stage.body.writes)
            is_looped = not self.blocks.persistent  # else a load waits, if its value is not known
            if is_looped and reads & written - printer.registers - printer.recomputed.keys():
                printer.settle()
            written |= writes
            self._stage(position, stage, writes)

    def _print_parts(
        self, totals: ColumnTotals
    ) -> tuple[tuple[sympy.Expr, ...], tuple[int, ...], int]:
        """A loop over the rows of a program's part, around the stages; then the sums of columns."""
        printer, kernel, frame, space = self.printer, self.kernel, self.frame, self.space
        self._select(0)
        frame.constants |= {"PBLOCK": totals.part, "XBLOCK": self.blocks.rows}
        frame.constants[space.block] = self.blocks.columns[0]
        frame.grid_axes.append("p")
        frame.loop_axes.append("x")
        self._base()
        self._range(f"{space.axis}base")
        self._load_ahead(kernel.stages, {v.symbol for v in kernel.outer})
        totals.print_before()
        steps, in_flight = "0, PBLOCK, XBLOCK", self.blocks.in_flight
        ahead = f"tl.range({steps}, num_stages={in_flight})"
        with printer.loop(f"for xoffset in {ahead if in_flight > 1 else f'range({steps})'}:"):
            place = f"xoffset + tl.arange(0, XBLOCK){space.column}"
            printer.emit(f"xplace = {place}")
            printer.emit("xmask = xplace < PBLOCK")
            printer.emit(f"xindex = {program_id(0)}{printer.cast} * PBLOCK + xplace")
            split_index(printer, "x", "xindex", kernel.outer)
            self._stages()
        totals.print_after(space)
        return (extent(kernel.outer),), (totals.part,), self.blocks.warps

    # -- local rows ------------------------------------------------------------------------------------

    def _place_rows(self) -> None:
        """Rows stay in registers where every access is at one index in one range; else in scratch memory."""
        printer, kernel = self.printer, self.kernel
        registers = set()
        if not self.blocks.persistent:
            printer.recomputed = recomputable_rows(kernel, self.overwritten)
        for buffer in kernel.local_buffers:
            if buffer.name in printer.recomputed:
                continue
            is_in_one_place = len(kernel.places_of(buffer.name)) == 1
            if buffer.size == 1 or (self.blocks.persistent and is_in_one_place):
                registers.add(buffer.name)
                continue
            self.scratch.append((buffer.name, buffer.dtype, self._scratch_rows() * buffer.size))
        printer.registers = frozenset(registers)
        pointers = dict(printer.pointers)
        for number, (name, _, _) in enumerate(self.scratch, self.first_scratch):
            (size,) = (b.size for b in kernel.local_buffers if b.name == name)
            pointers[name] = f"scratch{number}_ptr + xindex * {printer.number(size)}"
        self.scratch = [
            (f"scratch{k}", dtype, count)
            for k, (_, dtype, count) in enumerate(self.scratch, self.first_scratch)
        ]
        printer.pointers = pointers
        self.sums_of_exponentials = sums_of_exponentials(kernel)
        if self.space.vectors is not None:
            kept = registers | printer.recomputed.keys()
            self.sums = {
                later: stage
                for later, stage in self.sums_of_exponentials.items()
                if kept.issuperset(filled_rows(kernel.stages[later]))
            }

    # -- ranges ----------------------------------------------------------------------------------------

    def _select(self, number: int) -> None:
        """Make range ``number`` the one that is printed."""
        self.space.axis = "r" if number == 0 else f"r{'abcdefghij'[number]}"
        self.space.inner = self.ranges[number]

    def _base(self) -> None:
        """Print the places of a block's elements (its vectors, if it has any) relative to the block."""
        printer, space = self.printer, self.space
        axis, block = space.axis, space.block
        if space.vectors is None:
            printer.emit(f"{axis}base = tl.arange(0, {block})[None, :]")
            return
        printer.emit(f"{axis}base = (tl.arange(0, {block} // VECTOR) * VECTOR)[None, :, None]")
        printer.emit(f"{axis}lanes = {axis}base + lane")
        start = space.vectors.start
        if start is None:
            return
        code = printer.number(start)
        printer.emit(f"{axis}shift = {code} - {code} // VECTOR * VECTOR")
        printer.emit(f"{axis}shift = {axis}shift + tl.full([1, 1, 1], 0, tl.int32)")
        printer.emit(f"{axis}end = math.single({axis}shift) + {space.elements}")  # of one row
        # Triton counts an unrolled loop's steps without a sign: it begins with the second block and must
        # not end before it
        last = f"({axis}end - 1) // {block} * {block}"
        printer.emit(f"{axis}last = math.bound(tl.maximum({last}, {block}))")

    def _range(self, index: str) -> None:
        """Print the loop variables and the mask of the range, at ``index``."""
        printer, space = self.printer, self.space
        axis = space.axis
        if space.vectors is None:
            printer.emit(f"{axis}index = {index}{printer.cast}")
            printer.emit(f"{axis}mask = {axis}index < {space.elements}")
            self._split(f"{axis}index", space.inner)
        elif space.vectors.start is None:
            printer.emit(f"{axis}group = {index}{printer.cast}")
            printer.emit(f"{axis}mask = {axis}group < {space.elements}")
            printer.emit(f"{axis}place = {axis}group + lane")
            if space.splits_between_vectors:
                self._split(f"{axis}group", space.inner)
                innermost = f"{axis}_{space.inner[-1].symbol.name}"
                printer.emit(f"{innermost} = {innermost} + lane")
            else:
                self._split(f"{axis}place", space.inner)
        else:
            printer.emit(f"{axis}group = {index}{printer.cast}")
            printer.emit(f"{axis}place = {axis}group + lane")
            printer.emit(f"{axis}index = {axis}place - {axis}shift")
            if space.span is Span.ELEMENTS:
                printer.emit(f"{axis}mask = ({axis}index >= 0) & ({axis}place < {axis}end)")
            self._split(f"{axis}index", space.inner)

    def _split(self, flat: str, loops: tuple[LoopVariable, ...]) -> None:
        """Print the loop variables; ranges may share loop symbols, so their names begin with the axis."""
        split_index(self.printer, self.space.axis, flat, loops, f"{self.space.axis}_")

    def _row_access(self, buffer: str, index: sympy.Expr, is_store: bool) -> RowAccess | None:
        """How an element of a row is reached by vectors; None where ``index`` is no such place."""
        printer, space = self.printer, self.space
        vectors = space.vectors
        if vectors is None or "v" not in printer.tile.axes:
            return None
        if buffer not in (*self.kernel.reads, *self.kernel.writes):
            return None
        rest = row_start(index, space.inner)
        if rest is None or not vectors.follows(rest):
            return None
        axis = space.axis
        code, axes = printer.index(rest)
        axes |= {axis, "v"}
        if vectors.start is None:
            if vectors.whole is not None:  # the compiler can't know what this call's sizes are
                code = f"{code} // VECTOR * VECTOR"
            return RowAccess(f"{code} + {axis}offset + {axis}lanes", axes, None, None)
        code = f"{code} // VECTOR * VECTOR + {axis}offset + {axis}lanes"
        if (
            space.span is Span.ALL
            or vectors.width * printer.dtype_of(buffer).itemsize > VECTOR_BYTES
        ):
            return RowAccess(code, axes, None, None)
        if is_store:
            whole = f"({axis}group >= {axis}shift) & ({axis}group + VECTOR <= {axis}end)"
            return RowAccess(code, axes, whole, f"{axis}mask & (({whole}) == 0)")
        return RowAccess(code, axes, f"{axis}group < {axis}end", None)

    # -- stages ----------------------------------------------------------------------------------------

    def _stage(self, position: int, stage: Stage, writes: set[str]) -> None:
        printer, space = self.printer, self.space
        if not stage.inner:
            space.leave()
            if stage.is_reduction:
                raise Unsupported("a reduction over no loop")
            printer.replay(stage.body)
            return
        self._select(self.ranges.index(stage.inner))
        if self.totals is not None and position >= self.totals.first_stage:
            space.enter()
            self.totals.add(stage.body, space)
            return
        self.stored = {}
        printer.store_result = self._note_result
        if position in self.sums:
            self._sum_found_before(position, stage)
            return
        accumulators = Accumulators(
            printer,
            space,
            position in self.sums.values(),
            lambda number: self._vector_of(stage.body, number),
        )
        printer.reduce = accumulators.reduce
        if self.blocks.persistent:
            space.enter()
            printer.replay(stage.body)
        else:
            printer.load_policy = self.cache_hints.of_stage(position)
            printer.store_policy = self.cache_hints.of_stores
            self._loops(stage, accumulators, writes)
            printer.load_policy, printer.store_policy = None, ""
        space.leave()
        for result, name, index in self.stored.values():
            value = accumulators.pending[result.number]()
            if position in self.sums_of_exponentials:
                printer.facts.at_least_one.add(value.code)
            self._store_result(name, index, value)
            if position in self.sums.values():
                self.finished[position] = (accumulators, value)

    def _vector_of(self, body: LoopBody, number: int) -> Callable[[str], FoundVector] | None:
        """What prints the operand of a reduction of ``body`` anew, for the vector that begins somewhere."""
        operand = slice_of(body, body.reductions()[number].value)
        if operand is None:
            return None
        changed = self.kernel.local_names
        changed -= self.printer.registers | self.printer.recomputed.keys()
        changed |= self.overwritten | set(self.kernel.writes)
        if not changed.isdisjoint(operand.reads):
            return None
        return lambda begin: self._vector_at(operand, begin)

    def _vector_at(self, operand: LoopBody, begin: str) -> FoundVector:
        """Print ``operand`` for one vector of each row, along an axis of its own."""
        printer, space = self.printer, self.space
        assert space.vectors is not None
        of_row, span = space.axis, space.span
        axis = space.axis = f"{of_row}v{printer.count}"
        printer.count += 1
        printer.emit(f"{space.block}: tl.constexpr = VECTOR")
        printer.emit(f"{axis}offset = 0")
        printer.emit(f"{axis}base = {begin}")
        printer.emit(f"{axis}lanes = {axis}base + lane")
        place, space.span = f"{axis}place", Span.VECTORS
        if space.vectors.start is not None:
            printer.emit(f"{axis}shift, {axis}end = {of_row}shift, {of_row}end")
            place, space.span = f"{axis}index", Span.ELEMENTS
        self._range(f"{axis}base")
        space.enter()
        found = FoundVector(printer.replay(operand), f"{axis}mask", place)
        space.axis, space.span = of_row, span
        space.leave()
        return found

    def _note_result(self, result: ReductionResult, name: str, index: sympy.Expr) -> None:
        self.stored[result.number, name] = (result, name, index)

    def _store_result(self, name: str, index: sympy.Expr, value: Text) -> None:
        printer = self.printer
        if name in printer.registers:
            printer.local[name, printer.index(index)[0]] = value
            return
        if not printer.index(index)[1]:
            value = Text(value.code, value.dtype, COLUMN)
        printer.write(name, index, value, None)

    def _sum_found_before(self, position: int, stage: Stage) -> None:
        """Store the sum of exponentials that an earlier stage has found beside a maximum."""
        accumulators, largest = self.finished[self.sums[position]]
        (reduction,) = stage.body.reductions()
        total = accumulators.sum_of_exponentials(
            accumulators.lanes_of(0), largest, reduction.accumulated
        )
        self.printer.facts.at_least_one.add(total.code)
        for store in stage.body.stores():
            if stage.body.at(store.value) is reduction:
                self.space.leave()
                self._store_result(store.buffer, store.index, total)

    def _loops(self, stage: Stage, accumulators: Accumulators, writes: set[str]) -> None:
        """Print the loop over a row's blocks; two where only its first and last hold anything else."""
        printer, space = self.printer, self.space
        axis, block = space.axis, space.block
        start = len(printer.lines)
        elements = loop_bound(space.elements)
        if space.vectors is None:
            space.span = Span.ELEMENTS
            steps, in_flight = f"0, {elements}, {block}", self.blocks.in_flight
            ahead = f"tl.range({steps}, num_stages={in_flight})"
            self._loop(ahead if in_flight > 1 else f"range({steps})", stage, writes)
        elif space.vectors.start is None:
            space.span = Span.VECTORS
            self._loop(unrolled(f"0, {elements}, {block}", UNROLLED), stage, writes)
        else:
            space.span = Span.ALL
            steps = f"{block}, {axis}last, {block}"
            self._loop(unrolled(steps, UNROLLED), stage, writes)
            accumulators.again()
            space.span = Span.ELEMENTS
            edges = f"range(0, math.bound({axis}end), {axis}last)"
            self._loop(edges, stage, writes)
        before = ["    " * printer.indent + line for line in accumulators.before]
        printer.lines[start:start] = before

    def _load_ahead(
        self, stages: Sequence[Stage], without: Set[sympy.Symbol] = frozenset()
    ) -> None:
        """Load what ``stages`` read of memory that stays as it is, at indices that depend on no value.

        Before what they wait for: the loop that goes through rows, which stores too, or reductions.
        ``without``: symbols that are not known yet.
        """
        space, printer = self.space, self.printer
        stays = {*self.kernel.reads} - {*self.kernel.writes, *self.overwritten}
        for stage in stages:
            if stage.inner:
                self._select(self.ranges.index(stage.inner))
                space.enter()
            else:
                space.leave()
            bound = without | stage.body.bound_symbols
            loads = [i for i in stage.body.instructions if isinstance(i, Load)]
            for load in loads:
                if load.buffer in stays and not load.free_symbols & bound:
                    printer.load(load.buffer, load.index)

    def _loop(self, steps: str, stage: Stage, writes: set[str]) -> None:
        printer, space = self.printer, self.space
        axis = space.axis
        for key in [k for k in printer.loaded if k[0] in writes]:
            del printer.loaded[key]
        with printer.loop(f"for {axis}offset in {steps}:"):
            self._range(f"{axis}offset + {axis}base")
            space.enter()
            printer.replay(stage.body)
        for key in [k for k in printer.loaded if k[0] in writes]:
            del printer.loaded[key]
