"""Which contractions run in a kernel of ours without being timed: kinds of which all gained where they were.

A rule names a kind of contraction whose result loops read, or an operand of which loops make, so that one
kernel saves a launch and what would be stored between.  Measured on an H200 in float16, beside the library
and the loops apart: convolutions of 1 x 1 at 64 images 1.06 to 1.62 times as fast, those of each channel
with 3 x 3 taps 1.34, matmuls of 4 and 16 rows 1.11 to 1.48, with weights of 8 bits 1.96.  Large matmuls
gained as often as they lost (0.77 to 1.39), so they are the library's unless they are timed.  Matmuls of one
row by columns that lie in memory one after another gain alone too (see :data:`.tiles.ROW_TILES`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from weft_loop_ir.contractions import Contraction

from weft_codegen_triton.gpu import Gpu
from weft_codegen_triton.matmuls.find_matmuls import MatmulKernel
from weft_codegen_triton.matmuls.producers import is_row_by_columns
from weft_codegen_triton.matmuls.tiles import FEW_ROWS, squares

HALVES = (torch.float16, torch.bfloat16)
MAX_CHANNELS = 1024
"""Of the image of a convolution: with more, it is the arithmetic that takes the time."""
MAX_TAPS = 9
MIN_ELEMENTS = 1 << 20
"""Of the result of a convolution of each channel by itself."""
MAX_STEPS = 32
"""Of a program's sum where half of the device is idle; a library cuts longer ones in parts.

4 x 4 results of 2458624 terms each took 11 ms on an H200, 19208 steps of 128 one after another, a library's
parts 0.06.
"""


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


RULES: tuple[Callable[[Contraction, Gpu], bool], ...] = (
    _is_convolution_of_pixels,
    _is_convolution_of_channels,
    _has_few_rows,
)


def _is_long(form: MatmulKernel) -> bool:
    """Whether few programs each add up more than :data:`MAX_STEPS` steps."""
    contraction, tile = form.contraction, form.tile
    tiles = -(-contraction.rows // tile.rows) * -(-contraction.columns // tile.columns)
    has_steps = contraction.inner * contraction.taps > MAX_STEPS * tile.step
    return bool(has_steps and 2 * contraction.batch * tiles < form.gpu.multiprocessors)


def _gains_by_reducing(form: MatmulKernel) -> bool:
    """Whether it is faster to reduce rows where they are made, by few of them: a launch less."""
    return _has_few_rows(form.contraction, form.gpu)


def choose_untimed(forms: Sequence[MatmulKernel]) -> MatmulKernel | None:
    """The first of ``forms``, if a rule holds for it, one of which asks that it do more than the library.

    Those that reduce rows have rules of their own.
    """
    contraction = forms[0].contraction
    if contraction.dtype not in HALVES or not contraction.is_static:
        return None
    for form in forms:
        if form.reductions and not _gains_by_reducing(form):
            continue
        return form if _is_chosen(form) else None
    return None


def _is_chosen(form: MatmulKernel) -> bool:
    contraction = form.contraction
    if _is_long(form):
        return False
    if is_row_by_columns(contraction):
        return True
    return len(form.replaces) > 1 and any(rule(contraction, form.gpu) for rule in RULES)
