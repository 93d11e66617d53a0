"""Prints a scan: a program scans a block of one or several rows at once, and goes on with what that gives.

The combine function becomes a Triton function, by which elements are combined in any grouping.  What is
computed of memory before, and of the results after, is printed for all elements of a block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import sympy
import torch
from weft_loop_ir import COMBINED, LEFT, RIGHT, CombineFunction, Kernel, LoopBody
from weft_loop_ir.bodies import Combining, Fold, Indirect, Masked

from weft_codegen_triton.gpu import Gpu
from weft_codegen_triton.kernel.blocks import (
    MAX_BLOCK_SCALE,
    accesses,
    extent,
    power_of_two,
    static,
)
from weft_codegen_triton.kernel.body_printer import NO_AXES, BodyPrinter, Text, Tile
from weft_codegen_triton.kernel.dtypes import literal, loop_bound, steps_by_one, triton_dtype
from weft_codegen_triton.kernel.frame import KernelFrame, print_axis

ELEMENTS = 1024
"""Of a program's block where there are many rows."""
MANY_ROWS = 16
"""Rows for each multiprocessor, enough at once for blocks of :data:`ELEMENTS` to hide what each waits for."""
ELEMENTS_OF_FEW = 2048
COSTLY_ELEMENTS = 256
"""Of combine functions with many instructions, which are repeated for each step of a block's scan."""
MIN_VARYING_COLUMNS = 16
"""Elements of a row of any length in a block, at least."""
SEGMENT_BYTES = 64
"""Side by side that a program reads of each row across, at least: two sectors of memory."""
MANY_SEGMENTS, AHEAD_SEGMENTS = 8, 2
"""Programs for each multiprocessor from which on each reads twice as much side by side; if it loads ahead."""
UNROLLED = 8
"""Elements of a column that a thread combines by itself, so that threads exchange the last ones alone."""
UNROLLED_ELEMENTS = 4096
UNROLLED_BYTES = 1 << 15
"""Of all elements that a program has loaded at once, at most: 256 a thread, half of the registers."""
AHEAD = 128
"""Elements of columns in a block where the next block is loaded before this one is scanned."""
ELEMENTS_PER_WARP = 256


@dataclass(frozen=True)
class ScanBlocks:
    """``rows`` and ``columns`` of a block; ``is_whole``: no row is longer than one.

    A thread combines ``unrolled`` neighbouring elements of a row by itself.  ``loads_ahead``: the next block
    is loaded while one is scanned.
    """

    rows: int
    columns: int
    is_whole: bool
    warps: int
    unrolled: int = 1
    loads_ahead: bool = False


def scan_blocks(kernel: Kernel, items: Sequence[int], gpu: Gpu) -> ScanBlocks:
    """The block of a scan of elements of as many bytes as in ``items``, by buffer."""
    (stage,) = kernel.stages
    (loop,) = stage.inner
    rows, length = static(extent(kernel.outer)), static(loop.size)
    indices = list(accesses(stage.body))
    is_across = bool(kernel.outer) and any(
        steps_by_one(e, kernel.outer[-1].symbol) and loop.symbol in e.free_symbols for e in indices
    )
    if is_across:
        is_along = any(steps_by_one(e, loop.symbol) for e in indices)
        return _blocks_across(kernel, items, rows, length, gpu, may_unroll=not is_along)
    elements = ELEMENTS if rows >= MANY_ROWS * gpu.many_tiles else ELEMENTS_OF_FEW
    if combine_function_of(kernel).is_costly:
        elements = COSTLY_ELEMENTS
    whole = power_of_two(length)
    block = max(1, min(elements // min(whole, elements), power_of_two(rows) // 512))
    columns = min(whole, max(1, elements // block))
    warps = max(1, min(8, block * columns // ELEMENTS_PER_WARP))
    return ScanBlocks(block, columns, loop.size.is_Integer and whole <= columns, warps)


def _blocks_across(
    kernel: Kernel, items: Sequence[int], rows: int, length: int, gpu: Gpu, *, may_unroll: bool
) -> ScanBlocks:
    """The block where neighbouring rows lie side by side in some memory, all if it ``may_unroll``."""
    (stage,) = kernel.stages
    block = max(4, SEGMENT_BYTES // max(items))
    if rows // (2 * block) >= MANY_SEGMENTS * gpu.many_tiles:
        block *= 2
    block = min(block, power_of_two(rows))
    whole = power_of_two(length)
    is_static = stage.inner[0].size.is_Integer
    before = _before_scan(stage.body)
    bytes_read = sum(items[: len(kernel.reads)]) or 1
    unrolled = min(UNROLLED_ELEMENTS, power_of_two(UNROLLED_BYTES // bytes_read + 1) // 2) // block
    columns = min(whole, unrolled)
    if (
        may_unroll
        and columns >= 4 * UNROLLED
        and not stage.body.holds(Fold)
        and not before.stores()
        and not combine_function_of(kernel).is_costly
    ):
        ahead = block
        if rows // (2 * block) >= AHEAD_SEGMENTS * gpu.many_tiles:
            ahead = max(block, 2 * SEGMENT_BYTES // max(items))
        fits = 2 * bytes_read * ahead * AHEAD <= UNROLLED_BYTES
        if length > AHEAD and fits and kernel.reads and _is_plain(kernel):
            warps = max(1, min(4, ahead * AHEAD // ELEMENTS_PER_WARP))
            return ScanBlocks(ahead, AHEAD, False, warps, UNROLLED, loads_ahead=True)
        warps = max(1, min(8, block * columns // (4 * ELEMENTS_PER_WARP)))
        return ScanBlocks(block, columns, is_static and whole <= columns, warps, UNROLLED)
    is_busy = rows // block >= MANY_SEGMENTS * gpu.many_tiles
    elements = ELEMENTS_OF_FEW if is_busy else 2 * ELEMENTS_OF_FEW
    if combine_function_of(kernel).is_costly:
        elements = COSTLY_ELEMENTS
    columns = min(whole, max(1, elements // block))
    warps = max(1, min(8, block * columns // (2 * ELEMENTS_PER_WARP)))
    return ScanBlocks(block, columns, is_static and whole <= columns, warps)


def _is_plain(kernel: Kernel) -> bool:
    """Whether what is scanned is read at places that are known beforehand."""
    return not kernel.stages[0].body.holds(Indirect, Masked)


def combine_function_of(kernel: Kernel) -> CombineFunction:
    """The combine function that the kernel scans by."""
    instructions = kernel.stages[0].body.instructions
    (combine_function,) = {i.combine_function for i in instructions if isinstance(i, Combining)}
    return combine_function


def _before_scan(body: LoopBody) -> LoopBody:
    """What is computed of each element before it is scanned."""
    position = next(k for k, i in enumerate(body.instructions) if isinstance(i, Combining))
    return LoopBody(body.instructions[:position])


def print_scan(
    frame: KernelFrame, name: str
) -> tuple[list[str], tuple[sympy.Expr, ...], tuple[int, ...], int]:
    """Print the kernel; the lines of the function called ``name`` before it, the grid, and warps."""
    kernel, printer = frame.kernel, frame.printer
    combine_function = combine_function_of(kernel)
    items = [printer.dtype_of(n).itemsize for n in (*kernel.reads, *kernel.writes)]
    blocks = scan_blocks(frame.called, items, frame.gpu)
    if not kernel.stages[0].inner[0].size.is_Integer:  # rows may be longer than the first call's
        blocks = replace(blocks, is_whole=False, columns=max(blocks.columns, MIN_VARYING_COLUMNS))
    tile = printer.tile
    tile.unit, tile.masks = "[1, 1]", {"x": "xmask"}
    print_axis(frame, "x", 0, kernel.outer, blocks.rows, "[:, None]")
    frame.constants["RBLOCK"] = blocks.columns
    ScanPrinter(frame, combine_function, name, blocks).print()
    lines = print_combine_function(combine_function, printer, name)
    if blocks.unrolled > 1:
        lines += _function_of_before(combine_function, name)
    return lines, (extent(kernel.outer),), (blocks.rows,), blocks.warps


class ScanPrinter:
    """Prints the loop over the blocks of rows, or the one block."""

    def __init__(
        self, frame: KernelFrame, combine_function: CombineFunction, name: str, blocks: ScanBlocks
    ) -> None:
        self.frame = frame
        self.printer = frame.printer
        (self.stage,) = frame.kernel.stages
        (self.loop,) = self.stage.inner
        self.combine_function = combine_function
        self.name = name
        self.is_whole = blocks.is_whole
        self.unrolled = blocks.unrolled
        self.loads_ahead = blocks.loads_ahead
        self.numbers = range(len(combine_function.dtypes))
        self.results: dict[tuple[str, ...], list[Text]] = {}
        self.folds: list[tuple[str, sympy.Expr, int]] = []
        self.length = self.printer.number(self.loop.size)
        self.begin = "0" if blocks.is_whole else "roffset"

    def print(self) -> None:
        printer = self.printer
        printer.store_result = lambda result, buffer, index: self.folds.append(
            (buffer, index, result.number)
        )
        print_block = self._print_block if self.unrolled == 1 else self._print_unrolled
        if self.is_whole:
            print_block()
        else:
            self.frame.loop_axes.append("r")
            for k in self.numbers:
                dtype = triton_dtype(self.combine_function.dtypes[k])
                printer.emit(f"running{k} = tl.full([XBLOCK, 1], 0, {dtype})")
            if self.loads_ahead:
                self._print_loads("0")
            with printer.loop(f"for roffset in range(0, {loop_bound(self.length)}, RBLOCK):"):
                print_block()
        printer.tile.axes, printer.tile.shape = ("x",), "[XBLOCK, 1]"
        for buffer, index, number in self.folds:
            value = Text(
                f"running{number}", self.combine_function.dtypes[number], frozenset(("x",))
            )
            printer.write(buffer, index, value, None)

    # -- one element after another ---------------------------------------------------------------------

    def _print_block(self) -> None:
        self._enter_tile("RBLOCK")
        self._print_place("", f"{self.begin} + tl.arange(0, RBLOCK)[None, :]{self.printer.cast}")
        self._name_place("")
        self.printer.scanner = self._scanned
        self.printer.replay(self.stage.body)

    def _enter_tile(self, columns: str) -> None:
        tile = self.printer.tile
        tile.axes, tile.shape = ("x", "r"), f"[XBLOCK, {columns}]"
        tile.symbol_axes[self.loop.symbol] = frozenset(("r",))

    def _print_place(self, suffix: str, place: str) -> None:
        """Print where in its row each element of the tile is, and whether it is one."""
        self.printer.emit(f"rindex{suffix} = {place}")
        if not self._is_full():
            self.printer.emit(f"rmask{suffix} = rindex{suffix} < {self.length}")

    def _name_place(self, suffix: str) -> None:
        tile = self.printer.tile
        tile.names[self.loop.symbol] = f"rindex{suffix}"
        if not self._is_full():
            tile.masks["r"] = f"rmask{suffix}"

    def _is_full(self) -> bool:
        """Whether every block is whole, larger ones that are tried too."""
        block = self.frame.constants["RBLOCK"] * (1 if self.is_whole else MAX_BLOCK_SCALE)
        size = self.loop.size
        return bool(size.is_Integer and size > 0 and size % block == 0)

    def _scanned(self, values: tuple[Text, ...]) -> list[Text]:
        """The scan of the block with what precedes it, and what the next block goes on with."""
        key = tuple(value.code for value in values)
        if key in self.results:
            return self.results[key]
        self._print_elements("element", values)
        self.printer.emit(f"{self._names('result')} = {self._scan('element')}")
        self._print_carried()
        made = self.results[key] = self._texts("result")
        return made

    def _print_carried(self) -> None:
        """Print how the block's scan goes on from what precedes it, and what the next goes on from."""
        emit = self.printer.emit
        if not self.is_whole or self.stage.body.holds(Fold):
            end = self.length if self.is_whole else f"tl.minimum(roffset + RBLOCK, {self.length})"
            emit(f"is_last = rindex == {end} - 1")
            self._print_totals("running" if self.is_whole else "total", "result")
        if not self.is_whole:
            self._print_joined("running", "result", self._spread())
            for k in self.numbers:
                emit(f"result{k} = tl.where(roffset > 0, joined{k}, result{k})")
            self._print_running()

    # -- several elements by a thread ------------------------------------------------------------------

    def _print_unrolled(self) -> None:
        """Print a block of which each thread combines neighbours first, in tiles one after another."""
        emit, count = self.printer.emit, self.unrolled
        self._enter_tile(f"RBLOCK // {count}")
        shape = self.printer.tile.shape
        emit(f"place = tl.arange(0, RBLOCK // {count})[None, :]")
        for number in range(count):
            place = f"{self.begin} + place{self.printer.cast} * {count} + {number}"
            self._print_place(str(number), place)
        if self.loads_ahead:
            self._take_loads()
            self._print_loads("roffset + RBLOCK")
        for number in range(count):
            self._name_place(str(number))
            self._print_elements(f"part{number}_", self._values())
            if number:
                own, before = (self._names(f"part{n}_") for n in (number, number - 1))
                emit(f"{own} = {self.name}({before}, {own})")
        last = self._names(f"part{count - 1}_")
        emit(f"is_joined = tl.full({shape}, 0, tl.int32)")
        emit(
            f"is_joined, {self._names('before')}, {self._names('scanned')} = "
            f"tl.associative_scan((is_joined, {last}, {last}), 1, {self.name}_before)"
        )
        later = "place > 0"
        if not self.is_whole:
            later = "(place > 0) | (roffset > 0)"
            emit(f"is_last = place == RBLOCK // {count} - 1")
            self._print_totals("total", "scanned")
            self._print_joined("running", "before", self._spread())
            for k in self.numbers:
                emit(f"before{k} = tl.where(roffset > 0, joined{k}, before{k})")
                emit(f"before{k} = tl.where(place > 0, before{k}, running{k})")
            self._print_running()
        emit(f"is_later = {later}")
        for number in range(count):
            own, made = f"part{number}_", f"result{number}_"
            emit(f"{self._names(made)} = {self.name}({self._names('before')}, {self._names(own)})")
            for k in self.numbers:
                emit(f"{made}{k} = tl.where(is_later, {made}{k}, {own}{k})")
            self._name_place(str(number))
            texts = self._texts(made)
            self.printer.scanner = lambda values, texts=texts: texts
            self.printer.replay(self.stage.body)

    def _loads(self) -> list[tuple[str, sympy.Expr]]:
        """What is loaded of each element before it is scanned."""
        loads = _before_scan(self.stage.body).loads()
        along = [load for load in loads if self.loop.symbol in load.index.free_symbols]
        return list(dict.fromkeys((load.buffer, load.index) for load in along))

    def _print_loads(self, begin: str) -> None:
        """Print the loads of the block at ``begin``, which there may not be."""
        printer, count = self.printer, self.unrolled
        loaded = dict(printer.loaded)
        self._enter_tile(f"RBLOCK // {count}")
        places = f"tl.arange(0, RBLOCK // {count})[None, :]{printer.cast}"
        for number in range(count):
            printer.emit(f"next{number} = {begin} + {places} * {count} + {number}")
            printer.tile.names[self.loop.symbol] = f"next{number}"
            printer.tile.masks["r"] = f"(next{number} < {self.length})"
            for k, (buffer, index) in enumerate(self._loads()):
                printer.emit(f"ahead{number}_{k} = {printer.load(buffer, index).code}")
        del printer.tile.masks["r"]
        printer.loaded = loaded

    def _take_loads(self) -> None:
        """Have the loads of this block be those made before."""
        for number in range(self.unrolled):
            self._name_place(str(number))
            for k, (buffer, index) in enumerate(self._loads()):
                self.printer.emit(f"now{number}_{k} = ahead{number}_{k}")
                self.printer.hold(buffer, index, f"now{number}_{k}")

    def _values(self) -> tuple[Text, ...]:
        """What is scanned, printed for the tile as it is now."""
        before = _before_scan(self.stage.body).instructions
        scan = self.stage.body.instructions[len(before)]
        return tuple(self.printer.replay(LoopBody(before, value)) for value in scan.operands)

    # -- lines of both ---------------------------------------------------------------------------------

    def _names(self, prefix: str) -> str:
        return ", ".join(f"{prefix}{k}" for k in self.numbers)

    def _texts(self, prefix: str) -> list[Text]:
        axes = frozenset(self.printer.tile.axes)
        return [Text(f"{prefix}{k}", self.combine_function.dtypes[k], axes) for k in self.numbers]

    def _print_elements(self, prefix: str, values: tuple[Text, ...]) -> None:
        for k, value in enumerate(values):
            self.printer.emit(
                f"{prefix}{k} = tl.broadcast_to({value.code}, {self.printer.tile.shape})"
            )

    def _scan(self, prefix: str) -> str:
        names = self._names(prefix)
        elements = names if len(self.numbers) == 1 else f"({names})"
        return f"tl.associative_scan({elements}, 1, {self.name})"

    def _print_totals(self, target: str, source: str) -> None:
        """Print the values where ``is_last`` holds."""
        for k, dtype in enumerate(self.combine_function.dtypes):
            held, restored = HELD_BITS.get(dtype, ("{}", f"{{}}.to({triton_dtype(dtype)})"))
            picked = f"tl.sum(tl.where(is_last, {held.format(f'{source}{k}')}, 0), 1)[:, None]"
            self.printer.emit(f"{target}{k} = {restored.format(picked)}")

    def _print_joined(
        self, before: str, following: str, spread: str = "{}", target: str = "joined"
    ) -> None:
        """Print values, in the form ``spread``, combined with the ones that follow."""
        values = ", ".join(spread.format(f"{before}{k}") for k in self.numbers)
        self.printer.emit(
            f"{self._names(target)} = {self.name}({values}, {self._names(following)})"
        )

    def _spread(self) -> str:
        """The form of one value as those of a whole block."""
        return f"tl.broadcast_to({{}}, {self.printer.tile.shape})"

    def _print_running(self) -> None:
        """Print what the next block goes on with."""
        self._print_joined("running", "total")
        for k in self.numbers:
            self.printer.emit(f"running{k} = tl.where(roffset > 0, joined{k}, total{k})")


HELD_BITS = {
    torch.bool: ("{}.to(tl.int32)", "{}.to(tl.int1)"),
    torch.float32: ("{}.to(tl.int32, bitcast=True)", "{}.to(tl.float32, bitcast=True)"),
    torch.float64: ("{}.to(tl.int64, bitcast=True)", "{}.to(tl.float64, bitcast=True)"),
}
"""As what a value is picked out of a block by a sum with zeros, and back: bits, for a zero has a sign."""


def _function_of_before(combine_function: CombineFunction, name: str) -> list[str]:
    """The lines of a function that combines what precedes the last of some elements, and all of them.

    Its first value says whether there is anything before; where there is not, what it is doesn't matter.
    """
    numbers = range(len(combine_function.dtypes))
    sides = [
        [f"{side}_{word}{k}" for word in ("before", "all") for k in numbers]
        for side in (LEFT, RIGHT)
    ]
    parameters = [f"{LEFT}_is_joined", *sides[0], f"{RIGHT}_is_joined", *sides[1]]
    left = ", ".join(f"{LEFT}_all{k}" for k in numbers)
    before, whole = (", ".join(f"{word}{k}" for k in numbers) for word in ("before", "all"))
    lines = ["@triton.jit", f"def {name}_before({', '.join(parameters)}):"]
    for word, made in (("before", before), ("all", whole)):
        right = ", ".join(f"{RIGHT}_{word}{k}" for k in numbers)
        lines.append(f"    {made} = {name}({left}, {right})")
    for k in numbers:
        lines.append(f"    before{k} = tl.where({RIGHT}_is_joined != 0, before{k}, {LEFT}_all{k})")
    return [*lines, f"    return {RIGHT}_is_joined | 1, {before}, {whole}", "", ""]


def print_combine_function(
    combine_function: CombineFunction, printer: BodyPrinter, name: str
) -> list[str]:
    """The lines of a function called ``name`` that combines left and right values."""
    return _CombinePrinter(combine_function, printer).function(name)


class _CombinePrinter(BodyPrinter):
    """Prints a combine function as a function of left and right values."""

    def __init__(self, combine_function: CombineFunction, printer: BodyPrinter) -> None:
        dtypes = {
            f"{side}{k}": dtype
            for side in (LEFT, RIGHT)
            for k, dtype in enumerate(combine_function.dtypes)
        }
        super().__init__(
            Tile(("x",), "[]", "[]"), {}, dtypes.__getitem__, frozenset(), printer.wide
        )
        self.combine_function = combine_function
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
        self.combine_function.body.replay(self)
        numbers = range(len(self.combine_function.dtypes))
        parameters = [f"{side}{k}" for side in (LEFT, RIGHT) for k in numbers]
        results = ", ".join(self.results[f"{COMBINED}{k}"].code for k in numbers)
        head = ["@triton.jit", f"def {name}({', '.join(parameters)}):"]
        return [*head, *self.lines, f"    return {results}", "", ""]
