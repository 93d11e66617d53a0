"""Which contractions run in a kernel of ours without being timed: kinds of which all gained where they were.

A rule names a kind of contraction whose result loops read, or an operand of which loops make, so that one
kernel saves a launch and what would be stored between: convolutions of 1 x 1, those of each channel, matmuls
of few rows, weights of 8 bits.  Large matmuls gained as often as they lost, so they are the library's unless
they are timed.  Matmuls of one row by columns that lie in memory one after another gain alone too (see
:data:`.tiles.ROW_TILES`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import sympy
import torch
from weft_loop_ir.contractions import BATCH, COLUMN, INNER, ROW, Contraction

from weft_codegen_triton.gpu import CACHED_PART, GRAPH_LAUNCH, LOAD_WAIT, Gpu
from weft_codegen_triton.matmuls.find_matmuls import MatmulKernel
from weft_codegen_triton.matmuls.producers import is_row_by_columns
from weft_codegen_triton.matmuls.tiles import FEW_ROWS, SMALL, squares

SLOWDOWN = 1.2
"""Of kernels of ours for what they are predicted to take, where rows are reduced."""
WAITS_OF_REDUCTION = 5
"""How often programs that reduce rows which are in memory wait for what they load, of few rows too."""
ADDED_AT_ONCE = 2
"""Terms in the time in which one is chosen and added, where the threads of a tile of its own add them up."""
MAX_PARTS = 8
"""Partial results of a column, for each multiprocessor: what joins them goes through all."""
MIN_STEP = 16
"""Of a sum's length it must be a multiple, where tiles follow each other: their loads begin before."""
HALVES = (torch.float16, torch.bfloat16)
MAX_CHANNELS = 1024
"""Of the image of a convolution: with more, it is the arithmetic that takes the time."""
MAX_TAPS = 9
MIN_ELEMENTS = 1 << 20
"""Of the result of a convolution of each channel by itself."""
MAX_EXTENT = 1024
"""Of a matmul of a batch: in larger ones, it is the arithmetic that takes the time."""
UNIT = 8
"""Elements of 2 bytes that are 16 bytes."""
MAX_STEPS = 32
"""Of a program's sum where half of the device is idle; a library cuts longer ones in parts."""


def _is_convolution_of_pixels(contraction: Contraction, gpu: Gpu) -> bool:
    """A convolution of 1 x 1 over channels that lie side by side, on a device that it fills."""
    if not contraction.is_convolution or contraction.by_channel or contraction.taps != 1:
        return False
    fills = contraction.batch == 1 and squares(contraction) >= gpu.many_tiles
    return bool(fills and contraction.inner <= MAX_CHANNELS)


def _is_convolution_of_channels(contraction: Contraction, gpu: Gpu) -> bool:
    """A convolution of each channel by itself, with few taps."""
    is_small = contraction.taps <= MAX_TAPS and contraction.elements >= MIN_ELEMENTS
    return bool(contraction.by_channel and is_small)


def _has_few_rows(contraction: Contraction, gpu: Gpu) -> bool:
    """A matmul that takes as long as it takes to read the right operand."""
    if contraction.is_convolution or contraction.groups is not None:
        return False
    return bool(contraction.batch == 1 and 1 < contraction.rows <= FEW_ROWS)


def _has_unaligned_rows(contraction: Contraction, gpu: Gpu) -> bool:
    """A batch of matmuls of rows that begin anywhere, for which a library has slow kernels.

    Those without a batch are padded where that pays (:mod:`~weft_codegen_triton.rewriting.aligned_matmuls`).
    """
    if contraction.is_convolution or contraction.groups is not None or contraction.batch == 1:
        return False
    indices = (contraction.left.index, contraction.right.index, contraction.position)
    is_unaligned = any(_begins_anywhere(index) for index in indices)
    extents = contraction.rows, contraction.columns, contraction.inner
    is_medium = all(SMALL.rows < n <= MAX_EXTENT for n in extents)
    return bool(is_unaligned and is_medium and squares(contraction) >= gpu.many_tiles)


def _begins_anywhere(index: sympy.Expr) -> bool:
    """Whether one of the rows that an operand or result lies in begins at no multiple of 16 bytes."""
    expanded = sympy.expand(index)
    steps = [expanded.coeff(symbol) for symbol in (BATCH, ROW, COLUMN, INNER)]
    return any(step not in (0, 1) and step % UNIT != 0 for step in steps)


RULES: tuple[Callable[[Contraction, Gpu], bool], ...] = (
    _is_convolution_of_pixels,
    _is_convolution_of_channels,
    _has_few_rows,
    _has_unaligned_rows,
)


def _is_long(form: MatmulKernel) -> bool:
    """Whether few programs each add up more than :data:`MAX_STEPS` steps."""
    contraction, tile = form.contraction, form.tile
    tiles = -(-contraction.rows // tile.rows) * -(-contraction.columns // tile.columns)
    has_steps = contraction.inner * contraction.taps > MAX_STEPS * tile.step
    return bool(has_steps and 2 * contraction.batch * tiles < form.gpu.multiprocessors)


def _gains_by_reducing(form: MatmulKernel) -> bool:
    """Whether rows are reduced faster where they are made, than what a library makes by a kernel more.

    A library is taken to read and write what it must.  Tiles that follow each other have their loads begin
    before only where a sum is one step.  What it takes and leaves was measured: docs/decisions/gpu.md.
    """
    contraction, gpu, tile = form.contraction, form.gpu, form.tile
    if _has_few_rows(contraction, gpu):
        return True
    if contraction.by_channel or contraction.taps != 1:
        return False
    rows, columns, inner = (
        int(n) for n in (contraction.rows, contraction.columns, contraction.inner)
    )
    if rows // form.rows_of_program > MAX_PARTS * gpu.multiprocessors:
        return False
    is_one_step = inner <= tile.step or columns <= tile.columns
    if form.repeats > 1 and (inner % MIN_STEP != 0 or not is_one_step):
        return False
    itemsize = contraction.dtype.itemsize
    operands, result = itemsize * inner * (rows + columns), itemsize * rows * columns
    tiles = -(-rows // tile.rows) * -(-columns // tile.columns)
    blocks = tiles * (tile.rows + tile.columns) * inner * itemsize
    stored = 0 if form.call.outputs[0] in form.dropped else result
    own = SLOWDOWN * max(gpu.moving(operands + stored), gpu.moving(blocks, CACHED_PART))
    if form.repeats == 1:
        own += gpu.adding(rows * columns) / ADDED_AT_ONCE
    apart = GRAPH_LAUNCH + WAITS_OF_REDUCTION * LOAD_WAIT + gpu.moving(result)
    return own <= gpu.moving(operands + result) + apart


def choose_untimed(forms: Sequence[MatmulKernel]) -> MatmulKernel | None:
    """The first of ``forms`` that a rule holds for; one asks that it do more than the library.

    Those that reduce rows have a rule of their own.
    """
    contraction = forms[0].contraction
    if contraction.dtype not in HALVES or not contraction.is_static:
        return None
    reducing = (form for form in forms if form.reductions and not _is_long(form))
    found = next(filter(_gains_by_reducing, reducing), None)
    if found is not None:
        return found
    form = next(form for form in forms if not form.reductions)
    if _is_long(form):
        return None
    if is_row_by_columns(contraction):
        return form
    if len(form.replaces) < 2:
        return None
    return form if any(rule(contraction, form.gpu) for rule in RULES) else None
