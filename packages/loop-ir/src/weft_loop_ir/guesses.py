"""What sizes count as that a program does not tell, where the faster of two forms is chosen by them.

A choice that is dear when wrong for a small size guesses a small one, and the other way round: the guesses
differ because what they are compared with does.
"""

from __future__ import annotations

import sympy

LARGE = 1 << 20
"""Elements that a loop reads, and bytes of a buffer, where the groups to fuse are compared."""

EXPANDED_EXTENT = sympy.Integer(1 << 14)
"""An extent, where the memory is weighed that a loop's buffers take for all its iterations at once."""

LOOP_EXTENT = 1 << 20
"""An extent of a kernel's loops, where a GPU's blocks are chosen: too long for a grid's second axis."""

MATMUL_EXTENT = 1024
"""An extent of a matmul, where a GPU's tiles for it are chosen."""

LIBRARY_EXTENT = 64
"""An extent, where it is decided whether a matmul pays back the cost of calling a library on a CPU."""


def guessed(size: sympy.Expr, otherwise: int) -> int:
    """A size, or a guess where it varies."""
    return int(size) if size.is_Integer else otherwise
