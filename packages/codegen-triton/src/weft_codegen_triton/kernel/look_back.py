"""Prints a scan of few long rows that reads each element once.

A program scans one tile of a row.  It publishes its total, waits for the totals of the tiles before it in its
group, and for what precedes the group, which the last tile of the group before publishes.  Tiles are numbered
by a counter in memory as programs begin, so whoever is waited for is running already and waits for nobody
behind it.  Totals are combined in an order that doesn't depend on which of them comes first, so results are
the same in each run.

Each value is published in words of 64 bits, the lower half of which is it (half of it, if it has 64 bits),
and the upper half 1 as soon as it is there: what is read as one word needs no order among words.
"""

from __future__ import annotations

from collections.abc import Callable

import sympy
import torch
from weft_loop_ir import CombineFunction, Kernel
from weft_loop_ir.bodies import ADD, MUL, Fold

from weft_codegen_triton.gpu import Gpu
from weft_codegen_triton.kernel.blocks import extent
from weft_codegen_triton.kernel.dtypes import triton_dtype
from weft_codegen_triton.kernel.frame import KernelFrame, split_index
from weft_codegen_triton.kernel.scan_printer import (
    HELD_BITS,
    ScanBlocks,
    ScanPrinter,
    combine_function_of,
    print_combine_function,
)

TILE = 8192
"""Elements of a program where a value has 32 bits and there is one."""
WARPS = 8
GROUP = 32 * WARPS
"""Tiles of a group: each thread waits for one total, and no two for the same one.

Threads that poll one place may see it change at different times, but all that a program knows is what one of
them has seen.
"""
ALIGNMENT = 16
"""Words between the counter and what is published."""


def min_row(gpu: Gpu) -> int:
    """Elements of a row from which on it has enough tiles for ``gpu`` to be busy."""
    return gpu.many_tiles * TILE


def max_rows(gpu: Gpu) -> int:
    """Rows of which each multiprocessor of ``gpu`` has several."""
    return 2 * gpu.many_tiles


def looks_back(kernel: Kernel, gpu: Gpu) -> bool:
    """Whether ``kernel`` is a scan of few long rows of known sizes, which are scanned in tiles at once."""
    (stage,) = kernel.stages
    (loop,) = stage.inner
    rows, length = extent(kernel.outer), loop.size
    if not (rows.is_Integer and length.is_Integer):
        return False
    if stage.body.holds(Fold) or combine_function_of(kernel).is_costly:
        return False
    return 0 < int(rows) < max_rows(gpu) and int(length) >= min_row(gpu)


def print_look_back(
    frame: KernelFrame, name: str
) -> tuple[list[str], tuple[sympy.Expr, ...], tuple[int, ...], int, sympy.Expr]:
    """As :func:`print_scan`, and how many words of memory the kernel needs, all zero: ``state_ptr``."""
    combine_function = combine_function_of(frame.kernel)
    words = sum(map(_words, combine_function.dtypes))
    tile = TILE // max(1, words // 2 * 2)
    frame.constants["XBLOCK"], frame.constants["RBLOCK"] = 1, tile
    printer = _LookBackPrinter(frame, combine_function, name, ScanBlocks(1, tile, False, WARPS))
    printer.print()
    lines = print_combine_function(combine_function, printer.printer, name)
    programs = sympy.Integer(printer.rows * printer.tiles)
    return lines, (programs,), (1,), WARPS, sympy.Integer(printer.state_words)


def _words(dtype: torch.dtype) -> int:
    """How many words a value of ``dtype`` is published in."""
    return 2 if dtype.itemsize == 8 else 1


class _LookBackPrinter(ScanPrinter):
    """Prints what a program does with one tile."""

    def __init__(
        self, frame: KernelFrame, combine_function: CombineFunction, name: str, blocks: ScanBlocks
    ) -> None:
        super().__init__(frame, combine_function, name, blocks)
        self.rows = int(extent(frame.kernel.outer))
        self.tiles = -(-int(self.loop.size) // blocks.columns)
        self.groups = -(-self.tiles // GROUP)
        self.words = sum(map(_words, combine_function.dtypes))
        self.totals_at = ALIGNMENT + self.rows * (self.groups + 1) * self.words
        self.state_words = self.totals_at + self.rows * self.tiles * self.words

    def print(self) -> None:
        printer, emit = self.printer, self.printer.emit
        emit(f'program = tl.atomic_add(state_ptr, 1, sem="relaxed").to({printer.index_type})')
        emit(f"row, tile = program // {self.tiles}, program % {self.tiles}")
        emit(f"group, number = tile // {GROUP}, tile % {GROUP}")
        emit("xindex = row + tl.arange(0, XBLOCK)[:, None]")
        printer.tile.unit, printer.tile.masks = "[1, 1]", {}
        split_index(printer, "x", "xindex", self.frame.kernel.outer)
        emit("roffset = tile * RBLOCK")
        self._print_block()

    def _print_carried(self) -> None:
        emit = self.printer.emit
        # nobody asks for the total of a row's last tile, which may have fewer elements
        emit("is_last = tl.arange(0, RBLOCK)[None, :] == RBLOCK - 1")
        self._print_totals("total", "result")
        totals = f"state_ptr + {self.totals_at} + (row * {self.tiles} + group * {GROUP}"
        self._publish("total", f"{totals} + number) * {self.words}")
        self._print_preceding(f"{totals} + other) * {self.words}")
        prefixes = f"state_ptr + {ALIGNMENT} + (row * {self.groups + 1} + group"
        self._wait("weft.wait_for", "prefix", f"{prefixes}) * {self.words}", "group > 0")
        self._print_before()
        self._print_joined("before", "total")
        with self.printer.loop(f"if number == {GROUP - 1}:"):
            self._publish("joined", f"{prefixes} + 1) * {self.words}")
        self._print_results()

    def _print_before(self) -> None:
        """Print what precedes the tile: what does its group, and what does the tile in it, if anything."""
        emit, identity = self.printer.emit, _identity(self.combine_function)
        if identity is not None:
            emit(f"prefix0 = tl.where(group > 0, prefix0, {identity})")
            emit(f"among0 = tl.where(number > 0, among0, {identity})")
            emit(f"before0 = {self.name}(prefix0, among0)")
            return
        self._print_joined("prefix", "among")
        for k in self.numbers:
            emit(f"before{k} = tl.where(number > 0, joined{k}, prefix{k})")
            emit(f"before{k} = tl.where(group > 0, before{k}, among{k})")

    def _print_results(self) -> None:
        """Print the elements combined with what precedes the tile, which nothing does in a row's first."""
        if _identity(self.combine_function) is not None:
            self._print_joined("before", "result", self._spread(), "result")
            return
        self._print_joined("before", "result", self._spread())
        for k in self.numbers:
            self.printer.emit(f"result{k} = tl.where(tile > 0, joined{k}, result{k})")

    def _print_preceding(self, places: str) -> None:
        """Print what the tiles before this one in its group give together."""
        emit = self.printer.emit
        emit(f"other = tl.arange(0, {GROUP})[None, :]")
        self._wait("weft.wait_for_all", "earlier", places, "other < number")
        emit(f"{self._names('earlier')} = {self._scan('earlier')}")
        emit("is_last = other == number - 1")
        self._print_totals("among", "earlier")

    def _publish(self, source: str, place: str) -> None:
        """Print that values of one element are written, word by word, at ``place``."""
        word = 0
        for k, dtype in enumerate(self.combine_function.dtypes):
            bits = f"math.single({_bits(dtype)(f'{source}{k}')})"
            for part in range(_words(dtype)):
                shifted = f"({bits} >> 32)" if part else bits
                self.printer.emit(f"weft.publish({place} + {word}, {shifted})")
                word += 1

    def _wait(self, function: str, target: str, place: str, wanted: str) -> None:
        """Print that values are read at ``place`` as soon as all are there that are ``wanted``."""
        word = 0
        for k, dtype in enumerate(self.combine_function.dtypes):
            parts = []
            for part in range(_words(dtype)):
                code = f"{function}({place} + {word}, {wanted})"
                parts.append(f"({code} << 32)" if part else code)
                word += 1
            self.printer.emit(f"{target}{k} = tl.full([1, 1], 0, tl.int64) | {' | '.join(parts)}")
            self.printer.emit(f"{target}{k} = {_value(dtype)(f'{target}{k}')}")


def _identity(combine_function: CombineFunction) -> str | None:
    """What changes no element that it is combined with, if that is known: it spares a choice for each.

    Without the choice a kernel for sums of float32 needs 80 registers a thread instead of 95.
    """
    operations = [i.operation for i in combine_function.body.instructions]
    (dtype, *others) = combine_function.dtypes
    computed = [o for o in operations if not o.touches_memory]
    if others or len(computed) != 1 or dtype is torch.bool:
        return None
    zero = "-0.0" if dtype.is_floating_point else "0"  # 0.0 would change -0.0
    return {ADD: zero, MUL: "1.0" if dtype.is_floating_point else "1"}.get(computed[0])


def _bits(dtype: torch.dtype) -> Callable[[str], str]:
    """How a value is written as an integer of 64 bits."""
    held, _ = HELD_BITS.get(dtype, ("{}", ""))
    if dtype.is_floating_point and dtype.itemsize < 4:
        held = "{}.to(tl.float32).to(tl.int32, bitcast=True)"
    return lambda code: f"{held.format(code)}.to(tl.int64)"


def _value(dtype: torch.dtype) -> Callable[[str], str]:
    """How the value is restored from it; upper bits may be anything, if it has fewer."""
    narrow = "" if dtype.itemsize == 8 else ".to(tl.int32)"
    _, restored = HELD_BITS.get(dtype, ("", f"{{}}.to({triton_dtype(dtype)})"))
    if dtype.is_floating_point and dtype.itemsize < 4:
        restored = f"{{}}.to(tl.float32, bitcast=True).to({triton_dtype(dtype)})"
    return lambda code: restored.format(f"{code}{narrow}")
