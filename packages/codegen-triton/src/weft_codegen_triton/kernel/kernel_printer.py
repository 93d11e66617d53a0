"""Prints a fused kernel as one Triton function."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import sympy
import torch
from weft_loop_ir import Buffer, Kernel, SizeFloat
from weft_loop_ir.bodies import Combining
from weft_loop_ir.ops import FLOAT8, STORAGE_ONLY

from weft_codegen_triton.kernel.aligned_sizes import SizeNumbers, aligning_products, is_aligned
from weft_codegen_triton.kernel.blocks import (
    BUSY_TILES,
    GRID_LIMIT,
    TILE,
    extent,
    pointwise_block,
    power_of_two,
    static,
    transposed_loop,
    with_sizes,
)
from weft_codegen_triton.kernel.body_printer import BodyPrinter, Tile
from weft_codegen_triton.kernel.dtypes import pointer_type
from weft_codegen_triton.kernel.frame import (
    NAME,
    POSITIONS,
    KernelFrame,
    RowLimits,
    definition,
    kernel_text,
    print_axis,
)
from weft_codegen_triton.kernel.index_bounds import (
    ALWAYS_WIDE,
    Bound,
    IndexWidth,
    Sizes,
    SymbolicIndices,
    body_bounds,
    bounds_of,
    largest,
)
from weft_codegen_triton.kernel.look_back import looks_back, print_look_back
from weft_codegen_triton.kernel.loop_order import with_contiguous_rows
from weft_codegen_triton.kernel.loop_printer import print_sequential_stage
from weft_codegen_triton.kernel.reduction_printer import ReductionPrinter
from weft_codegen_triton.kernel.scan_printer import print_scan
from weft_codegen_triton.options import INT32_SAFE

COMBINE = f"{NAME}_combine"
"""The function that a kernel scans with."""

LOOPED = f"{NAME}_looped"
"""What a kernel does with rows of any length, where it does something else with some."""

NO_HINTS: Mapping[sympy.Symbol, sympy.Integer] = {}

KERNEL_IMPORTS = """\
import triton
import triton.language as tl
from weft_codegen_triton.runtime import device_functions as weft
from weft_codegen_triton.runtime import device_math as math
"""


@dataclass(frozen=True)
class Scratch:
    """Memory that a kernel needs besides its buffers; all zero before each launch if it ``begins_zero``."""

    name: str
    dtype: torch.dtype
    elements: sympy.Expr
    begins_zero: bool = False


@dataclass(frozen=True)
class Function:
    """What is compiled of a kernel; kernels that are alike share it.

    ``template`` is the function's text with the holes of :mod:`templates`, after :data:`COMBINE` in a scan.
    ``parameters`` gives the types of its parameters by Triton's names (``*fp32``, ``i64``); those in
    ``constants`` follow them.
    ``grid_blocks`` names the constants that divide the grid's axes, ``loop_blocks`` those by which a loop
    steps: both may be changed.  ``is_repeatable``: running it again on the same memory changes nothing.
    ``stages``: steps of a loop whose loads are in flight.  ``alternatives``: the same with other constants,
    where only these are to be timed.  ``numbers`` says what the parameters are that sizes determine, and
    ``aligned`` which are taken for multiples of 16, besides addresses.
    """

    template: str
    parameters: tuple[tuple[str, str], ...]
    constants: tuple[tuple[str, int], ...]
    warps: int
    checks_indices: bool
    grid_blocks: tuple[str, ...] = ()
    loop_blocks: tuple[str, ...] = ()
    is_repeatable: bool = field(default=True, compare=False)
    stages: int = 1
    alternatives: tuple[Function, ...] = ()
    aligned: tuple[str, ...] = ()
    numbers: tuple[tuple[str, sympy.Expr], ...] = ()

    def for_aligned(self, products: Collection[sympy.Expr]) -> Function:
        """The function for calls in which ``products`` of sizes, or sizes, are multiples of 16."""
        aligned = {name for name, number in self.numbers if is_aligned(number, products)}
        aligned.update(product.name for product in products if product.is_Symbol)
        return replace(
            self,
            aligned=tuple(name for name, _ in self.parameters if name in aligned),
            alternatives=tuple(other.for_aligned(products) for other in self.alternatives),
        )

    def module(self, name: str, *, unrolls: bool = True) -> str:
        """The text of a Python module that defines the function alone, called ``name``."""
        return f"{KERNEL_IMPORTS}\n\n{kernel_text(self.template, name, unrolls=unrolls)}"


@dataclass(frozen=True)
class PrintedKernel:
    """A kernel's function, and how the host program launches it.

    It is called with the memory of ``buffers``, then of ``scratch``, then the values of ``sizes`` (symbols,
    and what is computed of them) and the bits of ``scalars``.
    ``counts`` are the extents of the grid's axes and ``blocks`` how much of each a program handles.
    It is right in calls whose sizes keep ``bounds`` below ``INT32_SAFE``, and faster where the products
    ``aligning`` of sizes are multiples of 16.
    """

    function: Function
    buffers: tuple[str, ...]
    scratch: tuple[Scratch, ...]
    sizes: tuple[sympy.Expr, ...]
    scalars: tuple[SizeFloat, ...]
    counts: tuple[sympy.Expr, ...]
    blocks: tuple[int, ...]
    bounds: tuple[Bound, ...] = ()
    aligning: frozenset[sympy.Expr] = frozenset()


def print_kernel(
    kernel: Kernel,
    buffers: Mapping[str, Buffer],
    limits: RowLimits,
    overwritten: frozenset[str] = frozenset(),
    indices: SymbolicIndices = ALWAYS_WIDE,
    hints: Mapping[sympy.Symbol, sympy.Integer] = NO_HINTS,
) -> PrintedKernel:
    """The Triton function of ``kernel``; raises Unsupported where it has none.

    ``limits`` says how rows are read; ``overwritten`` names the buffers that the
    kernel reads and whose memory it writes; ``indices``: how wide those are that only sizes bound;
    ``hints``: sizes that vary, in the call by which blocks are chosen.
    """
    kernel = with_contiguous_rows(kernel)
    pointers = pointers_of(kernel)
    local = {b.name: b.dtype for b in kernel.local_buffers}
    dtype_of = ({n: buffers[n].layout.dtype for n in pointers if n in buffers} | local).__getitem__
    sizes = {**indices.counters, **{v.symbol: v.size for v in kernel.all_loops}}
    width = indices.width(_bounds(kernel, sizes))

    def new_frame() -> KernelFrame:
        tile = Tile(("x",), "[XBLOCK]", "[1]", sizes=dict(sizes))
        printer = BodyPrinter(tile, pointers, dtype_of, frozenset(local), width.wide)
        printer.for_half = stores_half(kernel, dtype_of)
        printer.divides_exactly = any(dtype_of(n) in FLOAT8 for n in kernel.writes)
        printer.numbers = SizeNumbers(kernel.free_sizes)
        printer.waits_to_store = limits.tile > 0 and bool(overwritten)
        return KernelFrame(kernel, with_sizes(kernel, hints), printer, limits.gpu)

    frame = new_frame()
    body = _print_body(frame, new_frame, limits, overwritten)
    return _with_parameters(frame, body, width, is_repeatable=not overwritten)


def _with_parameters(
    frame: KernelFrame, body: _Body, width: IndexWidth, *, is_repeatable: bool
) -> PrintedKernel:
    """The kernel whose lines ``frame`` and ``body`` have, called with what these name."""
    kernel, printer = frame.kernel, frame.printer
    symbols = kernel.free_sizes
    passed = tuple(s for s in symbols if s in printer.numbers.mentioned)
    numbers = tuple((symbol.name, number) for number, symbol in printer.numbers.names.items())
    pointers = pointers_of(kernel)  # the printer's are more: local rows in scratch memory
    memory = [(name, printer.dtype_of(buffer)) for buffer, name in pointers.items()]
    memory += [(f"{row.name}_ptr", row.dtype) for row in body.scratch]
    parameters = [(name, pointer_type(dtype)) for name, dtype in memory]
    parameters += [(s.name, width.of_sizes) for s in passed]
    parameters += [(name, width.of_sizes) for name, _ in numbers]
    parameters += [(name, "i64") for name in printer.scalars.values()]
    begins_zero = any(row.begins_zero for row in body.scratch)
    function = Function(
        _template([name for name, _ in parameters], frame, body.helpers, body.held),
        tuple(parameters),
        tuple(frame.constants.items()),
        body.warps,
        printer.uses_assert,
        tuple(f"{axis.upper()}BLOCK" for axis in frame.grid_axes),
        tuple(f"{axis.upper()}BLOCK" for axis in frame.loop_axes),
        is_repeatable and not (printer.uses_atomics or begins_zero),
        numbers=numbers,
    )
    sizes = (*passed, *printer.numbers.names)
    return PrintedKernel(
        function,
        tuple(pointers),
        body.scratch,
        sizes,
        tuple(printer.scalars),
        body.counts,
        body.blocks,
        largest([*width.bounds, *body.grid_bounds]),
        aligning_products(kernel, symbols, sizes),
    )


def pointers_of(kernel: Kernel) -> dict[str, str]:
    """The parameters of the buffers that ``kernel`` touches, in order."""
    names = dict.fromkeys((*kernel.reads, *kernel.writes))
    written = set(kernel.writes)
    return {n: f"{'out' if n in written else 'in'}{k}_ptr" for k, n in enumerate(names)}


@dataclass(frozen=True)
class _Form:
    """What a kernel does under ``condition``: the ``lines`` of a function called ``name``."""

    name: str
    condition: str
    lines: list[str]


@dataclass(frozen=True)
class _Body:
    """How a kernel whose lines are printed is launched; the other fields are :class:`PrintedKernel`'s.

    ``helpers``: the lines of functions before it.  ``held``: what it does, and when, instead of its lines.
    """

    counts: tuple[sympy.Expr, ...]
    blocks: tuple[int, ...]
    warps: int
    scratch: tuple[Scratch, ...] = ()
    helpers: Sequence[str] = ()
    held: _Form | None = None
    grid_bounds: Sequence[Bound] = ()


def _print_body(
    frame: KernelFrame,
    new_frame: Callable[[], KernelFrame],
    limits: RowLimits,
    overwritten: frozenset[str],
) -> _Body:
    """Print the lines of ``frame.kernel``, by what its stages do."""
    stages = frame.kernel.stages
    if frame.kernel.holds(Combining):
        if not limits.tile and looks_back(frame.kernel, frame.gpu):
            helpers, counts, blocks, warps, words = print_look_back(frame, COMBINE)
            state = Scratch("state", torch.int64, words, begins_zero=True)
            return _Body(counts, blocks, warps, (state,), helpers)
        helpers, counts, blocks, warps = print_scan(frame, COMBINE)
        return _Body(counts, blocks, warps, helpers=helpers)
    if any((s.inner and not s.is_sequential) or s.is_reduction for s in stages):
        reduction = ReductionPrinter(frame, limits, overwritten)
        counts, blocks, warps = reduction.print()
        held, rows = None, reduction.scratch
        if reduction.may_hold and not limits.tile:
            held, more = _print_beside(reduction, "held", new_frame(), limits, overwritten)
            rows = rows + more
        elif reduction.may_be_whole and not rows:
            held, _ = _print_beside(reduction, "vectors", new_frame(), limits, overwritten)
        scratch = tuple(Scratch(*row) for row in rows)
        return _Body(counts, blocks, warps, scratch, held=held)
    counts, blocks, warps = _print_pointwise(frame, limits.tile)
    grid_bounds = _grid_bounds(frame) if _is_transposed(frame) else []
    return _Body(counts, blocks, warps, grid_bounds=grid_bounds)


def _print_beside(
    looped: ReductionPrinter,
    word: str,
    frame: KernelFrame,
    limits: RowLimits,
    overwritten: frozenset[str],
) -> tuple[_Form, list[tuple[str, torch.dtype, sympy.Expr]]]:
    """What a kernel does with rows that each fit a block, or are whole vectors; and its scratch memory.

    ``looped`` has printed what it does with rows of any length.  ``word`` ends the function's name.
    """
    printer, other = frame.printer, looped.frame.printer
    printer.scalars, printer.numbers = other.scalars, other.numbers
    held = ReductionPrinter(frame, limits, overwritten, looped)
    held.print()
    assert frame.constants == looped.frame.constants
    other.uses_assert |= printer.uses_assert
    other.uses_atomics |= printer.uses_atomics
    if looped.scratch:
        looped.frame.loop_axes.clear()  # the memory is allocated for blocks of this length
    return _Form(f"{NAME}_{word}", held.condition, printer.lines), held.scratch


def _template(
    names: list[str], frame: KernelFrame, helpers: Sequence[str], held: _Form | None
) -> str:
    """The text of a function with the parameters ``names``, which chooses between two where there are two."""
    parameters = [*names, *(f"{name}: tl.constexpr" for name in frame.constants)]
    if held is None:
        return "\n".join([*helpers, definition(parameters, frame.printer.lines)])
    arguments = ", ".join([*names, *frame.constants])
    choice = [
        f"    if {held.condition}:",
        f"        {held.name}({POSITIONS}{arguments})",
        "    else:",
        f"        {LOOPED}({POSITIONS}{arguments})",
    ]
    forms = ((held.name, held.lines), (LOOPED, frame.printer.lines), (NAME, choice))
    return "\n\n".join(definition(parameters, lines, name) for name, lines in forms)


def stores_half(kernel: Kernel, dtype_of: Callable[[str], torch.dtype]) -> bool:
    """Whether all floats that the kernel stores have 16 bits."""
    floats = {dtype_of(n) for n in kernel.writes if dtype_of(n).is_floating_point}
    return bool(floats) and floats <= set(STORAGE_ONLY)


def _bounds(kernel: Kernel, sizes: Sizes) -> list[Bound]:
    """The bounds of all indices of ``kernel``."""
    counts = [extent(kernel.outer), *(extent(stage.inner) for stage in kernel.stages)]
    counts += [extent(kernel.outer) * buffer.size for buffer in kernel.local_buffers]
    found = bounds_of((*counts, *kernel.free_sizes), sizes)
    for body in kernel.bodies:
        found += body_bounds(body, sizes)
    return found


def _grid_bounds(frame: KernelFrame) -> list[Bound]:
    """What keeps the rows of tiles few enough for a grid's second axis, in calls of narrow indices."""
    last, sizes = frame.kernel.outer[-1].size, frame.printer.tile.sizes
    per_row = INT32_SAFE // GRID_LIMIT + 1
    varying = [bound for bound in bounds_of([last], sizes) if bound.keys() - {()}]
    return [{key: times * per_row for key, times in bound.items()} for bound in varying]


def _is_transposed(frame: KernelFrame) -> bool:
    """Whether tiles pay, and are right in all calls: wide indices are for any sizes."""
    varies = bool(frame.kernel.outer) and not frame.kernel.outer[-1].size.is_Integer
    return transposed_loop(frame.called) is not None and not (varies and frame.printer.wide)


def _print_pointwise(
    frame: KernelFrame, tile: int
) -> tuple[tuple[sympy.Expr, ...], tuple[int, ...], int]:
    kernel, printer = frame.kernel, frame.printer
    turned = transposed_loop(frame.called) if _is_transposed(frame) else None
    if turned is None:
        buffers = dict.fromkeys((*kernel.reads, *kernel.writes))
        largest = max(printer.dtype_of(name).itemsize for name in buffers)
        count, called = extent(kernel.outer), extent(frame.called.outer)
        block, warps = pointwise_block(called, largest, not count.is_Integer)
        block = max(block, min(tile, power_of_two(static(called))))
        print_axis(frame, "x", 0, kernel.outer, block, "")
        counts: tuple[sympy.Expr, ...] = (count,)
        blocks: tuple[int, ...] = (block,)
    else:
        row = (kernel.outer[-1],)
        others = kernel.outer[:-1]
        # the loop along which loads are contiguous varies fastest along y
        columns = (*others[:turned], *others[turned + 1 :], others[turned])
        printer.tile.axes, printer.tile.shape = ("y", "x"), "[YBLOCK, XBLOCK]"
        printer.tile.unit = "[1, 1]"
        is_large = static(extent(frame.called.outer)) >= BUSY_TILES * frame.gpu.many_tiles * TILE**2
        side = TILE if is_large else TILE // 2
        printer.tile.masks = {"y": "ymask", "x": "xmask"}
        warps = 8 if side == TILE else 4
        across = side
        if side == TILE and all(printer.dtype_of(name).itemsize == 1 for name in kernel.writes):
            across, warps = 2 * TILE, 4
        print_axis(frame, "y", 0, columns, side, "[:, None]")
        print_axis(frame, "x", 1, row, across, "[None, :]")
        counts, blocks = (extent(columns), extent(row)), (side, across)
    for stage in kernel.stages:
        if stage.is_sequential:
            print_sequential_stage(printer, stage)
        else:
            printer.replay(stage.body)
    return counts, blocks, warps
