"""The shape that a row has in a kernel's tile, which of its elements are looked at, and how a loop reads it.

A loop over a long row reads several elements at a time, wherever in memory the row begins.  A thread reads 16
bytes at once where an address is known to be a multiple of 16.  Where rows have an odd length only some begin
at one: such a row is read from the multiple before its first element on, and what does not belong to it is
masked in its first and last block.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import sympy
import torch
from weft_loop_ir import Kernel, LoopBody, LoopVariable
from weft_loop_ir.bodies import REDUCTIONS, Masked

from weft_codegen_triton.kernel.aligned_sizes import divides
from weft_codegen_triton.kernel.blocks import VECTOR_BYTES, extent
from weft_codegen_triton.kernel.body_printer import BodyPrinter


class Span(enum.Enum):
    """What a block may hold besides elements of the row."""

    ELEMENTS = "a mask says which elements belong to it"
    VECTORS = "a mask says which vectors do, of which all elements do"
    ALL = "nothing"


@dataclass
class RowSpace:
    """Rows lie along ``x``, their elements along ``axis`` (and ``v`` within a vector).

    ``persistent``: all of a row is one block.  ``vectors``: how a loop reads it, None for one by one.
    ``inner``: the loops of the range that is printed now, ``span`` what its blocks hold.
    """

    printer: BodyPrinter
    persistent: bool
    vectors: RowVectors | None
    axis: str = "r"
    inner: tuple[LoopVariable, ...] = ()
    span: Span = Span.ELEMENTS

    @property
    def block(self) -> str:
        """The constant that counts the elements of a block."""
        return f"{self.axis.upper()}BLOCK"

    @property
    def elements(self) -> str:
        """How many elements a row has, as text."""
        return self.printer.number(extent(self.inner))

    @property
    def along(self) -> int:
        """The axis of the tile, of a loop without vectors, that elements lie along."""
        return 1

    @property
    def column(self) -> str:
        """What shapes a vector over rows as the tile needs it."""
        return "[:, None]" if self.vectors is None else "[:, None, None]"

    @property
    def unit(self) -> str:
        """The shape of a single value."""
        return "[1, 1]" if self.vectors is None else "[1, 1, 1]"

    @property
    def row_shape(self) -> str:
        """The shape of one value a row."""
        return "[XBLOCK, 1]" if self.vectors is None else "[XBLOCK, 1, 1]"

    @property
    def shape(self) -> str:
        """The tile's shape."""
        if self.vectors is None:
            return f"[XBLOCK, {self.block}]"
        return f"[XBLOCK, {self.block} // VECTOR, VECTOR]"

    @property
    def lanes(self) -> str:
        """The shape of what a loop accumulates."""
        if self.vectors is None:
            return self.shape
        return f"[XBLOCK, {self.block} // VECTOR, 1]"

    @property
    def mask(self) -> str | None:
        """The elements of the tile that belong to rows; None for all."""
        if self.vectors is None:
            return f"xmask & {self.axis}mask"
        return None if self.span is Span.ALL else f"{self.axis}mask"

    def full(self, code: str, dtype: str, shape: str | None = None) -> str:
        """A tile (or what has ``shape``) that is ``code`` everywhere."""
        return f"tl.full({shape or self.shape}, {code}, {dtype})"

    def where_inside(self, code: str, otherwise: str) -> str:
        """``code`` where an element belongs to a row, else ``otherwise``."""
        return code if self.mask is None else f"tl.where({self.mask}, {code}, {otherwise})"

    def enter(self) -> None:
        """Have the printer's values take the tile's shape and symbols mean this range's variables."""
        tile, axis = self.printer.tile, self.axis
        tile.shape = self.shape
        tile.axes = ("x", axis) if self.vectors is None else ("x", axis, "v")
        tile.masks = {"x": "xmask", axis: f"{axis}mask"} if self.vectors is None else {}
        if self.vectors is not None and self.span is not Span.ALL:
            tile.masks = {axis: f"{axis}mask"}
        for loop in self.inner:
            tile.names[loop.symbol] = f"{axis}_{loop.symbol.name}"
            tile.symbol_axes[loop.symbol] = self.symbol_axes(loop)
            tile.sizes[loop.symbol] = loop.size

    def leave(self) -> None:
        """Have the printer's values be one a row."""
        tile = self.printer.tile
        tile.axes, tile.shape = ("x",), self.row_shape
        tile.masks = {"x": "xmask"}

    def symbol_axes(self, loop: LoopVariable) -> frozenset[str]:
        """The axes along which a loop's variable differs."""
        if self.vectors is None:
            return frozenset((self.axis,))
        if self.vectors.start is not None:
            return frozenset(("x", self.axis, "v"))
        if self.splits_between_vectors and loop is not self.inner[-1]:
            return frozenset((self.axis,))
        return frozenset((self.axis, "v"))

    @property
    def splits_between_vectors(self) -> bool:
        """Whether all elements of a vector have the same variables but for the innermost."""
        return self.vectors is None or self.vectors.has_multiple(self.inner[-1].size)


# -- vectors -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RowVectors:
    """``width`` elements are read at once.

    ``start`` is None where every row begins at a multiple of ``width`` elements and has a multiple of
    them; else the index, over outer loops, of a row's first element in most buffers.  ``whole``: a number of
    a call's sizes that has to be a multiple of ``width`` for that; None where it is so in every call.
    """

    width: int
    start: sympy.Expr | None
    whole: sympy.Expr | None = None

    def has_multiple(self, number: sympy.Expr) -> bool:
        """Whether ``number`` is a multiple of the width in every call that rows are read so in."""
        return _is_multiple(number, self.width, self.whole)

    def follows(self, rest: sympy.Expr) -> bool:
        """Whether a row whose first element is at ``rest`` is aligned as most are."""
        return self.has_multiple(rest if self.start is None else rest - self.start)


def row_start(expression: sympy.Expr, inner: Sequence[LoopVariable]) -> sympy.Expr | None:
    """Where a row begins that is read side by side at ``expression``; None for another access."""
    flat: sympy.Expr = sympy.S.Zero
    for loop in inner:
        flat = flat * loop.size + loop.symbol
    rest = sympy.expand(expression - flat)
    return rest if rest.free_symbols.isdisjoint(loop.symbol for loop in inner) else None


def row_vectors(
    kernel: Kernel,
    ranges: Sequence[tuple[LoopVariable, ...]],
    dtype_of: Callable[[str], torch.dtype],
) -> RowVectors | None:
    """The vectors for loops over ``ranges``; None where elements are better read one by one."""
    extents = {extent(inner) for inner in ranges}
    if len(extents) != 1:
        return None
    elements = extents.pop()
    if not elements.is_Integer and kernel.holds(Masked):
        return None  # parts of rows, say, which begin at multiples already
    local = kernel.local_names
    starts: Counter[sympy.Expr] = Counter()
    smallest = VECTOR_BYTES
    for stage in kernel.stages:
        for access in stage.body.accesses() if stage.inner else ():
            start = row_start(access.index, stage.inner)
            if start is not None and access.buffer not in local:
                starts[start] += 1
                smallest = min(smallest, dtype_of(access.buffer).itemsize)
    width = VECTOR_BYTES // smallest
    if not starts or width == 1:
        return None
    if _is_multiple(elements, width) and all(_is_multiple(start, width) for start in starts):
        return RowVectors(width, None)
    if any(map(_reduces_by_lanes, kernel.bodies)):
        made = RowVectors(width, None, ranges[0][-1].size)
        is_varying = bool(ranges[0][-1].size.free_symbols)
        return made if is_varying and all(map(made.has_multiple, (elements, *starts))) else None
    bound = {s for body in kernel.bodies for s in body.bound_symbols}
    known = [start for start, _ in starts.most_common() if bound.isdisjoint(start.free_symbols)]
    return RowVectors(width, known[0]) if known else None


def _is_multiple(expression: sympy.Expr, width: int, whole: sympy.Expr | None = None) -> bool:
    """Whether ``expression`` is a multiple of ``width`` whatever its symbols are, where ``whole`` is one."""
    return all(
        term.as_coeff_Mul()[0] % width == 0 or (whole is not None and divides(whole, term))
        for term in sympy.Add.make_args(sympy.expand(expression))
    )


def _reduces_by_lanes(body: LoopBody) -> bool:
    """Whether it counts what each lane has seen, which must be the same for all elements of a vector."""
    return any(REDUCTIONS[reduction.kind].is_moment for reduction in body.reductions())
