"""The text of a kernel's function before it has a name: one text serves all kernels that are alike.

It is a :class:`string.Template`.  Its holes are the function's name, the position of a program along each
axis of the grid, the parameters by which a function that another one calls is given those positions, and what
asks for loops to be unrolled.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from string import Template

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
