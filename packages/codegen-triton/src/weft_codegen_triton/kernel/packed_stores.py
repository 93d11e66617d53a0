"""Pointwise kernels that store 8 bits an element crosswise: four elements in a word.

A tile's elements change their owners on the way to such a store, and bytes are slow to exchange: each thread
makes four neighbours along the store, one after another, and words change owners.
"""

from __future__ import annotations

from collections.abc import Sequence

import sympy
import torch
from weft_loop_ir import Kernel, LoopVariable
from weft_loop_ir.bodies import Store
from weft_loop_ir.ops import FLOAT8

from weft_codegen_triton.kernel.blocks import extent
from weft_codegen_triton.kernel.frame import KernelFrame, print_axis

PARTS = 4
WORDS, COLUMNS, WARPS = 32, 64, 4
"""Words along the store and elements across, of a tile where there is much to do.

Of seven tiles on an H200: 8192 x 8192 numbers of 16 bits rounded to 8, by rows and by columns, take 74 µs,
byte by byte 110; others up to 84.
"""
FEW_WORDS, FEW_COLUMNS = 8, 32


def stores_in_words(kernel: Kernel, turned: int, frame: KernelFrame) -> tuple[Store, ...]:
    """The stores along the outer loop ``turned``, if all can be of words: of 8 bits, to memory of ours."""
    (stage,) = kernel.stages
    loop, body = kernel.outer[turned], stage.body
    others = [v.symbol for v in kernel.outer if v is not loop]
    along = [a for a in body.accesses() if sympy.expand(a.index).coeff(loop.symbol) == 1]
    is_static = all(v.size.is_Integer for v in kernel.outer)
    if not is_static or int(loop.size) % PARTS or stage.is_sequential:
        return ()
    found = [a for a in along if isinstance(a, Store) and a.mode is None]
    if len(found) != len(along) or any(s not in body.instructions for s in found):
        return ()
    for store in found:
        index = sympy.expand(store.index)
        rest = index.xreplace(dict.fromkeys((loop.symbol, *others), sympy.S.Zero))
        steps = (rest, *map(index.coeff, others))
        is_own = store.buffer not in frame.given and len(body.stores(store.buffer)) == 1
        is_narrow = frame.printer.dtype_of(store.buffer) in (torch.uint8, *FLOAT8)
        if not (is_own and is_narrow and all(k.is_Integer and k % PARTS == 0 for k in steps)):
            return ()
    return tuple(found)


def print_in_words(
    frame: KernelFrame, turned: int, stores: Sequence[Store], *, is_large: bool
) -> tuple[tuple[sympy.Expr, ...], tuple[int, ...], int]:
    """Print a kernel of one stage whose ``stores`` along the loop ``turned`` are of words."""
    kernel, printer = frame.kernel, frame.printer
    loop, row = kernel.outer[turned], kernel.outer[-1:]
    group = LoopVariable(sympy.Symbol(f"{loop.symbol.name}_group", integer=True), loop.size / PARTS)
    columns = (*kernel.outer[:turned], *kernel.outer[turned + 1 : -1], group)
    blocks = (WORDS, COLUMNS) if is_large else (FEW_WORDS, FEW_COLUMNS)
    print_axis(frame, "y", 0, columns, blocks[0], "[:, None]")
    print_axis(frame, "x", 1, row, blocks[1], "[None, :]")
    names = {store.buffer: f"words{k}" for k, store in enumerate(stores)}
    for name in names.values():
        printer.emit(f"{name} = tl.zeros([YBLOCK, XBLOCK], dtype=tl.uint32)")
    printer.words = names
    with printer.loop(f"for part in tl.static_range({PARTS}):"):
        name = loop.symbol.name
        printer.emit(f"{name} = {PARTS} * {printer.tile.names[group.symbol]} + part")
        printer.tile.names[loop.symbol] = name
        printer.tile.symbol_axes[loop.symbol] = frozenset("y")
        printer.replay(kernel.stages[0].body)
    for store in stores:
        place = sympy.expand(store.index.xreplace({loop.symbol: PARTS * group.symbol}) / PARTS)
        pointer = f"{printer.pointers[store.buffer]}.to(tl.pointer_type(tl.uint32))"
        mask = printer.access_mask(frozenset(printer.tile.axes))
        address = f"{pointer} + {printer.index(place)[0]}"
        printer.emit(f"tl.store({address}, {names[store.buffer]}{', ' if mask else ''}{mask})")
    return (extent(columns), extent(row)), blocks, WARPS
