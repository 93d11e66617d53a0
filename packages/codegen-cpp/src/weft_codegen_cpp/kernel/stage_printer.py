"""Prints one iteration of a kernel's outer loops: its stages, one after another."""

from __future__ import annotations

import sympy
from weft_loop_ir import LoopVariable, Stage, print_index
from weft_loop_ir.bodies import Reduction

from weft_codegen_cpp.kernel.body_printer import BodyPrinter
from weft_codegen_cpp.kernel.expressions import INDEX, indent, memory_type, size_of, static_int
from weft_codegen_cpp.kernel.kernel_layout import KernelLayout
from weft_codegen_cpp.kernel.loop_nests import (
    CHUNK,
    chunked,
    ending,
    in_run,
    in_runs,
    nest,
    one_run,
    totalled,
    unbounded,
)
from weft_codegen_cpp.kernel.loop_structure import calls_functions
from weft_codegen_cpp.kernel.reductions import ReductionSet
from weft_codegen_cpp.kernel.stored_values import reduced_stores
from weft_codegen_cpp.kernel.tiles import print_tile_reads

ROW_COPIES = 4  # accumulators of a row reduction


class StagePrinter:
    """A stage has its lanes along the outer vectorised loop (columns), along a loop of its own, or none."""

    def __init__(self, layout: KernelLayout) -> None:
        self.layout = layout
        self.kernel = layout.kernel
        self.plan = layout.plan
        self.tiles = layout.tiles

    def iteration(self) -> list[str]:
        """The stages in order, each in a block of its own."""
        lines = []
        for number, stage in enumerate(self.kernel.stages):
            lines.append("{")
            if self.plan.outer is not None:
                lines += indent(self._column_stage(stage, number))
            elif self.plan.inner[number] is not None:
                lines += indent(self._row_stage(stage, number))
            else:
                lines += indent(self._scalar_stage(stage, number))
            lines.append("}")
        return lines

    def _ending(self, stage: Stage, elements: str) -> list[str]:
        """What ends the loop of a stage that data ends."""
        if stage.goes_on is None:
            return []
        tag = "tag" if self.plan.outer is not None else "One{}"
        return ending(f"{self.layout.rows[stage.goes_on]}_all", elements, tag)

    def tile_iteration(self) -> list[str]:
        """Read the tiles of one block, then run the body on each of their lines."""
        assert self.tiles is not None
        assert self.plan.outer is not None
        name = self.tiles.variable.symbol.name
        memories = self.layout.memories(True)
        head = f"for (int {name}_line = 0; {name}_line < {name}_count; ++{name}_line) {{"
        place = f"const i64 {name} = {name}_first + {name}_line;"
        return [
            *print_tile_reads(self.tiles, self.plan.outer, memories),
            head,
            *indent([place, f"(void){name};", *self.iteration()]),
            "}",
        ]

    def _position(self, stage: Stage) -> sympy.Expr:
        """The row-major position in the stage's inner loops."""
        position: sympy.Expr = sympy.S.Zero
        for variable in stage.inner:
            position = position * variable.size + variable.symbol
        return position

    def _reductions(
        self, stage: Stage, number: int, is_row: bool, *, is_read_again: bool = False
    ) -> ReductionSet:
        """The accumulators of a stage with vectors: steps repeat where only results are stored.

        ``is_read_again``: so they do where all that is reduced is read from where the stage stores it.
        """
        stored = (stage.body.at(store.value) for store in stage.body.stores())
        only_results = all(isinstance(value, Reduction) for value in stored)
        repeatable = (only_results and not stage.is_sequential) or is_read_again
        return ReductionSet(
            f"s{number}_",
            self._position(stage),
            True,
            is_row=is_row,
            repeatable=repeatable,
            is_read_again=is_read_again,
        )

    def _column_stage(self, stage: Stage, number: int) -> list[str]:
        """All of the stage with lanes along the outer vectorised loop, ``count`` vectors side by side."""
        assert self.plan.outer is not None
        name = self.plan.outer.name
        reductions = self._reductions(stage, number, False)
        printer = BodyPrinter(self.layout.scope(self.plan.outer, "tag"), reductions.reduce)
        stage.body.replay(printer)
        place = [f"const i64 {name} = {name}_first + which * lanes;", f"(void){name};"]
        for local in self.kernel.local_buffers:
            size, row = print_index(local.size, INDEX), self.layout.rows[local.name]
            type_name = memory_type(local.dtype)
            place.append(f"{type_name}* const {row} = {row}_all + which * ({size}) * lanes;")
            place.append(f"(void){row};")
        # of several vectors, a loop's iterations overlap without being unrolled
        unroll = "" if self.layout.has_loop and self.layout.is_costly() else "WEFT_UNROLL(8) "
        side_by_side = [f"{unroll}for (int which = 0; which < count.value; ++which) {{"]
        body = [*side_by_side, *indent([*place, *printer.lines]), "}"]
        lines = [*reductions.declare("count.value")]
        body = [*self._ending(stage, "lanes * count.value"), *body]
        lines += unbounded(stage, chunked(reductions, stage.inner, body, "count.value"))
        if printer.stores:
            after = BodyPrinter(self.layout.scope(self.plan.outer, "tag"))
            for buffer, index, key, mode in printer.stores:
                after.store(buffer, index, reductions.by_lane(key), mode)
            lines += [*side_by_side, *indent([*place, *after.lines]), "}"]
        return lines

    def _scalar_stage(self, stage: Stage, number: int) -> list[str]:
        reductions = ReductionSet(f"s{number}_", self._position(stage), False)
        printer = BodyPrinter(self.layout.scope(None, "One{}"), reductions.reduce)
        stage.body.replay(printer)
        lines = ["constexpr int which = 0;", "(void)which;", *reductions.declare("1")]
        body = [*self._ending(stage, "1"), *printer.lines]
        lines += unbounded(stage, nest(stage.inner, body))
        lines += reductions.settle("1")
        after = BodyPrinter(self.layout.scope(None, "One{}"))
        for buffer, index, key, mode in printer.stores:
            after.store(buffer, index, reductions.by_lane(key), mode)
        return [*lines, *after.lines]

    def _row_stage(self, stage: Stage, number: int) -> list[str]:
        """Lanes along one inner loop, which becomes the innermost."""
        symbol = self.plan.inner[number]
        vector = next(v for v in stage.inner if v.symbol == symbol)
        scope = self.layout.scope(symbol, "tag")
        kept = reduced_stores(stage, scope)
        reductions = self._reductions(stage, number, True, is_read_again=bool(kept))
        printer = BodyPrinter(scope, reductions.reduce)
        stage.body.replay(printer)
        is_light = not calls_functions(stage.body)
        copies = ROW_COPIES if reductions.accumulators and is_light else 1
        name = vector.symbol.name
        lines = reductions.declare(str(copies))
        step = _step(name, printer.lines)
        again = _step(name, reductions.steps_on(kept, scope)) if kept else []
        others = tuple(v for v in stage.inner if v.symbol != symbol)
        lines += self._row_nest(reductions, others, vector, copies, step, again)
        if reductions.accumulators:
            lines += reductions.join(copies)
            after = BodyPrinter(self.layout.scope(None, "One{}"))
            for buffer, index, key, mode in printer.stores:
                after.store(buffer, index, reductions.joined(key), mode)
            lines += after.lines
        return lines

    def _row_nest(
        self,
        reductions: ReductionSet,
        others: tuple[LoopVariable, ...],
        vector: LoopVariable,
        copies: int,
        step: list[str],
        again: list[str],
    ) -> list[str]:
        """The loops of a row stage, ``vector`` innermost; a long total in chunks.

        ``step`` defines the function that runs the body once: it sees the variables of the other loops.
        ``again`` defines what runs in its place where a run is repeated, if not the same.
        """
        name, size = vector.symbol.name, size_of(vector)
        extent = static_int(vector.size)
        number = str(copies)
        chunk = CHUNK * copies * self.layout.lanes
        is_long = extent is None or extent > 2 * chunk
        row = [*step, *_either(again, self._row_loop(name, "0", size, extent, copies))]
        if not reductions.loses_digits or not (is_long or others):
            return one_run(reductions, nest(others, row), number)
        if is_long:
            part = self._row_loop(name, f"{name}_chunk", f"{name}_end", None, copies)
            part = _either(again, part)
            row = [
                *step,
                f"for (i64 {name}_chunk = 0; {name}_chunk < {size}; {name}_chunk += {chunk}) {{",
                f"  const i64 {name}_end = min_index({name}_chunk + {chunk}, {size});",
                *indent(in_run(reductions, part, number)),
                "}",
            ]
            return totalled(reductions, nest(others, row), number)
        rows = max(chunk // max(extent or 1, 1), 1)
        runs = in_runs(reductions, others[-1], rows, row, number)
        return totalled(reductions, nest(others[:-1], runs), number)

    def _row_loop(
        self, name: str, low: str, high: str, extent: int | None, copies: int
    ) -> list[str]:
        """Full vectors, ``copies`` at a time where there are accumulators for them, then the tail.

        ``extent`` is the number of elements where it is known.
        """
        lines = [f"i64 {name} = {low};"]
        single = f"for (; {name} + lanes <= {high}; {name} += lanes) step(Full{{}}, 0, {name});"
        if copies > 1 and (extent is None or extent >= copies * self.layout.lanes):
            width = f"{copies} * lanes"
            lines.append(f"for (; {name} + {width} <= {high}; {name} += {width}) {{")
            lines += [f"  step(Full{{}}, {k}, {name} + {k} * lanes);" for k in range(copies)]
            lines.append("}")
            if extent is None or extent % (copies * self.layout.lanes) >= self.layout.lanes:
                lines.append(single)
        elif extent is None or extent >= self.layout.lanes:
            lines.append(single)
        if extent is None or extent % self.layout.lanes:
            lines.append(f"if ({name} < {high}) step(Part({high} - {name}), 0, {name});")
        return ["{", *indent(lines), "}"]


def _step(name: str, body: list[str]) -> list[str]:
    """The function ``step``, which runs ``body`` on the vector at ``name``."""
    head = f"auto step = [&](auto tag, const int which, const i64 {name}) WEFT_LAMBDA {{"
    return [head, *indent(["(void)which;", *body]), "};"]


def _either(again: list[str], loop: list[str]) -> list[str]:
    """``loop`` with the step that ``again`` defines where a run is repeated, with the outer one else."""
    if not again:
        return loop
    return ["if (repeats) {", *indent([*again, *loop]), "} else {", *indent(loop), "}"]
