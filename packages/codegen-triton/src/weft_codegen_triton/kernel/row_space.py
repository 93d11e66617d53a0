"""The shape that a row has in a kernel's tile, and which of its elements are looked at."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from weft_loop_ir import LoopVariable

from weft_codegen_triton.kernel.blocks import extent
from weft_codegen_triton.kernel.body_printer import BodyPrinter
from weft_codegen_triton.kernel.row_vectors import RowVectors


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
