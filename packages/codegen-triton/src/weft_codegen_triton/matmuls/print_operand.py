"""Prints how a block of an operand is loaded, or computed by the loops that would have stored it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import sympy
import torch
from weft_loop_ir import Buffer, LoopBody, print_index
from weft_loop_ir.bodies.edit import part_of
from weft_loop_ir.contractions import (
    COLUMN,
    INNER,
    ROW,
    TAP,
    Contraction,
    Operand,
    RowFactor,
)
from weft_loop_ir.ops import HALVES

from weft_codegen_triton.kernel.bit_fields import Word
from weft_codegen_triton.kernel.body_printer import BodyPrinter, ReductionResult, Text, Tile
from weft_codegen_triton.kernel.dtypes import INDEX, triton_dtype
from weft_codegen_triton.matmuls.words import (
    ALONE,
    WORD_BYTES,
    CommonFactors,
    Parts,
    factors_of,
    word_of,
)

SHAPES = {"y": "YBLOCK", "x": "XBLOCK", "k": "KBLOCK", "s": "SPLITS"}
AXES = {ROW: "y", COLUMN: "x", INNER: "k"}


@dataclass(frozen=True)
class OperandBlock:
    """The axes of a block, in order, and what its places along each are called.

    Where what is added up is split, each ``s`` has places of its own along ``k``; ``rows`` is the mask of
    those rows that there are.
    ``ragged``: whether the last block along ``k`` reaches beyond what is added up.  ``whole``: whether it has
    its shape along an axis that does not tell its elements too.  ``parts``: the block has an element of one
    of these.  ``word_bytes``: of what is read at once, where there are several.
    """

    axes: tuple[str, ...]
    names: Mapping[sympy.Symbol, str]
    ragged: bool
    whole: bool
    parts: Parts = ALONE
    word_bytes: int = WORD_BYTES
    rows: str = ""

    @property
    def is_split(self) -> bool:
        return "s" in self.axes

    @property
    def unit(self) -> str:
        """The shape of one element."""
        return f"[{', '.join('1' for _ in self.axes)}]"

    def axes_of(self, symbol: sympy.Symbol) -> frozenset[str]:
        """Along which the places of ``symbol`` differ."""
        return frozenset("sk" if self.is_split and symbol == INNER else AXES[symbol])

    def along(self, place: str) -> str:
        """``place``, along what is added up, in the block's shape."""
        if self.is_split:
            return f"{place}[:, None, :]" if self.axes[-1] == "k" else f"{place}[:, :, None]"
        return f"{place}[None, :]" if self.axes[1] == "k" else f"{place}[:, None]"


class MatmulContext(Protocol):
    """The printer of the matmul around the operand."""

    contraction: Contraction
    buffers: Mapping[str, Buffer]
    pointers: Mapping[str, str]
    right_policy: str

    def body_printer(self, tile: Tile, registers: frozenset[str]) -> BodyPrinter: ...

    def finish(self, printer: BodyPrinter) -> list[str]: ...


class OperandPrinter:
    """Prints the lines that leave a block of ``operand`` in a variable, zeros where it has no elements."""

    def __init__(self, context: MatmulContext, operand: Operand, block: OperandBlock) -> None:
        self.context = context
        self.operand = operand
        self.block = block
        index = sympy.expand(operand.index)
        self.step = index.coeff(INNER)
        moves_evenly = not (self.step.free_symbols & set(AXES))
        still, taps = index.as_independent(TAP, as_Add=True)
        rest = sympy.expand(still - self.step * INNER)
        self.tap_offset: sympy.Expr = taps
        self.is_hoisted = moves_evenly and INNER not in rest.free_symbols
        self.is_hoisted &= taps.free_symbols <= {TAP} and operand.producer is None

    def hoisted(self, name: str) -> list[str]:
        """The lines before the loop: addresses that each step, and each tap, moves evenly."""
        if self.factor is not None:
            shape = self._row_shape()
            sums = range(len(self.factor.sums.reductions()))
            return [f"row{k} = tl.zeros([{shape}], dtype=tl.float32)" for k in sums]
        if not self.is_hoisted or self.block.parts.count > 1:
            return []
        names = {**self.block.names, INNER: self._place("k")}
        return [f"{name} = {self._address(self.operand.index - self.tap_offset, names)}"]

    def _place(self, place: str, part: int = 0) -> str:
        """Where an element is along what is added up, by its ``place`` among those of its part."""
        parts, inside = self.block.parts, self.block.along(place)
        if parts.count == 1:
            return inside
        return f"({parts.neighbours} * {inside} + {parts.offset(part)})"

    def _shape(self) -> str:
        return ", ".join(SHAPES[axis] for axis in self.block.axes)

    def _address(self, index: sympy.Expr, names: Mapping[sympy.Symbol, str]) -> str:
        pointer = self.context.pointers[self.operand.buffer]
        return f"{pointer} + {print_index(sympy.expand(index), INDEX, names)}"

    def _masks(self) -> list[str]:
        """What holds for elements that there are along what is added up."""
        extent = self.context.contraction.inner / self.block.parts.count
        return [f"{self.block.along('(start + k)')} < {print_index(extent, INDEX)}"]

    def lines(self, name: str, result: str, part: int = 0) -> tuple[list[str], int]:
        """The lines in the loop that leave the block in ``result``: that of a ``part`` of the elements.

        Besides them the exponent of two by which that is too large.
        """
        place = self._place("(start + k)", part)
        names, parts = {**self.block.names, INNER: place}, self.block.parts
        masks = self._masks() if self.block.ragged else []
        for expression, extent in self.operand.inside:
            code = print_index(expression, INDEX, names)
            masks += [f"({code} >= 0)", f"({code} < {print_index(extent, INDEX)})"]
        if self.operand.producer is not None:
            return self._computed(result, part, masks)
        if parts.count > 1 and not self.operand.inside:
            return self._loaded(result, part, masks), 0
        if self.is_hoisted:
            step = "" if self.step == 0 else f" + start * {print_index(self.step, INDEX)}"
            tap = print_index(self.tap_offset, INDEX, names)
            address = f"{name}{step}" if tap == "0" else f"{name}{step} + {tap}"
        else:
            address = self._address(self.operand.index, names)
        told = {AXES[s] for s in self.operand.index.free_symbols if s in AXES}
        is_masked_along = "k" not in told and bool(masks)
        if told != set(self.block.axes) and (self.block.whole or is_masked_along):
            address = f"tl.broadcast_to({address}, [{self._shape()}])"
        policy = "" if self.operand is self.context.contraction.left else self.context.right_policy
        if not masks:
            return [f"{result} = tl.load({address}{policy})"], 0
        return [f"{result} = tl.load({address}, {_all(masks)}, other=0.0{policy})"], 0

    @property
    def factor(self) -> RowFactor | None:
        """By what the contraction's sums are multiplied, if its left operand is a row that is scaled."""
        return None if self.operand.producer is None else self.operand.producer.factor

    def _row_shape(self) -> str:
        """The shape of what is added up of rows: they lie along ``y``, if they have an axis."""
        return ", ".join(SHAPES[axis] if axis in "yk" else "1" for axis in self.block.axes)

    def lines_of_factor(self, result: str) -> list[str]:
        """The lines after the loop that leave the factor of each row in ``result``."""
        factor, producer = self.factor, self.operand.producer
        if factor is None or producer is None:
            return []
        tile = Tile(("y",), "[YBLOCK, 1]", "[1, 1]")
        printer = self.context.body_printer(tile, frozenset(producer.kernel.local_names))
        printer.indent = 0
        axis = self.block.axes.index("k")
        spread = "[None, :]" if axis == 0 else "[:, None]"
        stores = factor.sums.stores()
        for number, reduction in enumerate(factor.sums.reductions()):
            total = Text(f"row{number}", torch.float32, frozenset("y"))
            printer.emit(f"{total.code} = tl.sum({total.code}, {axis}){spread}")
            for store in stores:
                if factor.sums.at(store.value) is reduction:
                    printer.local[store.buffer, printer.index(store.index)[0]] = total
        printer.emit(f"{result} = {printer.replay(factor.factor).code}")
        return self.context.finish(printer)

    def _add_to_sums(self, printer: BodyPrinter, sums: LoopBody, is_masked: bool) -> None:
        """Print what a block adds to the sums of rows."""
        count = 0

        def reduce(kind: str, dtype: torch.dtype, value: Text) -> ReductionResult:
            nonlocal count
            code = f"tl.where(kmask, {value.code}, 0.0)" if is_masked else value.code
            printer.emit(f"row{count} += {code}")
            count += 1
            return ReductionResult(count - 1)

        printer.reduce, printer.store_result = reduce, lambda result, buffer, index: None
        printer.replay(sums)

    def _over_places(self, body: LoopBody, part: int) -> LoopBody:
        """A body of the producer, over the places along the block's axes; those of a part of ``k``."""
        return self.block.parts.body(self.operand, body, self.context.contraction, part)

    def _printer(self, masks: list[str], place: str = "(start + k)") -> BodyPrinter:
        """A printer of what is computed for the block, whose places along what is added up are ``place``."""
        shape, producer = self._shape(), self.operand.producer
        loops = () if producer is None else producer.kernel.outer
        tile = Tile(
            self.block.axes,
            f"[{shape}]",
            self.block.unit,
            sizes={loop.symbol: loop.size for loop in loops},
        )
        tile.masks = {"k": "kmask"} if masks else {}
        if self.block.rows:
            tile.masks["y"] = self.block.rows
        written = frozenset(() if producer is None else producer.kernel.writes)
        printer = self.context.body_printer(tile, written)
        printer.indent = 0
        if masks:
            printer.emit(f"kmask = {_all(masks)}")
        tile.names.update({**self.block.names, INNER: self.block.along(place)})
        tile.symbol_axes.update({symbol: self.block.axes_of(symbol) for symbol in AXES})
        if self.block.parts.count > 1:
            printer.word_of = self._word_of
        return printer

    def _word_of(self, buffer: str, index: sympy.Expr) -> Word | None:
        itemsize = self.context.buffers[buffer].layout.dtype.itemsize
        is_alone = not self.block.is_split
        return word_of(index, itemsize, self.block.word_bytes, is_alone=is_alone)

    def _loaded(self, result: str, part: int, masks: list[str]) -> list[str]:
        """The lines that load the elements of a part in words."""
        printer = self._printer(masks)
        place = {INNER: self.block.parts.place(part)}
        value = printer.load(self.operand.buffer, sympy.expand(self.operand.index.xreplace(place)))
        if value.dtype in HALVES and not self.block.whole:
            value = _single(printer, value)
        printer.emit(f"{result} = {self._whole(value, self._shape(), value.dtype, bool(masks))}")
        return self.context.finish(printer)

    # -- what a word's elements have in common -------------------------------------------------------------

    @cached_property
    def common(self) -> list[CommonFactors]:
        """For each piece of what is added up what its parts are multiplied by: none where nothing is.

        Sums are multiplied by what the right operand's elements have in common, so only that is asked.
        """
        producer, parts = self.operand.producer, self.block.parts
        is_left = self.operand is self.context.contraction.left
        if producer is None or is_left or producer.factor is not None or parts.count == 1:
            return []
        pieces = range(parts.pieces)
        found = [
            factors_of(parts.bodies(self.operand, self.context.contraction, n)) for n in pieces
        ]
        return found if all(common.factors for common in found) else []

    def lines_of_factors(self, result: str, piece: int) -> list[str]:
        """The lines in the loop that multiply ``result``, a sum over a piece's parts, by their factors."""
        masks = self._masks() if self.block.ragged else []
        printer = self._printer(masks, "(start + split)" if self.block.is_split else "(start + k)")
        body = self.block.parts.bodies(self.operand, self.context.contraction, piece)[0]
        for factor in self.common[piece].factors:
            value = _single(printer, printer.replay(part_of(body, factor)))
            code = f"tl.where(kmask, {value.code}, 0.0)" if masks else value.code
            printer.emit(f"{result} *= {code}")
        return self.context.finish(printer)

    def _computed(self, result: str, part: int, masks: list[str]) -> tuple[list[str], int]:
        """The lines of the producer's body, whose stored value is the block; and the exponent."""
        producer = self.operand.producer
        assert producer is not None
        (name,) = producer.kernel.writes
        shape, printer = self._shape(), self._printer(masks)
        body = producer.kernel.stages[0].body
        if self.common:
            piece, neighbour = divmod(part, self.block.parts.neighbours)
            core = self.common[piece].cores[neighbour]
            value = printer.replay(part_of(self._over_places(body, part), core))
            if self.block.whole:
                return self._in_halves(printer, value, result, bool(masks))
            value, exponent = self._in_place(printer, _single(printer, value))
            printer.emit(f"{result} = {self._whole(value, shape, value.dtype, bool(masks))}")
            return self.context.finish(printer), exponent
        if producer.factor is None:
            printer.replay(self._over_places(body, part))
            (value,) = (v for (buffer, _), v in printer.local.items() if buffer == name)
        else:
            self._add_to_sums(printer, self._over_places(producer.factor.sums, part), bool(masks))
            value = printer.replay(self._over_places(producer.factor.element, part))
        dtype = self.context.buffers[name].layout.dtype
        if self.block.whole and dtype in HALVES:
            return self._in_halves(printer, value, result, bool(masks))
        if not self.block.whole and dtype in HALVES:
            value, dtype = _single(printer, value), torch.float32  # which is added up
        value, exponent = self._in_place(printer, value)
        printer.emit(f"{result} = {self._whole(value, shape, dtype, bool(masks))}")
        return self.context.finish(printer), exponent

    def _in_halves(
        self, printer: BodyPrinter, value: Text, result: str, is_masked: bool
    ) -> tuple[list[str], int]:
        """The lines that leave ``value`` in ``result`` in the operand's 16 bits: of words two at once."""
        dtype = self.context.buffers[self.operand.buffer].layout.dtype
        code = printer.bits.half(printer.facts.exact.get(value.code, value.code), dtype)
        whole = self._whole(
            replace(value, code=code or value.code), self._shape(), dtype, is_masked
        )
        printer.emit(f"{result} = {whole}")
        return self.context.finish(printer), 0

    def _in_place(self, printer: BodyPrinter, value: Text) -> tuple[Text, int]:
        """``value``, or a multiple where that is cheaper: bits that stay where they are in a word.

        Besides it the exponent of two that it was multiplied by.
        """
        if self.block.parts.count == 1:
            return value, 0
        code, exponent = printer.bits.scaled(value.code)
        return Text(code, value.dtype, value.axes), exponent

    def _whole(self, value: Text, shape: str, dtype: torch.dtype, is_masked: bool) -> str:
        """``value`` as a block of ``dtype``, zero where the mask does not hold."""
        code = f"{value.code}.to({triton_dtype(dtype)})"
        if self.block.whole and value.axes != frozenset(self.block.axes):
            code = f"tl.broadcast_to({code}, [{shape}])"
        return f"tl.where(kmask, {code}, 0.0).to({triton_dtype(dtype)})" if is_masked else code


def _single(printer: BodyPrinter, value: Text) -> Text:
    """``value`` in float32."""
    return value if value.dtype is torch.float32 else printer.to_dtype(value, torch.float32)


def _all(masks: list[str]) -> str:
    return masks[0] if len(masks) == 1 else " & ".join(f"({m})" for m in masks)
