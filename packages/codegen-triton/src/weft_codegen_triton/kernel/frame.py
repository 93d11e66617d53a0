"""What the printers of a kernel's parts share: the function so far, its block sizes, its grid axes.

The text of a kernel's function before it has a name serves all kernels that are alike.  It is a
:class:`string.Template`.  Its holes are the function's name, the position of a program along each axis of the
grid, the parameters by which a function that another one calls is given those positions, and what asks for
loops to be unrolled.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from string import Template

from weft_loop_ir import Kernel, LoopVariable

from weft_codegen_triton.gpu import REFERENCE, Gpu
from weft_codegen_triton.kernel.blocks import MAX_BLOCK_SCALE, extent
from weft_codegen_triton.kernel.body_printer import NO_AXES, BodyPrinter


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
    printer: BodyPrinter,
    axis: str,
    flat: str,
    loops: tuple[LoopVariable, ...],
    prefix: str = "",
    *,
    is_part: bool = False,
) -> None:
    """Print the loop variables that the flat index ``flat`` along ``axis`` stands for, after ``prefix``.

    ``is_part``: it also counts through loops outside of ``loops``.
    """
    rest = flat
    for position in range(len(loops) - 1, -1, -1):
        loop = loops[position]
        name = f"{prefix}{loop.symbol.name}"
        if position == 0 and not is_part:
            printer.emit(f"{name} = {rest}")
        else:
            size = printer.number(loop.size)
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
    *,
    scale: int = MAX_BLOCK_SCALE,
) -> None:
    """Print the indices and the mask along a grid axis; ``index`` shapes a range as the tile needs it.

    ``scale``: how many times as large a block may be that is tried.  Where every block lies within the inner
    loops, those outside are numbers of the program: what they alone decide is read once, not by each thread.
    """
    printer = frame.printer
    name = f"{axis.upper()}BLOCK"
    frame.constants[name] = block
    frame.grid_axes.append(axis)
    program = program_id(number) + printer.cast
    printer.emit(f"{axis}index = {program} * {name} + tl.arange(0, {name}){index}")
    count = extent(loops)
    printer.emit(f"{axis}mask = {axis}index < {printer.number(count)}")
    if count.is_Integer and int(count) % (scale * block) == 0:
        printer.tile.masks.pop(axis, None)  # every block is whole, larger ones that are tried too
    outer = _loops_of_programs(loops, scale * block)
    split_index(printer, axis, f"{axis}index", loops[outer:], is_part=outer > 0)
    if outer:
        printer.emit(f"{axis}outer = {program} * {name} // {printer.number(extent(loops[outer:]))}")
        split_index(printer, axis, f"{axis}outer", loops[:outer])
        for loop in loops[:outer]:
            printer.tile.symbol_axes[loop.symbol] = NO_AXES


def _loops_of_programs(loops: tuple[LoopVariable, ...], block: int) -> int:
    """How many of the first loops are the same for all points of each block of ``block``."""
    for outer in range(len(loops) - 1, 0, -1):
        inside = extent(loops[outer:])
        if not inside.is_Integer:
            return 0
        if int(inside) % block == 0:
            return outer
    return 0


# -- text ----------------------------------------------------------------------------------------------


NAME = "${name}"
"""The function's name; what it calls is named after it."""

POSITIONS = "${positions}"
"""The positions as leading parameters or arguments, each with a comma; nothing in a kernel."""

GRID_AXES = range(3)
_UNROLLED = "unrolled"


def program_id(axis: int) -> str:
    """The position of a program along ``axis`` of the grid."""
    return f"${{program{axis}}}"


def unrolled(steps: str, factor: int) -> str:
    """The range ``steps`` of a loop that does ``factor`` steps at once, in texts that unroll loops."""
    return f"tl.range({steps}${{{_UNROLLED}{factor}}})"


def definition(parameters: Iterable[str], lines: Sequence[str], name: str = NAME) -> str:
    """A function with ``lines`` for its body."""
    return "\n".join(
        ["@triton.jit", f"def {name}({POSITIONS}{', '.join(parameters)}):", *lines, ""]
    )


def kernel_text(template: str, name: str, *, unrolls: bool = True) -> str:
    """The functions of a kernel called ``name``; no loop of it is unrolled without ``unrolls``."""
    text = Template(template)
    holes = {f"program{axis}": f"tl.program_id({axis})" for axis in GRID_AXES}
    for hole in text.get_identifiers():
        if hole.startswith(_UNROLLED):
            factor = hole.removeprefix(_UNROLLED)
            holes[hole] = f", loop_unroll_factor={factor}" if unrolls else ""
    return text.substitute(holes, name=name, positions="")


def part_text(template: str, name: str, positions: Sequence[str]) -> str:
    """The functions of a part called ``name`` whose first parameters are ``positions``, one for each axis.

    Whether its loops are unrolled is left to the text that it becomes a part of.
    """
    programs = {f"program{axis}": position for axis, position in enumerate(positions)}
    leading = "".join(f"{position}, " for position in positions)
    return Template(template).safe_substitute(programs, name=name, positions=leading)
