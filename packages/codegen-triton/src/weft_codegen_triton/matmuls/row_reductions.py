"""What is reduced of a contraction's result along its rows, in the kernel that makes it.

The statistics of a batch norm after a convolution, the gradient of a bias, the largest number of each column:
a tile's rows are reduced while they are in registers, so that nothing reads the result again for that, and
nothing stores it where nothing else reads it.  The scheduler has split such reductions in parts.  A tile's
rows become a part, and the kernel that joins the parts goes through as many as there are tiles.  What one
tile has all rows of needs no parts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import sympy
from weft_loop_ir import Kernel, LoopBody, ReplacedSteps
from weft_loop_ir.bodies import (
    MUL,
    REDUCTIONS,
    Constant,
    Instruction,
    Load,
    Reduction,
    Store,
    Value,
)
from weft_loop_ir.bodies.edit import with_expressions
from weft_loop_ir.contractions import COLUMN, ROW

from weft_codegen_triton.column_sums.parts import (
    PartsOfColumns,
    reduction_over_rows,
    with_parts,
    with_sizes,
)
from weft_codegen_triton.kernel.blocks import extent

if TYPE_CHECKING:
    from weft_codegen_triton.matmuls.find_matmuls import MatmulKernel

MEAN, SQUARES = "welford_mean", "welford_m2"


@dataclass(frozen=True)
class RowReduction:
    """What ``replaced`` reduces, by tiles: ``body`` is over a contraction's rows and columns.

    ``kernel`` is the loop nest of that, which goes through a tile's rows in each part.  What ``body`` stores
    is at an index over columns, of the part's own row of a buffer where there are ``parts``.  Where there are
    none, bodies that follow, ``after``, make of it what ``replaced`` does.
    """

    replaced: Kernel
    kernel: Kernel
    body: LoopBody
    after: tuple[LoopBody, ...]
    parts: PartsOfColumns | None


def add_row_reductions(form: MatmulKernel, end: int, around: ReplacedSteps) -> MatmulKernel | None:
    """``form``, which is at the position ``end``, with what others reduce of the rows of its tiles.

    None where nothing does.
    """
    results = form.results
    places = sorted({p for name in results for p in around.readers(name) if p > end})
    pairs = ((place, _of_step(place, form, results, around, end)) for place in places)
    found = {place: reduction for place, reduction in pairs if reduction is not None}
    if not found:
        return None
    joined = _joined(
        [r.parts for r in found.values() if r.parts is not None], form.rows_of_program, around
    )
    return None if joined is None else _with_reductions(form, found, joined, around)


def _with_reductions(
    form: MatmulKernel,
    found: Mapping[int, RowReduction],
    joined: tuple[tuple[Kernel, Kernel], ...],
    around: ReplacedSteps,
) -> MatmulKernel:
    """``form`` with what it reduces, by positions, and what joins the parts of that."""
    reductions = tuple(found.values())
    writes = [n for r in reductions for n in r.kernel.writes]
    dropped = tuple(
        n for n in form.writes if around.is_own(n) and found.keys() >= {*around.readers(n)}
    )
    reads = dict.fromkeys((*form.reads, *(n for r in reductions for n in r.kernel.reads)))
    made = {n: r.parts for r in reductions if r.parts is not None for n in r.kernel.writes}
    rows = sympy.Integer(form.rows_of_program)
    return replace(
        form,
        name=f"{form.name.removesuffix(f'_{form.call.name}')}_{reductions[0].replaced.name}",
        reads=tuple(n for n in reads if n not in form.results),
        writes=(*(n for n in form.writes if n not in dropped), *writes),
        origins=(*form.origins, *(o for r in reductions for o in r.replaced.origins)),
        replaces=(*form.replaces, *(r.replaced for r in reductions)),
        reductions=reductions,
        dropped=dropped,
        joined=joined,
        made=tuple(with_parts(around.buffers[n], form.contraction.rows / rows) for n in made),
    )


def _of_step(
    place: int,
    form: MatmulKernel,
    results: Mapping[str, sympy.Expr],
    around: ReplacedSteps,
    end: int,
) -> RowReduction | None:
    """What the step at ``place`` reduces of ``results``, if the kernel at ``end`` may do that."""
    step, contraction = around.step(place), form.contraction
    stage = reduction_over_rows(step, _is_joined, finished=contraction.rows <= form.tile.rows)
    if stage is None or not isinstance(step, Kernel):
        return None
    (row,), columns, parts = stage.inner, step.outer, None
    known = {row.symbol: ROW}
    if contraction.rows > form.tile.rows:
        parts = PartsOfColumns.of_step(place, step, around.buffers, _is_joined)
        if parts is None or parts.count != contraction.rows:
            return None
        columns, known[parts.part.symbol] = parts.columns, sympy.S.Zero
    elif row.size != contraction.rows:
        return None
    moving = [v for v in columns if v.size != 1]
    if extent(columns) != contraction.columns or len(moving) > 1:
        return None
    known |= {v.symbol: COLUMN if v in moving else sympy.S.Zero for v in columns}
    body, *after = (
        with_expressions(each, lambda e: sympy.expand(e.xreplace(known))) for each in step.bodies
    )
    others = {*step.reads} - results.keys()
    if any(not results.keys().isdisjoint(each.reads) for each in after):
        return None
    here = [load for load in body.loads() if load.buffer in results]
    if not here or any(load.index != results[load.buffer] for load in here):
        return None
    if not others.isdisjoint(form.writes) or not around.stay(others, end, place):
        return None
    kernel = step if parts is None else parts.of_length(form.rows_of_program)
    return RowReduction(step, kernel, body, tuple(after), parts)


def _is_joined(reduction: Reduction) -> bool:
    """Whether partial results of floats can be joined."""
    kind = REDUCTIONS[reduction.kind]
    is_known = reduction.kind in (MEAN, SQUARES) or (kind.joins_itself and kind.connective is None)
    return is_known and reduction.accumulated.is_floating_point


# -- what joins parts --------------------------------------------------------------------------------------


def _joined(
    found: Sequence[PartsOfColumns], length: int, around: ReplacedSteps
) -> tuple[tuple[Kernel, Kernel], ...] | None:
    """The kernels that read partial results, and these for parts of another ``length``.

    None where one reads them in another way.
    """
    partial = {name: parts for parts in found for name in parts.kernel.writes}
    joined = []
    for place in sorted({p for name in partial for p in around.readers(name)}):
        reader = around.step(place)
        if type(reader) is not Kernel:
            return None
        sizes: dict[sympy.Symbol, sympy.Integer] = {}
        for name in partial.keys() & {*reader.reads}:
            symbol = partial[name].loop_over_parts(reader, name)
            if symbol is None:
                return None
            sizes[symbol] = sympy.Integer(partial[name].count // length)
        loads = [i for i in reader.walk() if isinstance(i, Load)]
        if any(i.buffer not in partial and sizes.keys() & i.free_symbols for i in loads):
            return None
        changed: Kernel | None = with_sizes(reader, sizes)
        for name in partial.keys() & {*reader.reads}:
            if changed is not None:
                changed = _of_length(changed, name, partial[name], length)
        if changed is None:
            return None
        joined.append((reader, changed))
    return tuple(joined)


def _of_length(reader: Kernel, name: str, parts: PartsOfColumns, length: int) -> Kernel | None:
    """``reader``, which weighs how far means ``name`` are apart by the length of parts, for another one."""
    apart: set[str] = set()
    for body in reader.bodies:
        for position, i in enumerate(body.instructions):
            if not isinstance(i, Reduction) or i.kind != SQUARES:
                continue
            mean = body.at(i.value)
            if not isinstance(mean, Load) or mean.buffer != name:
                continue
            users = _users(body, position)
            if not all(isinstance(u, Store) and u.buffer in reader.local_names for u in users):
                return None
            apart.update(u.buffer for u in users if isinstance(u, Store))
    stages = []
    for stage in reader.stages:
        weighed = _weighed(stage.body, apart, float(parts.row.size), float(length))
        if weighed is None:
            return None
        stages.append(replace(stage, body=weighed))
    return replace(reader, stages=tuple(stages))


def _weighed(body: LoopBody, apart: Iterable[str], old: float, new: float) -> LoopBody | None:
    """``body`` with ``new`` for the number ``old`` that what it loads of ``apart`` is multiplied by."""
    instructions = list(body.instructions)
    weighing: list[Instruction] = []
    weights: set[int] = set()
    for position, i in enumerate(body.instructions):
        if not isinstance(i, Load) or i.buffer not in apart:
            continue
        for user in _users(body, position):
            if user.operation is not MUL:
                return None
            weighing.append(user)
            weights.update(v.index for v in user.operands if v.index != position)
    for weight in weights:
        number = instructions[weight]
        others = [u for u in _users(body, weight) if not any(u is w for w in weighing)]
        if not isinstance(number, Constant) or number.number != old or others:
            return None
        changed = number.mapped(lambda a: new if isinstance(a, int | float) else a)
        instructions[weight] = changed
    return LoopBody(tuple(instructions), body.result)


def _users(body: LoopBody, position: int) -> list[Instruction]:
    return [i for i in body.instructions if Value(position) in i.operands]
