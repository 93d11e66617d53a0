"""Reductions of columns that the scheduler leaves split in parts: partial results, and what joins them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import sympy
from weft_loop_ir import Buffer, BufferKind, Kernel, LoopBody, LoopVariable, Stage, Step
from weft_loop_ir.bodies import Combining, Indirect, Load, Random, Reduction, Store
from weft_loop_ir.bodies.edit import with_expressions
from weft_loop_ir.expressions import contiguous_stride, dot

from weft_codegen_triton.kernel.blocks import extent


@dataclass(frozen=True)
class PartsOfColumns:
    """Reductions of columns, of parts of so many rows each: ``kernel`` goes through ``row`` inside ``part``.

    It is at ``place`` of the program.  ``columns`` are its other outer loops.
    """

    place: int
    kernel: Kernel
    part: LoopVariable
    row: LoopVariable
    columns: tuple[LoopVariable, ...]

    @classmethod
    def of_step(
        cls,
        place: int,
        step: Step | None,
        buffers: Mapping[str, Buffer],
        accept: Callable[[Reduction], bool],
    ) -> PartsOfColumns | None:
        """Those that a kernel makes; None if it is none of that kind, or a reduction is not accepted."""
        stage = reduction_over_rows(step, accept)
        if stage is None or not isinstance(step, Kernel) or len(step.outer) < 2:
            return None
        part, *columns = step.outer
        body, (row,) = stage.body, stage.inner
        found = cls(place, step, part, row, tuple(columns))
        if not all(found._is_partial(store, buffers) for store in body.stores()):
            return None
        shift = {part.symbol: sympy.S.Zero, row.symbol: row.size * part.symbol + row.symbol}
        others = (e for i in body.walk() if not isinstance(i, Store) for e in i.expressions)
        one_after_another = all(sympy.expand(e - e.xreplace(shift)) == 0 for e in others)
        return found if one_after_another else None

    def _is_partial(self, store: Store, buffers: Mapping[str, Buffer]) -> bool:
        """Whether a result goes to its place among those of all parts, in a buffer that has nothing else."""
        place = flat(self.columns) + self.width * self.part.symbol
        is_own = buffers[store.buffer].kind is BufferKind.INTERMEDIATE
        return is_own and sympy.expand(store.index - place) == 0

    @property
    def body(self) -> LoopBody:
        return self.kernel.stages[0].body

    @property
    def count(self) -> int:
        """How many rows there are in all parts."""
        return int(self.part.size) * int(self.row.size)

    @property
    def width(self) -> int:
        return int(extent(self.columns))

    def over_rows(self, row: sympy.Expr, columns: Mapping[sympy.Symbol, sympy.Expr]) -> LoopBody:
        """The body for one ``row`` of all, with other symbols for the columns; partial results stay."""
        known = {self.part.symbol: sympy.S.Zero, self.row.symbol: row, **columns}
        changed = with_expressions(self.body, lambda e: sympy.expand(e.xreplace(known)))
        both = zip(changed.instructions, self.body.instructions, strict=True)
        return LoopBody(tuple(old if isinstance(old, Store) else new for new, old in both))

    def of_length(self, length: int) -> Kernel:
        """The kernel for parts of another length."""
        size, count = sympy.Integer(length), sympy.Integer(self.count // length)
        row = size * self.part.symbol + self.row.symbol
        inner = (LoopVariable(self.row.symbol, size),)
        stage = Stage(inner, self.over_rows(row, {}), is_reduction=True)
        outer = (LoopVariable(self.part.symbol, count), *self.columns)
        return replace(self.kernel, outer=outer, stages=(stage,))

    def loop_over_parts(self, reader: Kernel, name: str) -> sympy.Symbol | None:
        """The reduced loop of ``reader`` that every load of ``name`` steps by whole parts along."""
        sizes = {v.symbol: v.size for v in reader.inner_loops}
        loads = [load for body in reader.bodies for load in body.loads(name)]
        found = {
            s
            for load in loads
            for s in load.index.free_symbols & sizes.keys()
            if sympy.expand(load.index).coeff(s) == self.width
        }
        if len(found) != 1 or not all(found <= load.index.free_symbols for load in loads):
            return None
        (symbol,) = found
        uses = [i for i in reader.walk() if symbol in i.free_symbols]
        if sizes[symbol] != self.part.size or not all(isinstance(i, Load) for i in uses):
            return None
        return symbol


def reduction_over_rows(
    step: Step | None, accept: Callable[[Reduction], bool], *, finished: bool = False
) -> Stage | None:
    """The first stage of a kernel, if it reduces along one loop in ways that are accepted.

    Nothing follows it, or where it may be ``finished``, what goes through no loop.
    """
    if type(step) is not Kernel or (len(step.stages) > 1 and not finished):
        return None
    stage, *others = step.stages
    body = stage.body
    if any(other.inner for other in others) or any(b.size != 1 for b in step.local_buffers):
        return None
    if not stage.is_reduction or len(stage.inner) != 1:
        return None
    if step.holds(Combining, Indirect, Random) or any(each.accumulates for each in step.bodies):
        return None
    if not all(v.size.is_Integer for v in step.all_loops):
        return None
    made = (isinstance(body.at(store.value), Reduction) for store in body.stores())
    return stage if all(made) and all(map(accept, body.reductions())) else None


def with_parts(buffer: Buffer, parts: sympy.Integer) -> Buffer:
    """``buffer`` for so many parts."""
    layout = buffer.layout
    return replace(buffer, layout=replace(layout, size=(parts, *layout.size[1:])))


def with_sizes(reader: Kernel, sizes: Mapping[sympy.Symbol, sympy.Integer]) -> Kernel:
    """``reader`` with its reduced loops of these symbols so long."""

    def of(loops: tuple[LoopVariable, ...]) -> tuple[LoopVariable, ...]:
        return tuple(replace(v, size=sizes.get(v.symbol, v.size)) for v in loops)

    return reader.with_ranges(of)


def flat(loops: tuple[LoopVariable, ...]) -> sympy.Expr:
    """The number of an iteration of ``loops``, the last of which goes fastest."""
    symbols = tuple(v.symbol for v in loops)
    return dot(symbols, contiguous_stride(tuple(v.size for v in loops)), sympy.S.Zero)
