"""Which contractions of a schedule may be computed in kernels of our own, alone or with loops around them.

The loops that read a result can run on each tile of it as it is computed; those that compute an operand
from others, element by element, can run where its elements are loaded (:mod:`.producers`).  Loops that read
what several matmuls make of the same few rows can run on the tiles of all, as those of a gated layer do.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

import sympy
from weft_loop_ir import (
    Buffer,
    Expansion,
    ExternCall,
    FusedKernel,
    Kernel,
    LoopBody,
    LoopVariable,
    ReplacedSteps,
    Schedule,
    Stage,
    Step,
    Value,
    kernel_name,
    loop_values,
    ranges_for,
)
from weft_loop_ir.bodies import LOAD, STORE, Indirect
from weft_loop_ir.contractions import (
    BATCH,
    COLUMN,
    INNER,
    ROW,
    Contraction,
    Loops,
    Operand,
    add_contraction,
    contraction_of,
)
from weft_loop_ir.loop_nests import LoopNests

from weft_codegen_triton.gpu import Gpu
from weft_codegen_triton.matmuls.producers import with_producers
from weft_codegen_triton.matmuls.row_reductions import RowReduction, add_row_reductions
from weft_codegen_triton.matmuls.tiles import FEW_ROWS, TileShape, reducing_tile, tiles_for
from weft_codegen_triton.matmuls.words import parts_of

MIN_CHANNELS = 16
"""Of a convolution of all channels: an instruction multiplies as many at least."""
MAX_TAPS = 49
MAX_ELEMENTS = 2**31 - 2**21
"""Of each operand and result, so that 32-bit indices do."""


@dataclass(frozen=True)
class MatmulKernel(FusedKernel):
    """A contraction, and a kernel's loops on its result, tile by tile as it is computed.

    The one stage loads elements of ``sums``, which has no memory, and stores others; ``loops`` says where the
    loops are for a batch, a row and a column.  ``replaces`` are the steps that it does the work of, in
    their order: producers of operands, the library's call, the loops after it.  ``beside`` are contractions
    of the same left operand and sizes whose tiles the loops read too, by the names of their sums.

    ``reductions`` are of what the loops store, of which nothing else reads ``dropped``, so that is in no
    memory.  A program makes ``repeats`` tiles, one below the other, for these.  ``joined`` are the kernels
    that read their partial results, which are in buffers ``made`` as long as there are programs for a column,
    before and after.
    """

    contraction: Contraction
    sums: str
    loops: Loops
    replaces: tuple[Kernel | ExternCall, ...]
    tile: TileShape
    gpu: Gpu
    beside: tuple[tuple[str, Contraction], ...] = ()
    reductions: tuple[RowReduction, ...] = ()
    repeats: int = 1
    dropped: tuple[str, ...] = ()
    joined: tuple[tuple[Kernel, Kernel], ...] = ()
    made: tuple[Buffer, ...] = ()

    @property
    def all_sums(self) -> tuple[tuple[str, Contraction], ...]:
        """Every contraction, by the name of its sums."""
        return (self.sums, self.contraction), *self.beside

    @property
    def call(self) -> ExternCall:
        """What the library would do, for ``contraction``."""
        others = {name for name, _ in self.beside}
        calls = (step for step in self.replaces if isinstance(step, ExternCall))
        (call,) = (call for call in calls if call.outputs[0] not in others)
        return call

    @property
    def results(self) -> dict[str, sympy.Expr]:
        """Where the loops store what each buffer has, over rows and columns."""
        places = {loop.symbol: value for loop, value in self.loops}
        stores = self.stages[0].body.stores()
        return {s.buffer: sympy.expand(s.index.xreplace(places)) for s in stores}

    @property
    def tiles(self) -> tuple[TileShape, ...]:
        """Those to choose from: of as many rows where these are what is reduced."""
        tiles = tiles_for(self.contraction, self.gpu, len(self.all_sums))
        if not self.reductions:
            return tiles
        others = (tile for tile in tiles if tile.rows == self.tile.rows and tile != self.tile)
        return (self.tile, *others)

    @property
    def rows_of_program(self) -> int:
        """Of all the tiles that a program makes."""
        return self.tile.rows * self.repeats

    def expanded(self, buffers: Mapping[str, Buffer]) -> Expansion:
        """Producers of operands, the contraction, and the kernel's own loops."""
        nests = LoopNests(self.name, buffers)
        operands = (operand for _, c in self.all_sums for operand in (c.left, c.right))
        for operand in dict.fromkeys(operands):
            if operand.producer is not None:
                nests.include(operand.producer.kernel, temporary=[operand.buffer])
        for sums, contraction in self.all_sums:
            nests.temporary(sums, [contraction.elements], contraction.dtype)
            add_contraction(nests, contraction, sums)
        loops = Kernel.of_stages(f"{self.name}_loops", self.outer, self.stages, (), self.origins)
        nests.include(loops, self.dropped)
        for reduction in self.reductions:
            nests.include(reduction.kernel)
        return nests.expansion()


def matmul_forms(
    call: ExternCall, place: int, around: ReplacedSteps, gpu: Gpu
) -> tuple[MatmulKernel, ...]:
    """The kernels that could run ``call``, the step at ``place``; the one first that does most besides."""
    buffers = around.buffers
    contraction = _readable(call, buffers)
    if contraction is None:
        return ()
    name = str(call.outputs[0])
    if not around.is_made_at(name, place):
        return ()
    ends: list[tuple[Kernel | None, int]] = [(None, place)]
    last = around.only_reader(name, place)
    reader = _pointwise(around.step(last))
    if last is not None and reader and around.stay(contraction.reads, place, last):
        ends.insert(0, (reader, last))
    found: list[MatmulKernel | None] = []
    made: MatmulKernel | None
    for after, end in ends:
        joined = with_producers(contraction, call, place, end, around)
        for form, before in (joined, (contraction, ())) if joined[1] else (joined,):
            if after is None:
                made = _alone(call, form, before, buffers, gpu)
                found += [_reducing(made, end, around), made]
                continue
            made = _with_loops(call, form, before, after, buffers, gpu)
            if made is not None:
                found += [
                    _with_others(made, after, end, around),
                    _reducing(made, end, around),
                    made,
                ]
    return tuple(form for form in found if form is not None)


def _reducing(form: MatmulKernel, end: int, around: ReplacedSteps) -> MatmulKernel | None:
    """``form``, at the position ``end``, with reductions of what it makes; None without any."""
    contraction = form.contraction
    if not contraction.is_static or contraction.batch != 1 or contraction.groups is not None:
        return None
    if form.tile.rows == 1:
        return None
    shape = reducing_tile(contraction, form.gpu)
    if shape is None:
        return None
    tile, repeats = shape
    return add_row_reductions(replace(form, tile=tile, repeats=repeats), end, around)


def _with_others(
    form: MatmulKernel, kernel: Kernel, place: int, around: ReplacedSteps
) -> MatmulKernel | None:
    """``form``, of few rows, with the other matmuls of these that ``kernel`` at ``place`` alone reads.

    None where there are none.
    """
    contraction, buffers = form.contraction, around.buffers
    if not contraction.is_static or contraction.rows > FEW_ROWS:
        return None
    (index,) = {load.index for load in kernel.stages[0].body.loads(form.sums)}
    beside: list[tuple[str, Contraction]] = []
    replaces: dict[int, tuple[Kernel | ExternCall, ...]] = {}
    for name in kernel.reads:
        writer = around.written(name)[0] if around.written(name) else place
        call = around.step(writer)
        if name == form.sums or not isinstance(call, ExternCall):
            continue
        other = _readable(call, buffers)
        if other is None or around.only_reader(name, writer) != place:
            continue
        if not around.stay(other.reads, writer, place):
            continue
        other, before = with_producers(other, call, writer, place, around)
        is_at_index = {load.index for load in kernel.stages[0].body.loads(name)} == {index}
        if is_at_index and _is_like(contraction, other) and not _meets(other, kernel):
            beside.append((name, other))
            replaces[writer] = (*before, call)
    if not beside:
        return None
    *steps, _ = form.replaces
    own = around.written(form.sums)[0]
    replaces[own] = tuple(steps)
    ordered = [step for writer in sorted(replaces) for step in replaces[writer]]
    others = {name for name, _ in beside}
    reads = [*form.reads, *(n for _, other in beside for n in other.reads)]
    origins = ([s.origin] if isinstance(s, ExternCall) else s.origins for s in (*ordered, kernel))
    return replace(
        form,
        reads=tuple(dict.fromkeys(n for n in reads if n not in others)),
        origins=tuple(itertools.chain(*origins)),
        replaces=(*ordered, kernel),
        tile=tiles_for(contraction, form.gpu, 1 + len(beside))[0],
        beside=tuple(beside),
    )


def _is_like(one: Contraction, other: Contraction) -> bool:
    """Whether both go through the same rows, and read what these are multiplied by in the same steps."""
    plain = (other.taps == 1, other.groups is None, not other.is_convolution, other.batch == 1)
    steps = [
        [sympy.expand(c.right.index).coeff(place) for place in (INNER, COLUMN)]
        for c in (one, other)
    ]
    return (
        all(plain)
        and one.sizes == other.sizes
        and one.left == other.left
        and one.dtype == other.dtype
        and steps[0] == steps[1]
        and parts_of(one) == parts_of(other)
    )


def _meets(contraction: Contraction, kernel: Kernel) -> bool:
    """Whether ``kernel`` touches what the contraction reads: a tile would overwrite what others read."""
    return not set(contraction.reads).isdisjoint((*kernel.reads, *kernel.writes))


def matmul_alone(call: ExternCall, schedule: Schedule, gpu: Gpu) -> MatmulKernel | None:
    """The kernel that computes what ``call`` does and nothing besides; None where there is none."""
    contraction = _readable(call, schedule.buffers)
    if contraction is None:
        return None
    return _alone(call, contraction, (), schedule.buffers, gpu)


def _readable(call: ExternCall, buffers: Mapping[str, Buffer]) -> Contraction | None:
    """What ``call`` computes, if there is a kernel for it."""
    contraction = contraction_of(call, buffers)
    if contraction is None or not _is_addressable(contraction):
        return None
    if not contraction.is_convolution:
        is_column = contraction.columns == 1 and contraction.rows != 1
        return _turned(contraction) if is_column and contraction.groups is None else contraction
    has_channels = contraction.by_channel or contraction.inner >= MIN_CHANNELS
    return contraction if has_channels and contraction.taps <= MAX_TAPS else None


def _turned(contraction: Contraction) -> Contraction:
    """The same with rows for columns: one column lies in memory as one row does."""
    swap = {ROW: COLUMN, COLUMN: ROW}

    def swapped(operand: Operand) -> Operand:
        return replace(operand, index=operand.index.subs(swap, simultaneous=True))

    return replace(
        contraction,
        rows=contraction.columns,
        columns=contraction.rows,
        left=swapped(contraction.right),
        right=swapped(contraction.left),
        biases=tuple(
            replace(a, index=a.index.subs(swap, simultaneous=True)) for a in contraction.biases
        ),
    )


def _is_addressable(contraction: Contraction) -> bool:
    """Whether 32-bit indices reach all elements, or sizes vary, so that indices have 64."""
    sizes = contraction.sizes
    if not contraction.is_static:
        return True
    if 0 in sizes.values():
        return False
    indices = [contraction.left.index, contraction.right.index, contraction.elements]
    indices += [bias.index for bias in contraction.biases]
    ranges = ranges_for(tuple(sizes.items()))
    largest = (ranges.bounds(index)[1] for index in indices)
    return all(last is not None and last < MAX_ELEMENTS for last in largest)


def _pointwise(step: Step | None) -> Kernel | None:
    """``step``, if it is a kernel whose iterations may run on each tile of what they read."""
    if not isinstance(step, Kernel) or type(step) is not Kernel or step.local_buffers:
        return None
    body = step.pointwise_body
    if body is None or body.accumulates:
        return None
    return None if any(isinstance(i, Indirect) for i in body.instructions) else step


def _with_loops(
    call: ExternCall,
    contraction: Contraction,
    before: tuple[Kernel, ...],
    kernel: Kernel,
    buffers: Mapping[str, Buffer],
    gpu: Gpu,
) -> MatmulKernel | None:
    """The contraction with the loops of ``kernel`` on it; None unless each iteration reads one element."""
    name = str(call.outputs[0])
    if _meets(contraction, kernel):
        return None
    layouts = [buffers[n].layout for n in (*kernel.reads, *kernel.writes)]
    for layout in layouts:
        count = sympy.Mul(*layout.size)
        if contraction.is_static and not (count.is_Integer and count < MAX_ELEMENTS):
            return None
    indices = {load.index for load in kernel.stages[0].body.loads(name)}
    if len(indices) != 1:
        return None
    (index,) = indices
    loops = loop_values(
        kernel.outer, index, contraction.position, contraction.sizes, contraction.elements
    )
    if loops is None:
        return None
    return _form(call, contraction, name, kernel, loops, (*before, call, kernel), gpu)


def _form(
    call: ExternCall,
    contraction: Contraction,
    sums: str,
    kernel: Kernel,
    loops: Loops,
    replaces: tuple[Kernel | ExternCall, ...],
    gpu: Gpu,
) -> MatmulKernel:
    """The contraction of ``call`` with the loops of ``kernel``, which read its ``sums``."""
    values = {f.name: getattr(kernel, f.name) for f in fields(Kernel)}
    reads = (n for n in kernel.reads if n != sums)
    values["reads"] = tuple(dict.fromkeys((*reads, *contraction.reads)))
    origins = ([s.origin] if isinstance(s, ExternCall) else s.origins for s in replaces)
    values["origins"] = tuple(itertools.chain(*origins))
    values["name"] = f"{kernel_name([call.operator._schema.name])}_{kernel.name}"
    tile = tiles_for(contraction, gpu)[0]
    return MatmulKernel(
        **values,
        contraction=contraction,
        sums=sums,
        loops=loops,
        replaces=replaces,
        tile=tile,
        gpu=gpu,
    )


def _alone(
    call: ExternCall,
    contraction: Contraction,
    before: tuple[Kernel, ...],
    buffers: Mapping[str, Buffer],
    gpu: Gpu,
) -> MatmulKernel:
    """The contraction alone: its loops store the sums."""
    name = str(call.outputs[0])
    sums = f"{name}_sums"
    places = [p for p in (BATCH, ROW, COLUMN) if p in contraction.position.free_symbols]
    outer = tuple(LoopVariable(p, contraction.sizes[p]) for p in places)
    dtype = buffers[name].layout.dtype
    body = LoopBody(
        (
            LOAD.instruction((sums, contraction.position), dtype),
            STORE.instruction((name, contraction.position, Value(0), None), None),
        )
    )
    kernel = Kernel(call.name, outer, (Stage((), body),), (), (sums,), (name,), ())
    loops = tuple((loop, loop.symbol) for loop in outer)
    return _form(call, contraction, sums, kernel, loops, (*before, call), gpu)
