"""Prints a matrix product with the loops that read it as one Triton function.

A program computes a tile: it adds up products of blocks of both matrices in float32, rounds the sums as the
library does, and applies the loops' body to them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from weft_loop_ir import Buffer, BufferView

from weft_codegen_triton.kernel.body_printer import BodyPrinter, Text, Tile
from weft_codegen_triton.kernel.dtypes import pointer_type, triton_dtype
from weft_codegen_triton.kernel.kernel_printer import (
    PLACEHOLDER,
    Function,
    PrintedKernel,
    stores_half,
)
from weft_codegen_triton.products.find_products import ProductKernel


@dataclass(frozen=True)
class TileShape:
    """Rows and columns of a tile, elements of a step along what is added up, warps, steps in flight."""

    rows: int
    columns: int
    step: int
    warps: int
    stages: int

    def shared_bytes(self, dtype: torch.dtype) -> int:
        """What the blocks of both matrices take that are in flight."""
        return (self.rows + self.columns) * self.step * self.stages * dtype.itemsize


TILES = (
    TileShape(128, 128, 64, 8, 3),
    TileShape(64, 64, 64, 4, 4),
    TileShape(128, 256, 64, 8, 3),
    TileShape(256, 128, 64, 8, 3),
    TileShape(128, 64, 64, 4, 4),
    TileShape(64, 128, 64, 4, 4),
    TileShape(128, 128, 32, 4, 4),
    TileShape(32, 64, 64, 4, 5),
    TileShape(16, 64, 64, 4, 5),
)
"""What is timed."""
SHARED_BYTES = 200 << 10
ROWS_OF_TILES = 8
"""Tiles that follow each other down a column, so that neighbours in time read the same blocks."""
WHOLE = 256
"""A multiple of every tile's sides."""


def print_product(product: ProductKernel, buffers: Mapping[str, Buffer]) -> PrintedKernel:
    """The function of ``product``, for the tile that suits its size; others are its alternatives."""
    names = tuple(dict.fromkeys((*product.reads, *product.writes)))
    written = set(product.writes)
    pointers = {n: f"{'out' if n in written else 'in'}{k}_ptr" for k, n in enumerate(names)}
    rows, columns = buffers[product.result].layout.size
    dtype = buffers[product.result].layout.dtype
    lines = _print_sums(product, pointers, int(rows), int(columns), dtype)
    printer = _body_printer(product, pointers, buffers, int(rows), int(columns))
    product.stages[0].body.replay(printer)
    parameters = [(pointers[n], pointer_type(buffers[n].layout.dtype)) for n in names]
    parameters += [(name, "i64") for name in printer.scalars.values()]
    blocks = ("XBLOCK", "YBLOCK", "KBLOCK")
    arguments = [*(name for name, _ in parameters), *(f"{b}: tl.constexpr" for b in blocks)]
    template = "\n".join(
        ["@triton.jit", f"def {PLACEHOLDER}({', '.join(arguments)}):", *lines, *printer.lines, ""]
    )
    tiles = [t for t in TILES if t.shared_bytes(dtype) <= SHARED_BYTES]
    is_large = rows * columns >= 128 * 128 * 64
    tiles.sort(key=lambda t: t is not TILES[0 if is_large else 1])
    functions = [
        Function(
            template,
            tuple(parameters),
            (("XBLOCK", tile.columns), ("YBLOCK", tile.rows), ("KBLOCK", tile.step)),
            tile.warps,
            printer.uses_assert,
            ("XBLOCK", "YBLOCK"),
            ("KBLOCK",),
            True,
            stages=tile.stages,
        )
        for tile in tiles
    ]
    return PrintedKernel(
        replace(functions[0], alternatives=tuple(functions[1:])),
        names,
        (),
        (),
        tuple(printer.scalars),
        (columns, rows),
        (tiles[0].columns, tiles[0].rows),
    )


def _print_sums(
    product: ProductKernel,
    pointers: Mapping[str, str],
    rows: int,
    columns: int,
    dtype: torch.dtype,
) -> list[str]:
    """The lines that leave the tile in ``product``, and its places in ``yindex`` and ``xindex``."""
    *others, left, right = product.product.arguments
    inner = int(left.size[1])
    y = "y" if rows % WHOLE == 0 else f"y % {rows}"
    x = "x" if columns % WHOLE == 0 else f"x % {columns}"
    is_whole = all(inner % tile.step == 0 for tile in TILES)
    masks = ["", ""] if is_whole else [
        f", k[None, :] < {inner} - start, other=0.0",
        f", k[:, None] < {inner} - start, other=0.0",
    ]  # fmt: skip
    lines = [
        "columns = tl.num_programs(0)",
        "number = tl.program_id(1) * columns + tl.program_id(0)",
        f"first = number // ({ROWS_OF_TILES} * columns) * {ROWS_OF_TILES}",
        f"members = tl.minimum(tl.num_programs(1) - first, {ROWS_OF_TILES})",
        f"place = number % ({ROWS_OF_TILES} * columns)",
        "y = (first + place % members) * YBLOCK + tl.arange(0, YBLOCK)",
        "x = place // members * XBLOCK + tl.arange(0, XBLOCK)",
        "k = tl.arange(0, KBLOCK)",
        f"left = {_place(left, pointers, f'({y})[:, None]', 'k[None, :]')}",
        f"right = {_place(right, pointers, 'k[:, None]', f'({x})[None, :]')}",
        "sums = tl.zeros([YBLOCK, XBLOCK], dtype=tl.float32)",
        f"for start in range(0, {inner}, KBLOCK):",
        f"    a = tl.load(left + start * {left.stride[1]}{masks[0]})",
        f"    b = tl.load(right + start * {right.stride[0]}{masks[1]})",
        '    sums = tl.dot(a, b, sums, input_precision="ieee")',
        "yindex, xindex = y[:, None], x[None, :]",
        f"ymask, xmask = yindex < {rows}, xindex < {columns}",
    ]
    for row in others:
        address = f"{pointers[row.buffer]} + {row.offset} + xindex * {row.stride[0]}"
        lines.append(f"sums += tl.load({address}, xmask).to(tl.float32)")
    lines.append(f"product = sums.to({triton_dtype(dtype)})")
    return ["    " + line for line in lines]


def _place(view: BufferView, pointers: Mapping[str, str], row: str, column: str) -> str:
    first, second = view.stride
    return f"{pointers[view.buffer]} + {view.offset} + {row} * {first} + {column} * {second}"


def _body_printer(
    product: ProductKernel,
    pointers: Mapping[str, str],
    buffers: Mapping[str, Buffer],
    rows: int,
    columns: int,
) -> BodyPrinter:
    """A printer for the loops' body, whose loops are told by the tile's places."""
    sizes = {loop.symbol: loop.size for loop in product.outer}
    tile = Tile(("y", "x"), "[YBLOCK, XBLOCK]", "[1, 1]", sizes=sizes)
    tile.masks = {"y": "ymask", "x": "xmask"}

    def dtype_of(name: str) -> torch.dtype:
        return buffers[name].layout.dtype

    printer = BodyPrinter(tile, pointers, dtype_of, frozenset((product.result,)), wide=False)
    printer.for_half = stores_half(product, dtype_of)
    _print_loops(product, printer, rows, columns)
    (index,) = {
        i.arguments[1]
        for i in product.stages[0].body.instructions
        if i.operation == "load" and i.arguments[0] == product.result
    }
    value = Text("product", dtype_of(product.result), frozenset(("y", "x")))
    printer.local[product.result, printer.index(index)[0]] = value
    return printer


def _print_loops(product: ProductKernel, printer: BodyPrinter, rows: int, columns: int) -> None:
    """The loops' variables, of rows or columns alone where a loop is within one of them."""
    step = 1
    for loop in product.outer:
        if loop.size == 1:
            printer.tile.names[loop.symbol] = "0"
            printer.tile.symbol_axes[loop.symbol] = frozenset()
    for loop in reversed(product.digits):
        size = int(loop.size)
        if columns % (step * size) == 0:
            place, inside, extent, axes = "xindex", step, columns, frozenset(("x",))
        elif step % columns == 0:
            place, inside, extent = "yindex", step // columns, rows
            axes = frozenset(("y",))
        else:
            place, inside, extent = f"(yindex * {columns} + xindex)", step, rows * columns
            axes = frozenset(("y", "x"))
        code = place if inside == 1 else f"{place} // {inside}"
        if inside * size != extent:
            code += f" % {size}"
        name = loop.symbol.name
        printer.emit(f"{name} = {code}")
        printer.tile.names[loop.symbol] = name
        printer.tile.symbol_axes[loop.symbol] = axes
        step *= size
