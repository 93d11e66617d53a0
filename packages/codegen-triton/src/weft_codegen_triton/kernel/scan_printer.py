"""Prints a scan: a program scans a block of one or several rows at once, and goes on with what that gives.

The combination becomes a function of its own, which Triton combines elements with in any grouping.  What is
computed of memory before, and of the results after, is printed for all elements of a block.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sympy
import torch
from weft_loop_ir import COMBINED, LEFT, RIGHT, Combination, Kernel, print_index

from weft_codegen_triton.kernel.blocks import (
    MOST_BLOCK_SCALE,
    accesses,
    extent,
    power_of_two,
    static,
)
from weft_codegen_triton.kernel.body_printer import NO_AXES, BodyPrinter, Text, Tile
from weft_codegen_triton.kernel.dtypes import literal, triton_dtype
from weft_codegen_triton.kernel.expressions import INDEX, loop_bound, steps_by_one
from weft_codegen_triton.kernel.frame import KernelFrame, print_axis

ELEMENTS = 1024
"""Of a program's block where there are many rows."""
MANY_ROWS = 2048
"""Rows of which a GPU runs enough at once for blocks of :data:`ELEMENTS` to hide what each waits for."""
ELEMENTS_OF_FEW = 2048
DEAR_ELEMENTS = 256
"""Of combinations with many instructions, which are repeated for each step of a block's scan."""
SEGMENT_BYTES = 64
"""Side by side that a program reads of each row across, at least: two sectors of memory."""
MANY_SEGMENTS = 1024
"""Programs from which on each reads twice as much side by side."""
DEAR = frozenset("exp exp2 expm1 log log2 log10 log1p sin cos tan tanh pow truediv sigmoid".split())
ELEMENTS_PER_WARP = 256


@dataclass(frozen=True)
class ScanBlocks:
    """``rows`` and ``columns`` of a block; ``is_whole``: no row is longer than one."""

    rows: int
    columns: int
    is_whole: bool
    warps: int


def scan_blocks(kernel: Kernel, largest_item: int) -> ScanBlocks:
    """The block of a scan whose widest element has ``largest_item`` bytes."""
    (stage,) = kernel.stages
    (loop,) = stage.inner
    rows, length = static(extent(kernel.outer)), static(loop.size)
    indices = list(accesses(stage.body))
    is_across = bool(kernel.outer) and any(
        steps_by_one(e, kernel.outer[-1].symbol) and loop.symbol in e.free_symbols for e in indices
    )
    elements = ELEMENTS if rows >= MANY_ROWS else ELEMENTS_OF_FEW
    if is_across:
        elements = ELEMENTS_OF_FEW
    if _is_dear(_combination(kernel)):
        elements = DEAR_ELEMENTS
    whole = power_of_two(length)
    if is_across:
        block = max(4, SEGMENT_BYTES // largest_item)
        if rows // (2 * block) >= MANY_SEGMENTS:
            block *= 2
        block = min(block, power_of_two(rows))
    else:
        block = max(1, min(elements // min(whole, elements), power_of_two(rows) // 512))
    columns = min(whole, max(1, elements // block))
    is_whole = loop.size.is_Integer and whole <= columns
    per_warp = 2 * ELEMENTS_PER_WARP if is_across else ELEMENTS_PER_WARP
    return ScanBlocks(block, columns, is_whole, max(1, min(8, block * columns // per_warp)))


def _combination(kernel: Kernel) -> Combination:
    """The combination that the kernel scans by."""
    found = {
        i.arguments[0]
        for i in kernel.stages[0].body.instructions
        if i.operation in ("scan", "fold")
    }
    (combination,) = found
    assert isinstance(combination, Combination)
    return combination


def _is_dear(combination: Combination) -> bool:
    return any(i.operation in DEAR for i in combination.body.instructions)


def print_scan(
    frame: KernelFrame, name: str
) -> tuple[list[str], tuple[sympy.Expr, ...], tuple[int, ...], int]:
    """Print the kernel; the lines of the function called ``name`` before it, the grid, and warps."""
    kernel, printer = frame.kernel, frame.printer
    combination = _combination(kernel)
    items = [printer.dtype_of(n).itemsize for n in (*kernel.reads, *kernel.writes)]
    blocks = scan_blocks(kernel, max(items))
    tile = printer.tile
    tile.unit, tile.masks = "[1, 1]", {"x": "xmask"}
    print_axis(frame, "x", 0, kernel.outer, blocks.rows, "[:, None]")
    frame.constants["RBLOCK"] = blocks.columns
    _ScanPrinter(frame, combination, name, blocks.is_whole).print()
    lines = _CombinePrinter(combination, printer).function(name)
    return lines, (extent(kernel.outer),), (blocks.rows,), blocks.warps


class _ScanPrinter:
    """Prints the loop over the blocks of rows, or the one block."""

    def __init__(
        self, frame: KernelFrame, combination: Combination, name: str, is_whole: bool
    ) -> None:
        self.frame = frame
        self.printer = frame.printer
        (self.stage,) = frame.kernel.stages
        (self.loop,) = self.stage.inner
        self.combination = combination
        self.name = name
        self.is_whole = is_whole
        self.numbers = range(len(combination.dtypes))
        self.results: dict[tuple[str, ...], list[Text]] = {}
        self.folds: list[tuple[str, sympy.Expr, int]] = []
        self.length = print_index(self.loop.size, INDEX)
        self.begin = "0" if is_whole else "roffset"

    def print(self) -> None:
        printer = self.printer
        printer.scanner = self._scanned
        printer.store_result = lambda result, buffer, index: self.folds.append(
            (buffer, index, result.number)
        )
        if self.is_whole:
            self._print_block()
        else:
            self.frame.loop_axes.append("r")
            for k in self.numbers:
                dtype = triton_dtype(self.combination.dtypes[k])
                printer.emit(f"running{k} = tl.full([XBLOCK, 1], 0, {dtype})")
            head = f"for roffset in range(0, {loop_bound(self.length)}, RBLOCK):"
            with printer.loop(head):
                self._print_block()
        printer.tile.axes, printer.tile.shape = ("x",), "[XBLOCK, 1]"
        for buffer, index, number in self.folds:
            value = Text(f"running{number}", self.combination.dtypes[number], frozenset(("x",)))
            printer.write(buffer, index, value, None)

    def _print_block(self) -> None:
        printer, tile, loop = self.printer, self.printer.tile, self.loop
        wide = ".to(tl.int64)" if printer.wide else ""
        printer.emit(f"rindex = {self.begin} + tl.arange(0, RBLOCK)[None, :]{wide}")
        tile.axes, tile.shape = ("x", "r"), "[XBLOCK, RBLOCK]"
        scale = 1 if self.is_whole else MOST_BLOCK_SCALE
        block = self.frame.constants["RBLOCK"]
        is_full = loop.size.is_Integer and loop.size > 0 and loop.size % (scale * block) == 0
        if not is_full:
            printer.emit(f"rmask = rindex < {self.length}")
            tile.masks["r"] = "rmask"
        tile.names[loop.symbol], tile.symbol_axes[loop.symbol] = "rindex", frozenset(("r",))
        self.stage.body.replay(printer)

    def _scanned(self, values: tuple[Text, ...]) -> list[Text]:
        """The scan of the block with what precedes it, and what the next block goes on with."""
        key = tuple(value.code for value in values)
        if key in self.results:
            return self.results[key]
        printer, shape = self.printer, self.printer.tile.shape
        for k, value in enumerate(values):
            printer.emit(f"element{k} = tl.broadcast_to({value.code}, {shape})")
        results = self._names("result")
        elements = self._names("element")
        tuple_ = elements if len(values) == 1 else f"({elements})"
        printer.emit(f"{results} = tl.associative_scan({tuple_}, 1, {self.name})")
        if not self.is_whole or any(i.operation == "fold" for i in self.stage.body.instructions):
            self._print_totals()
        axes = frozenset(printer.tile.axes)
        dtypes = self.combination.dtypes
        made = self.results[key] = [Text(f"result{k}", dtypes[k], axes) for k in self.numbers]
        return made

    def _names(self, prefix: str) -> str:
        return ", ".join(f"{prefix}{k}" for k in self.numbers)

    def _print_totals(self) -> None:
        """Print the block's last values, and unless rows are whole, how they and results follow on others."""
        emit, shape = self.printer.emit, self.printer.tile.shape
        end = self.length if self.is_whole else f"tl.minimum(roffset + RBLOCK, {self.length})"
        emit(f"is_last = rindex == {end} - 1")
        total = "running" if self.is_whole else "total"
        for k, dtype in enumerate(self.combination.dtypes):
            held, restored = _HELD.get(dtype, ("{}", f"{{}}.to({triton_dtype(dtype)})"))
            picked = f"tl.sum(tl.where(is_last, {held.format(f'result{k}')}, 0), 1)[:, None]"
            emit(f"{total}{k} = {restored.format(picked)}")
        if self.is_whole:
            return
        before = ", ".join(f"tl.broadcast_to(running{k}, {shape})" for k in self.numbers)
        emit(f"{self._names('joined')} = {self.name}({before}, {self._names('result')})")
        for k in self.numbers:
            emit(f"result{k} = tl.where(roffset > 0, joined{k}, result{k})")
        emit(
            f"{self._names('joined')} = "
            f"{self.name}({self._names('running')}, {self._names('total')})"
        )
        for k in self.numbers:
            emit(f"running{k} = tl.where(roffset > 0, joined{k}, total{k})")


_HELD = {
    torch.bool: ("{}.to(tl.int32)", "{}.to(tl.int1)"),
    torch.float32: ("{}.to(tl.int32, bitcast=True)", "{}.to(tl.float32, bitcast=True)"),
    torch.float64: ("{}.to(tl.int64, bitcast=True)", "{}.to(tl.float64, bitcast=True)"),
}
"""As what a value is picked out of a block by a sum with zeros, and back: bits, for a zero has a sign."""


class _CombinePrinter(BodyPrinter):
    """Prints a combination as a function of left and right values."""

    def __init__(self, combination: Combination, printer: BodyPrinter) -> None:
        dtypes = {
            f"{side}{k}": dtype
            for side in (LEFT, RIGHT)
            for k, dtype in enumerate(combination.dtypes)
        }
        super().__init__(
            Tile(("x",), "[]", "[]"), {}, dtypes.__getitem__, frozenset(), printer.wide
        )
        self.combination = combination
        self.results: dict[str, Text] = {}

    def load(self, buffer: str, index: sympy.Expr) -> Text:
        return Text(buffer, self.dtype_of(buffer), NO_AXES)

    def store(self, buffer: str, index: sympy.Expr, value: Any, mode: str | None = None) -> None:
        self.results[buffer] = value

    def constant(self, value: bool | int | float, dtype: torch.dtype) -> Text:
        code = f"tl.full([], {literal(value)}, {triton_dtype(dtype)})"
        return self.name(code, dtype, NO_AXES)

    def function(self, name: str) -> list[str]:
        """The function's lines."""
        self.combination.body.replay(self)
        numbers = range(len(self.combination.dtypes))
        parameters = [f"{side}{k}" for side in (LEFT, RIGHT) for k in numbers]
        results = ", ".join(self.results[f"{COMBINED}{k}"].code for k in numbers)
        head = ["@triton.jit", f"def {name}({', '.join(parameters)}):"]
        return [*head, *self.lines, f"    return {results}", "", ""]
