"""The text of a kernel's function before it has a name: one text serves all kernels that are alike.

It is a :class:`string.Template`.  Its holes are the function's name, the position of a program along each
axis of the grid, and the parameters by which a function that another one calls is given those positions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from string import Template

NAME = "${name}"
"""The function's name; what it calls is named after it."""

POSITIONS = "${positions}"
"""The positions as leading parameters or arguments, each with a comma; nothing in a kernel."""

GRID_AXES = range(3)


def program_id(axis: int) -> str:
    """The position of a program along ``axis`` of the grid."""
    return f"${{program{axis}}}"


def definition(parameters: Iterable[str], lines: Sequence[str], name: str = NAME) -> str:
    """A function with ``lines`` for its body."""
    return "\n".join(
        ["@triton.jit", f"def {name}({POSITIONS}{', '.join(parameters)}):", *lines, ""]
    )


def kernel_text(template: str, name: str) -> str:
    """The functions of a kernel called ``name``."""
    programs = {f"program{axis}": f"tl.program_id({axis})" for axis in GRID_AXES}
    return Template(template).substitute(programs, name=name, positions="")


def part_text(template: str, name: str, positions: Sequence[str]) -> str:
    """The functions of a part called ``name`` whose first parameters are ``positions``, one for each axis."""
    programs = {f"program{axis}": position for axis, position in enumerate(positions)}
    leading = "".join(f"{position}, " for position in positions)
    return Template(template).substitute(programs, name=name, positions=leading)
