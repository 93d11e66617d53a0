"""What the printers of a kernel's parts share: the function so far, its block sizes, its grid axes."""

from __future__ import annotations

from dataclasses import dataclass, field

from weft_loop_ir import Kernel, LoopVariable

from weft_codegen_triton.gpu import REFERENCE, Gpu
from weft_codegen_triton.kernel.blocks import MAX_BLOCK_SCALE, extent
from weft_codegen_triton.kernel.body_printer import BodyPrinter
from weft_codegen_triton.kernel.templates import program_id


@dataclass(frozen=True)
class RowLimits:
    """Elements of a row: ``persistent`` at most are held in registers, a loop handles ``step`` at once.

    ``tile``: how many elements, of several rows, a program handles at least that runs the whole kernel, with
    more threads than some tiles have elements; 0: as many programs run as there is work for.  ``gpu`` is what
    they run on.
    """

    persistent: int
    step: int
    tile: int = 0
    gpu: Gpu = REFERENCE


@dataclass
class KernelFrame:
    """What the printers of a kernel's parts share; ``called`` has the sizes by which blocks are chosen."""

    kernel: Kernel
    called: Kernel
    printer: BodyPrinter
    gpu: Gpu
    constants: dict[str, int] = field(default_factory=dict)
    grid_axes: list[str] = field(default_factory=list)
    loop_axes: list[str] = field(default_factory=list)


def split_index(
    printer: BodyPrinter, axis: str, flat: str, loops: tuple[LoopVariable, ...], prefix: str = ""
) -> None:
    """Print the loop variables that the flat index ``flat`` along ``axis`` stands for, after ``prefix``."""
    rest = flat
    for position in range(len(loops) - 1, -1, -1):
        loop = loops[position]
        name = f"{prefix}{loop.symbol.name}"
        size = printer.number(loop.size)
        if position == 0:
            printer.emit(f"{name} = {rest}")
        else:
            printer.emit(f"{name} = {rest} % {size}")
            rest = f"({rest} // {size})"
        printer.tile.names[loop.symbol] = name
        printer.tile.symbol_axes[loop.symbol] = frozenset((axis,))


def print_axis(
    frame: KernelFrame,
    axis: str,
    number: int,
    loops: tuple[LoopVariable, ...],
    block: int,
    index: str,
) -> None:
    """Print the indices and the mask along a grid axis; ``index`` shapes a range as the tile needs it."""
    printer = frame.printer
    name = f"{axis.upper()}BLOCK"
    frame.constants[name] = block
    frame.grid_axes.append(axis)
    program = program_id(number) + (".to(tl.int64)" if printer.wide else "")
    printer.emit(f"{axis}index = {program} * {name} + tl.arange(0, {name}){index}")
    count = extent(loops)
    printer.emit(f"{axis}mask = {axis}index < {printer.number(count)}")
    if count.is_Integer and int(count) % (MAX_BLOCK_SCALE * block) == 0:
        printer.tile.masks.pop(axis, None)  # every block is whole, larger ones that are tried too
    split_index(printer, axis, f"{axis}index", loops)
