"""Prints a stage's reductions: what is accumulated over a row's blocks, and what is left of it at the end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from weft_loop_ir.bodies import REDUCTIONS

from weft_codegen_triton.kernel.body_printer import BodyPrinter, ReductionResult, Text
from weft_codegen_triton.kernel.dtypes import highest, lowest, triton_dtype
from weft_codegen_triton.kernel.row_space import RowSpace, Span

LAST_POSITION = {"tl.int32": 2**31 - 1, "tl.int64": 2**63 - 1}
COLUMN = frozenset("x")

LOGICAL = {"any": "max", "all": "min", "sum": "max", "prod": "min"}
"""Reductions of truth values as those of 0 and 1."""

STEPS = {
    "sum": "{0} + {1}", "prod": "{0} * {1}",
    "max": "{2}.maximum({0}, {1})", "min": "{2}.minimum({0}, {1})",
}  # fmt: skip
FUNCTIONS = {"prod": "weft.multiply", "max": "weft.maximum", "min": "weft.minimum"}
"""What joins two partial results of floats."""


@dataclass(frozen=True)
class FoundVector:
    """One vector of each row: its elements, which of them are the row's, and where they are in it."""

    value: Text
    mask: str
    place: str


@dataclass(frozen=True)
class _Nothing:
    """What comes after every element when the best is searched: a value, a place, and their dtypes."""

    value: str
    dtype: str
    place: str
    place_dtype: str

    def values(self, shape: str) -> str:
        return f"tl.full({shape}, {self.value}, {self.dtype})"

    def places(self, shape: str) -> str:
        return f"tl.full({shape}, {self.place}, {self.place_dtype})"


@dataclass(eq=False)
class Accumulators:
    """The reductions of one stage, in the order in which its body names them.

    A body may be printed several times, for blocks of different spans: the same reductions then go on.
    ``before`` are lines for before the loop; ``pending`` gives each reduction's result after it.
    ``vector_of`` gives what prints the operand of a reduction anew for one vector of each row, by where it
    begins, after the loop; None where the operand can't be computed anew.
    """

    printer: BodyPrinter
    space: RowSpace
    with_exponentials: bool = False
    vector_of: Callable[[int], Callable[[str], FoundVector] | None] = lambda number: None
    before: list[str] = field(default_factory=list)
    pending: list[Callable[[], Text]] = field(default_factory=list)
    exponentials: str | None = None
    _names: list[tuple[str, ...]] = field(default_factory=list)
    _next: int = 0
    _shared: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def again(self) -> None:
        """The body is printed from the start, for other blocks."""
        self._next = 0
        self._shared = {}

    def reduce(self, kind: str, dtype: torch.dtype, value: Text) -> ReductionResult:
        """Accumulate ``value``."""
        number = self._next
        self._next += 1
        rule = REDUCTIONS[kind]
        if rule.is_moment:
            names, finish = self._welford(number, kind, dtype, value)
        elif rule.finds_position:
            names, finish = self._position(number, kind, value)
        else:
            names, finish = self._simple(number, kind, dtype, value)
        if number == len(self.pending):
            self.pending.append(finish)
            self._names.append(names)
        return ReductionResult(number)

    # -- shared ----------------------------------------------------------------------------------------

    def _named(self, number: int, *prefixes: str) -> tuple[tuple[str, ...], bool]:
        """The variables of a reduction, and whether they are new."""
        if number < len(self._names):
            return self._names[number], False
        return tuple(self._fresh(prefix) for prefix in prefixes), True

    def _fresh(self, prefix: str) -> str:
        name = f"{prefix}{self.printer.count}"
        self.printer.count += 1
        return name

    def _whole(self, code: str) -> str:
        """``code`` in the tile's shape, which reductions of vectors need."""
        return f"tl.broadcast_to({code}, {self.space.shape})"

    # -- sums, products, extremes ----------------------------------------------------------------------

    def _simple(
        self, number: int, kind: str, dtype: torch.dtype, value: Text
    ) -> tuple[tuple[str, ...], Callable[[], Text]]:
        printer, space = self.printer, self.space
        result_dtype = dtype if REDUCTIONS[kind].connective is None else torch.bool
        logical = result_dtype is torch.bool
        held = "tl.int32" if logical else triton_dtype(dtype)
        operand = value.code
        if logical:
            operand = f"({operand} != 0).to(tl.int32)"
            kind = LOGICAL.get(kind, kind)
        elif value.dtype is not dtype:
            operand = f"{operand}.to({held})"
        start = {
            "sum": "0", "prod": "1",
            "max": "0" if logical else lowest(dtype), "min": "1" if logical else highest(dtype),
        }[kind]  # fmt: skip
        is_float = dtype.is_floating_point and not logical
        join, module = STEPS[kind].format, "weft" if is_float else "tl"
        names, is_new = self._named(number, f"{kind}_")
        (total,) = names

        def across(code: str, axis: int, shape: str) -> str:
            if kind == "sum":
                return f"tl.sum({code}, {axis}){shape}.to({held})"
            if is_float or kind == "prod":
                return f"math.reduce({code}, {axis}, {FUNCTIONS[kind]}){shape}"
            return f"tl.{kind}({code}, {axis}){shape}"

        identity = space.full(start, held)
        if space.persistent:
            printer.emit(f"{total} = {space.where_inside(operand, identity)}")
        elif space.vectors is None:
            self.before += [f"{total} = {identity}"] if is_new else []
            printer.emit(f"{total} = {space.where_inside(join(total, operand, module), total)}")
        else:
            self.before += [f"{total} = {space.full(start, held, space.lanes)}"] if is_new else []
            operand = self._whole(operand)
            if space.span is Span.ELEMENTS:
                operand = space.where_inside(operand, identity)
            if self.with_exponentials:
                self._online_softmax(total, operand, held, is_new)
            else:
                code = join(total, across(operand, 2, "[:, :, None]"), module)
                if space.span is Span.VECTORS:
                    code = space.where_inside(code, total)
                printer.emit(f"{total} = {code}")

        def finish() -> Text:
            if space.vectors is not None:
                code = across(total, 1, "[:, :, None]")
            else:
                code = across(total, space.along, space.column)
            return printer.name(f"({code} != 0)" if logical else code, result_dtype, COLUMN)

        return names, finish

    def _online_softmax(self, largest: str, operand: str, held: str, is_new: bool) -> None:
        """The maximum so far in ``largest``, and the sum of exponentials relative to it."""
        printer, space = self.printer, self.space
        if is_new:
            self.exponentials = self._fresh("exponentials_")
            self.before.append(f"{self.exponentials} = {space.full('0', held, space.lanes)}")
        if space.span is Span.VECTORS:
            operand = space.where_inside(operand, space.full('float("-inf")', held))
        total = self.exponentials
        element, now = self._fresh("element"), self._fresh("now")
        printer.emit(f"{element} = {operand}")
        tile = f"math.reduce({element}, 2, weft.maximum)[:, :, None]"
        printer.emit(f"{now} = weft.maximum({largest}, {tile})")
        more = f"tl.sum(weft.relative_exponential({element}, {now}), 2)[:, :, None]"
        printer.emit(f"{total} = {total} * weft.relative_exponential({largest}, {now}) + {more}")
        printer.emit(f"{largest} = {now}")

    def sum_of_exponentials(self, lanes: str, largest: Text, dtype: torch.dtype) -> Text:
        """The sum relative to ``largest``, the row's maximum; ``lanes`` holds each lane's maximum.

        Nothing is relative to minus infinity, of which a row may be full.
        """
        code = f"{self.exponentials} * weft.relative_exponential({lanes}, {largest.code})"
        code = f"tl.sum({code}, 1)[:, :, None]"
        is_lowest = f'{largest.code} == float("-inf")'
        code = f'tl.where({is_lowest}, float("nan"), {code})'
        return self.printer.name(code, dtype, COLUMN)

    def lanes_of(self, number: int) -> str:
        """The variable in which reduction ``number`` has each lane's result."""
        return self._names[number][0]

    # -- positions -------------------------------------------------------------------------------------

    def _position(
        self, number: int, kind: str, value: Text
    ) -> tuple[tuple[str, ...], Callable[[], Text]]:
        printer, space = self.printer, self.space
        operand, held = value.code, triton_dtype(value.dtype)
        edge = lowest(value.dtype) if kind == "argmax" else highest(value.dtype)
        if value.dtype is torch.bool:
            operand, held = f"{operand}.to(tl.int32)", "tl.int32"
        index_dtype = printer.index_type
        last_value = LAST_POSITION[index_dtype]
        names, is_new = self._named(number, "best", "where")
        best, where = names
        last, identity = space.full(str(last_value), index_dtype), space.full(edge, held)
        step = f"weft.{kind}_step"
        find = self.vector_of(number) if space.vectors is not None else None
        if find is not None:
            nothing = _Nothing(edge, held, str(last_value), index_dtype)
            self._best_vector(kind, names, is_new, operand, nothing)
            return names, lambda: self._place_in_vector(step, names, nothing, find)
        place = f"{space.axis}index" if space.vectors is None else f"{space.axis}offset"
        if space.persistent:
            printer.emit(f"{best} = {space.where_inside(operand, identity)}")
            printer.emit(f"{where} = {space.where_inside(place, last)}")
        else:
            self.before += [f"{best} = {identity}", f"{where} = {last}"] if is_new else []
            if space.vectors is None or space.span is Span.ELEMENTS:
                padded = space.where_inside(operand, identity)
                position = space.where_inside(f"({place})", last)
                printer.emit(f"{best}, {where} = {step}({best}, {where}, {padded}, {position})")
            else:  # positions grow from block to block: an equal element is not the first
                take = self._fresh("take")
                better = f"weft.{kind}_better({self._whole(operand)}, {best})"
                mask = "" if space.mask is None else f" & {space.mask}"
                printer.emit(f"{take} = {better}{mask}")
                printer.emit(f"{best} = tl.where({take}, {operand}, {best})")
                printer.emit(f"{where} = tl.where({take}, {place}, {where})")

        def finish() -> Text:
            pair = self._fresh("pair")
            found = where
            axes = [1]
            if space.vectors is not None:
                shift = "" if space.vectors.start is None else f" - {space.axis}shift"
                inside = f"{where} + {space.axis}base + lane{shift}"
                found = f"tl.where({where} == {last_value}, {where}, {inside})"
                axes = [2, 1]
            printer.emit(f"{pair}_best, {pair} = {best}, {found}")
            for axis in axes:
                joined = f"math.reduce(({pair}_best, {pair}), {axis}, {step})"
                printer.emit(f"{pair}_best, {pair} = {joined}")
            if space.vectors is not None:  # nothing is better than the edge: all elements are equal
                printer.emit(f"{pair} = tl.where({pair} == {last_value}, 0, {pair})")
            return printer.name(f"{pair}{space.column}.to(tl.int64)", torch.int64, COLUMN)

        return names, finish

    def _best_vector(
        self, kind: str, names: tuple[str, ...], is_new: bool, operand: str, nothing: _Nothing
    ) -> None:
        """The best element of each lane's vectors so far, and the block of the first that has it."""
        printer, space = self.printer, self.space
        best, where = names
        if is_new:
            self.before.append(f"{best} = {nothing.values(space.lanes)}")
            self.before.append(f"{where} = {nothing.places(space.lanes)}")
        element = self._whole(operand)
        if space.span is Span.ELEMENTS:
            element = space.where_inside(element, nothing.values(space.shape))
        own, extreme = self._fresh("own"), FUNCTIONS[kind.removeprefix("arg")]
        printer.emit(f"{own} = math.reduce({element}, 2, {extreme})[:, :, None]")
        if space.span is Span.ELEMENTS:  # the first block or the last, after those between them
            block = space.full(f"{space.axis}offset", nothing.place_dtype, space.lanes)
            printer.emit(f"{best}, {where} = weft.{kind}_step({best}, {where}, {own}, {block})")
            return
        mask = "" if space.mask is None else f" & {space.mask}"
        take = self._fresh("take")
        printer.emit(f"{take} = weft.{kind}_better({own}, {best}){mask}")
        printer.emit(f"{best} = tl.where({take}, {own}, {best})")
        printer.emit(f"{where} = tl.where({take}, {space.axis}offset, {where})")

    def _place_in_vector(
        self,
        step: str,
        names: tuple[str, ...],
        nothing: _Nothing,
        find: Callable[[str], FoundVector],
    ) -> Text:
        """The place of a row's best element: that of the first vector that has it, which is read again."""
        printer, space = self.printer, self.space
        best, where = names
        last = nothing.place
        pair, shape = self._fresh("pair"), "[:, :, None]"
        begin = f"tl.where({where} == {last}, {where}, {where} + {space.axis}base)"
        printer.emit(f"{pair}_best, {pair} = math.reduce(({best}, {begin}), 1, {step})")
        # nothing is better than the edge: all elements are equal
        found = find(f"tl.where({pair} == {last}, 0, {pair}){shape}")
        element = found.value.code + (".to(tl.int32)" if found.value.dtype is torch.bool else "")
        vector = "[XBLOCK, 1, VECTOR]"
        element = f"tl.where({found.mask}, {element}, {nothing.values(vector)})"
        place = f"tl.where({found.mask}, {found.place}, {nothing.places(vector)})"
        operands = f"{element}, {place}"
        printer.emit(f"{pair}_best, {pair} = math.reduce(({operands}), 2, {step})")
        return printer.name(f"{pair}{shape}.to(tl.int64)", torch.int64, COLUMN)

    # -- moments ---------------------------------------------------------------------------------------

    def _welford(
        self, number: int, kind: str, dtype: torch.dtype, value: Text
    ) -> tuple[tuple[str, ...], Callable[[], Text]]:
        printer, space = self.printer, self.space
        operand, held = value.code, triton_dtype(dtype)
        names = self._shared.get(operand)
        if names is None:
            names, _ = self._named(number, "mean", "m2_", "weight")
            self._shared[operand] = names
            if space.persistent:
                self._moments(names, operand, held)
            elif space.vectors is None:
                self._welford_step(names, operand, held)
            else:
                self._welford_vectors(names, operand, held)
        mean, m2, _ = names

        def finish() -> Text:
            chosen = mean if kind == "welford_mean" else m2
            if space.persistent:
                return Text(chosen, dtype, COLUMN)
            joined = f"{mean}_all"
            if joined not in printer.known:
                self._join_moments(joined, names)
                printer.known[joined] = Text(joined, dtype, COLUMN)
            return printer.name(f"{chosen}_all", dtype, COLUMN)

        return names, finish

    def _join_moments(self, joined: str, names: tuple[str, ...]) -> None:
        """The moments of all lanes: their mean, and what they and their distance from it add up to.

        The sum of the lanes' shares is rounded: their mean distance from it makes it right, so that equal
        elements have no deviation.
        """
        printer, space = self.printer, self.space
        mean, m2, weight = names
        shape = space.column if space.vectors is None else "[:, :, None]"
        along = space.along
        share, away = self._fresh("share"), self._fresh("away")
        printer.emit(f"{share} = {weight} / ({space.elements})")
        printer.emit(f"{joined} = tl.sum({mean} * {share}, {along}){shape}")
        printer.emit(f"{joined} += tl.sum(({mean} - {joined}) * {share}, {along}){shape}")
        printer.emit(f"{away} = {mean} - {joined}")
        printer.emit(f"{m2}_all = tl.sum({m2} + {weight} * {away} * {away}, {along}){shape}")

    def _moments(self, names: tuple[str, ...], operand: str, held: str) -> None:
        """Mean and squared deviations of a row that is there as a whole, in two passes.

        Elements are divided before they are added, since the sum of large ones is none.  That mean is
        rounded: how far elements are from it on average makes both moments right.
        """
        printer, space = self.printer, self.space
        mean, m2, _ = names
        zero, tile, away = space.full("0", held), self._fresh("row"), self._fresh("away")
        printer.emit(f"{tile} = {space.where_inside(operand, zero)}")
        share = f"(tl.full([1, 1], 1, {held}) / ({space.elements}))"
        along, column = space.along, space.column
        printer.emit(f"{mean} = tl.sum({tile} * {share}, {along}){column}")
        printer.emit(f"{tile} = {space.where_inside(f'{operand} - {mean}', zero)}")
        printer.emit(f"{away} = tl.sum({tile} * {share}, {along}){column}")
        printer.emit(f"{m2} = tl.sum({tile} * {tile}, {along}){column}")
        printer.emit(f"{mean} += {away}")
        printer.emit(f"{m2} = weft.less_squares({m2}, {away}, {space.elements})")

    def _welford_step(self, names: tuple[str, ...], operand: str, held: str) -> None:
        """One element more for each lane; how many a lane has seen is known without counting."""
        printer, space = self.printer, self.space
        mean, m2, weight = names
        axis, block = space.axis, space.block
        seen = f"({space.elements} - {axis}base + {block} - 1) // {block}"
        self.before += [f"{name} = {space.full('0', held)}" for name in (mean, m2)]
        self.before.append(f"{weight} = ({seen} + {space.full('0', 'tl.int32')}).to({held})")
        delta = self._fresh("delta")
        printer.emit(f"{delta} = {operand} - {mean}")
        share = f"1.0 / (tl.full([1, 1], 1, {held}) + {axis}offset // {block})"
        printer.emit(f"{mean} = {space.where_inside(f'{mean} + {delta} * ({share})', mean)}")
        more = f"{m2} + {delta} * ({operand} - {mean})"
        printer.emit(f"{m2} = {space.where_inside(more, m2)}")

    def _welford_vectors(self, names: tuple[str, ...], operand: str, held: str) -> None:
        """One vector more for each lane: its own moments, joined by Chan's rule."""
        printer, space = self.printer, self.space
        assert space.vectors is not None
        mean, m2, weight = names
        axis, block = space.axis, space.block
        seen = f"({space.elements} - {axis}base + {block} - 1) // {block} * VECTOR"
        zeros = space.full("0", held, space.lanes)
        self.before += [f"{mean} = {zeros}", f"{m2} = {zeros}"]
        self.before.append(f"{weight} = ({seen}).to({held}) + {zeros}")
        tile, own, delta = (self._fresh(p) for p in ("row", "own", "delta"))
        printer.emit(f"{tile} = {self._whole(operand)}")
        printer.emit(f"{own} = tl.sum({tile} * {1 / space.vectors.width}, 2)[:, :, None]")
        printer.emit(f"{delta} = {own} - {mean}")
        printer.emit(f"{tile} = {tile} - {own}")
        steps = f"({axis}offset // {block})"
        share = f"(1.0 / (tl.full([1, 1, 1], 1, {held}) + {steps}))"
        between = f"{delta} * ({delta} * ({share} * ({steps} * VECTOR)))"  # delta² may be infinite
        more = f"{m2} + tl.sum({tile} * {tile}, 2)[:, :, None] + {between}"
        printer.emit(f"{m2} = {space.where_inside(more, m2)}")
        printer.emit(f"{mean} = {space.where_inside(f'{mean} + {delta} * {share}', mean)}")
