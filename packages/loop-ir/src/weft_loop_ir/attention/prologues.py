"""What attention can do before it reads its operands, instead of kernels of its own.

What computes a query, a key or a value element by element for one attention alone (a rotation, a scale, a
conversion from fewer bits) is computed where the element is loaded.  What stores a few rows of keys and
values that the attention reads next, as ``cache[:, :, position] = k`` does, is done by the program that reads
them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

import sympy

from weft_loop_ir.attention.find_attention import AttentionKernel
from weft_loop_ir.attention.masks import with_computed_positions
from weft_loop_ir.attention.operands import MatrixOperand
from weft_loop_ir.bodies import Indirect, Store
from weft_loop_ir.bodies.edit import chosen, without_unused
from weft_loop_ir.digits import loop_values
from weft_loop_ir.expressions import loop_symbol
from weft_loop_ir.ir import Buffer, Kernel, LoopVariable, Schedule, Stage
from weft_loop_ir.recording import BodyRecorder
from weft_loop_ir.schedule.options import ScheduleOptions
from weft_loop_ir.schedule.replaced_steps import ReplacedSteps

ROW, COLUMN = (loop_symbol(name, 0) for name in ("row", "column"))
"""Where an element is in a matrix, beside :attr:`MatrixOperand.batch`."""

Loops = tuple[tuple[LoopVariable, sympy.Expr], ...]


@dataclass(frozen=True)
class RowStore:
    """A store of rows of an operand's matrices: where its kernel's ``loops`` are, and its ``row``.

    ``several`` is the loop that goes through the rows of a matrix, if there are several.
    """

    loops: Loops
    row: sympy.Expr
    several: LoopVariable | None

    @property
    def count(self) -> sympy.Expr:
        """How many rows of a matrix it stores."""
        return sympy.S.One if self.several is None else self.several.size


def producer_loops(
    kernel: Kernel, operand: MatrixOperand, buffers: Mapping[str, Buffer]
) -> Loops | None:
    """Where the loops of ``kernel``, which makes an operand, are for an element of that; None: not known."""
    store = kernel.stages[0].body.only_store(operand.buffer)
    assert store is not None
    return loop_values(
        kernel.outer,
        store.index,
        operand.base + ROW * operand.steps[0] + COLUMN * operand.steps[1],
        _extents(operand, operand.size[1]),
        sympy.Mul(*buffers[operand.buffer].layout.size),
    )


def row_store(kernel: Kernel, operand: MatrixOperand) -> RowStore | None:
    """How ``kernel``, which has one store, stores rows of ``operand``; None if it does something else.

    Each row that it stores is one matrix's.
    """
    body = kernel.stages[0].body
    store = body.only_store(operand.buffer)
    if store is None or operand.buffer in body.reads:
        return None
    moving = {loop.symbol: loop for loop in kernel.outer if loop.size != 1}
    read = {i.symbol: i.size for i in body.instructions if isinstance(i, Indirect)}
    still = [loop.symbol for loop in kernel.outer if loop.size == 1]
    still += [symbol for symbol, size in read.items() if size == 1]
    index = sympy.expand(store.index.xreplace(dict.fromkeys(still, sympy.S.Zero)))
    step, start = operand.steps[0], operand.base.xreplace({MatrixOperand.batch: sympy.S.Zero})
    places = [s for s in (*moving, *read) if sympy.expand(index.coeff(s) - step) == 0]
    if len(places) > 1 or step == 0:
        return None
    place = places[0] if places else sympy.S.Zero
    first = index.xreplace(dict.fromkeys((*moving, *read), sympy.S.Zero))
    shift = sympy.cancel((first - start) / step)
    rows = read.get(place, operand.size[1])
    last = shift if place in read else shift + (moving[place].size - 1 if places else 0)
    if not (shift.is_Integer and shift >= 0 and sympy.expand(rows - 1 - last).is_nonnegative):
        return None
    told = [v for v in moving.values() if v.symbol in index.free_symbols and v.symbol != place]
    others = [v for v in moving.values() if v not in told]
    row = LoopVariable(loop_symbol("stored", 0), rows)
    loops = loop_values(
        (*told, row),
        index - first + (row.symbol - place) * step,
        operand.base - start + ROW * step + COLUMN * operand.steps[1],
        _extents(operand, rows),
        operand.size[0] * rows * operand.size[2],
    )
    if loops is None or len(others) > 1 or (place in read and shift != 0):
        return None
    values = dict(loops)
    if values.pop(row) != ROW or not all(
        value == COLUMN or value.free_symbols <= {MatrixOperand.batch} for value in values.values()
    ):
        return None
    return RowStore(tuple(values.items()), place + shift, others[0] if others else None)


def _extents(operand: MatrixOperand, rows: sympy.Expr) -> dict[sympy.Symbol, sympy.Expr]:
    return {MatrixOperand.batch: operand.size[0], ROW: rows, COLUMN: operand.size[2]}


Produces = Callable[[AttentionKernel, MatrixOperand, Kernel, bool], bool]
"""Whether an operand is to be computed by a kernel's loops where it is loaded; True: a launch less."""


def fuse_prologues(
    schedule: Schedule,
    produces: Produces,
    new_rows: Callable[[AttentionKernel], int],
    options: ScheduleOptions | None = None,
) -> Schedule:
    """``schedule`` whose attentions compute operands that ``produces`` says, and store new rows.

    Of keys and values they store up to ``new_rows`` of a matrix, where that leaves no kernel in its place.
    Memory is planned anew, by ``options``.
    """
    around = ReplacedSteps(schedule)
    for place, step in around:
        if isinstance(step, AttentionKernel):
            count, found = new_rows(step), _Prologues(around, place, step)
            found.take(lambda *_: True, count)
            found = _Prologues(around, place, step, found.gone_launches())
            found.take(produces, count)
            found.put()
    return around.planned(options)


@dataclass(eq=False)
class _Prologues:
    """Takes stores of kernels around the attention at ``place`` into it.

    ``launches`` are the places of those that may go with all that run in parallel; None: it may be any.
    """

    around: ReplacedSteps
    place: int
    attention: AttentionKernel
    launches: Collection[int] | None = None

    def __post_init__(self) -> None:
        self.taken: dict[int, set[str]] = {}  # the buffers whose stores go, by the kernels' places

    def take(self, produces: Produces, count: int) -> None:
        """Take what makes operands if ``produces`` says so, then stores of up to ``count`` rows."""
        self._take_producers(produces)
        if count > 0:
            self._take_stores(count)

    def gone_launches(self) -> set[int]:
        """The places of kernels of which nothing is left, nor of what runs in parallel with them."""
        gone = {p for p, names in self.taken.items() if names >= {*self._kernel(p).writes}}
        return {place for place in gone if gone.issuperset(self.around.beside(place))}

    def _kernel(self, place: int) -> Kernel:
        kernel = self.around.step(place)
        assert isinstance(kernel, Kernel)
        return kernel

    def _operands(self) -> tuple[MatrixOperand, MatrixOperand, MatrixOperand]:
        """Each as rows of what is multiplied or added up."""
        return self.attention.query, self.attention.key.turned(), self.attention.value

    def _take_stores(self, count: int) -> None:
        """Take kernels that store nothing but rows of keys and values, one after another."""
        _, key, value = self._operands()
        operands = {key.buffer: key, value.buffer: value}
        others = {*self.attention.score.reads, self.attention.query.buffer}
        others.update(n for part in self.attention.producers for n in part.reads)
        if len(operands) == 1 or not others.isdisjoint(operands):
            return
        stored: list[Kernel] = []
        writers = {n: [p for p in self.around.written(n) if p < self.place] for n in operands}
        for place in sorted({places[-1] for places in writers.values() if places}):
            kernel = self.around.step(place)
            may_go = self.launches is None or place in self.launches
            if type(kernel) is not Kernel or kernel.pointwise_body is None or not may_go:
                continue
            kernel = _without(kernel, self.taken.get(place, ()), kernel.name)
            parts = [self._storing(kernel, name) for name in kernel.writes]

            def stores_rows(part: Kernel) -> bool:
                found = row_store(part, operands[part.writes[0]])
                return found is not None and found.count.is_Integer and found.count <= count

            if (
                operands.keys() >= {*kernel.writes}
                and all(self._has_others(name, place) for name in kernel.writes)
                and self._waits(kernel, place)
                and all(map(stores_rows, parts))
            ):
                self.taken.setdefault(place, set()).update(kernel.writes)
                stored += parts
        self.attention = replace(self.attention, stored=tuple(stored))

    def _has_others(self, name: str, place: int) -> bool:
        """Whether there is more in ``name`` than the step at ``place`` writes."""
        is_given = self.around.buffers[name].kind.is_given
        return is_given or any(writer < place for writer in self.around.written(name))

    def _waits(self, kernel: Kernel, place: int) -> bool:
        """Whether ``kernel`` does the same where the attention is, and nothing misses it until then."""
        first, last = place + 1, self.place - 1
        touched = {*kernel.reads, *kernel.writes}
        is_missed = any(
            first <= reader <= last for n in kernel.writes for reader in self.around.readers(n)
        )
        return not is_missed and self.around.stay(touched, first, last)

    def _take_producers(self, produces: Produces) -> None:
        """Take what makes operands, for which ``produces`` says so."""
        operands = self._operands()
        names = [operand.buffer for operand in operands]
        found = []
        for operand in operands:
            name = operand.buffer
            part = None if names.count(name) > 1 else self._producer(name)
            if (
                part is not None
                and {*part.reads}.isdisjoint(names)
                and producer_loops(part, operand, self.around.buffers) is not None
            ):
                (place,) = self.around.written(name)
                is_launch = self.launches is not None and place in self.launches
                if produces(self.attention, operand, part, is_launch):
                    found.append(part)
                    self.taken.setdefault(place, set()).add(name)
        self.attention = replace(self.attention, producers=tuple(found))

    def _producer(self, name: str) -> Kernel | None:
        """What makes ``name`` for the attention alone, an element at a time; None if nothing does."""
        kernel = self.around.writer(name, self.place)
        is_alone = list(self.around.readers(name)) == [self.place]
        if kernel is None or not is_alone or name in self.attention.score.reads:
            return None
        body = kernel.pointwise_body
        if body is None or body.only_store(name) is None or kernel.local_buffers:
            return None
        part = self._storing(kernel, name)
        values = (i for i in part.stages[0].body.walk() if not isinstance(i, Store))
        is_apart = {*kernel.writes}.isdisjoint(part.reads)
        return part if is_apart and all(i.operation.is_of_element for i in values) else None

    def _storing(self, kernel: Kernel, name: str) -> Kernel:
        """``kernel`` with its stores to ``name`` alone, at positions that are known where they are."""
        others = {*kernel.writes} - {name}
        part = _without(kernel, others, f"{kernel.name}_{name}")
        dtypes = {n: self.around.buffers[n].layout.dtype for n in (*part.reads, name)}
        ops = BodyRecorder.over(part.outer, dtypes.__getitem__)
        stage = Stage((), with_computed_positions(part.stages[0].body, ops))
        return Kernel.of_stages(part.name, part.outer, [stage], (), part.origins)

    def put(self) -> None:
        """Put the attention with what it has taken into the schedule, and take that out."""
        if not self.taken:
            return
        attention, gone = self.attention, []
        for place, names in self.taken.items():
            kernel = self._kernel(place)
            if names >= {*kernel.writes}:
                gone.append(place)
            else:
                self.around.change(place, _without(kernel, names, kernel.name))
        made = {part.writes[0] for part in attention.producers}
        parts = (*attention.producers, *attention.stored)
        reads = [n for n in attention.reads if n not in made]
        changed = replace(
            attention,
            reads=tuple(dict.fromkeys([*reads, *(n for part in parts for n in part.reads)])),
            writes=(*attention.writes, *(n for part in attention.stored for n in part.writes)),
            origins=tuple(dict.fromkeys(o for p in (*parts, attention) for o in p.origins)),
        )
        self.around.put(gone, self.place, (changed,))


def _without(kernel: Kernel, names: Collection[str], name: str) -> Kernel:
    """A pointwise kernel without its stores to ``names``, called ``name``."""
    instructions = kernel.stages[0].body.instructions
    kept = [
        k for k, i in enumerate(instructions) if not (isinstance(i, Store) and i.buffer in names)
    ]
    stage = Stage((), without_unused(chosen(instructions, kept)))
    return Kernel.of_stages(name, kernel.outer, [stage], (), kernel.origins)
