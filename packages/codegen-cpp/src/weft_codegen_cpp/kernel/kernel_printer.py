"""Prints a kernel as one C++ function over a range of units of its outer loops."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field

import sympy
from weft_loop_ir import Buffer, Kernel, LoopVariable, SizeFloat, Stage, print_index

from weft_codegen_cpp.kernel.body_printer import BodyPrinter, Memory, Scope
from weft_codegen_cpp.kernel.dtypes import memory_type
from weft_codegen_cpp.kernel.expressions import INDEX, static_int
from weft_codegen_cpp.kernel.invariants import Tables, with_tables
from weft_codegen_cpp.kernel.loop_structure import (
    HEAVY,
    VectorPlan,
    expressions_of,
    instructions_of,
    merge_loops,
    plan_vectors,
    stage_nanoseconds,
)
from weft_codegen_cpp.kernel.reductions import ReductionSet
from weft_codegen_cpp.kernel.tiles import plan_tiles, print_tile_reads, tile_names

COLUMN_BLOCKS = 8  # vectors side by side in a column reduction: 128 floats with 16 lanes
ROW_COPIES = 4  # accumulators of a row reduction
POINTWISE_BLOCK = 1024  # elements in the unit of work of a one-loop kernel
TILES_ABREAST = (
    4  # tiles beside each other that one block of columns runs through: whole cache lines
)
TILED_COLUMNS = 256  # columns in such a block: their lines stay in the cache for the next tile
ENOUGH_UNITS = 32  # how many units to split a kernel into before the loops inside a unit begin
CHUNK = 32  # steps of a running total before it joins a total of totals
STACK_BYTES = 32768  # a larger local buffer comes from malloc


PLACEHOLDER = "@kernel@"  # stands for the function's name in `PrintedKernel`


@dataclass(frozen=True)
class PrintedKernel:
    """A kernel in C++ and what a caller passes: pointers in the order of ``buffers``, symbols, scalars.

    ``declaration`` is the structure that a caller fills and the function's prototype, ``definition`` the
    function.  Both name buffers by position and the kernel by :data:`PLACEHOLDER`: kernels that do the same
    have the same texts and need to be compiled only once, under one ``name``.
    """

    name: str
    declaration: str
    definition: str
    buffers: tuple[str, ...]
    symbols: tuple[sympy.Symbol, ...]
    scalars: tuple[SizeFloat, ...]
    units: str  # C++ expression over the symbols: the number of units of work
    nanoseconds: str  # C++ expression: the estimated time of the whole kernel
    checks_indices: bool
    values: Mapping[sympy.Symbol, int] = field(default_factory=dict)  # symbols that aren't sizes


def print_kernel(
    kernel: Kernel, buffers: Mapping[str, Buffer], lanes: int, *, shares_memory: bool = False
) -> PrintedKernel:
    """``kernel`` as the function ``kernel.name(const void*, i64 begin, i64 end)``.

    ``shares_memory`` says that a buffer that it writes lies in the memory of one that it reads.
    """
    return _KernelPrinter(merge_loops(kernel), buffers, lanes, shares_memory).print()


class _KernelPrinter:
    def __init__(
        self, kernel: Kernel, buffers: Mapping[str, Buffer], lanes: int, shares_memory: bool
    ) -> None:
        self.qualifier = "const" if shares_memory else "__restrict const"
        self.buffers = buffers
        self.lanes = lanes
        self.plan: VectorPlan = plan_vectors(kernel, lanes)
        self.kernel: Kernel
        self.tables: Tables | None
        self.kernel, self.tables = with_tables(kernel, self.plan.outer)
        self.bodies = [stage.body for stage in kernel.stages]
        self.numbers = itertools.count()
        used = dict.fromkeys((*kernel.reads, *kernel.writes))
        instructions = [i for body in self.bodies for i in instructions_of(body)]
        for instruction in instructions:
            if instruction.operation in ("load", "store"):
                used[instruction.arguments[0]] = None
        local = {b.name for b in kernel.local_buffers}
        self.used = tuple(name for name in used if name not in local)
        self.has_reduction = any(i.operation == "reduction" for i in instructions)
        dtypes = {name: buffers[name].layout.dtype for name in self.used}
        self.has_loop = any(s.is_sequential for s in kernel.stages)
        self.tiles = None
        if not (self.has_reduction or self.has_loop):
            self.tiles = plan_tiles(kernel, self.plan.outer, dtypes, lanes)
        self.columns = self._column_blocks()
        self.loops = self._ordered_loops()
        self.pointers = {name: f"p{k}" for k, name in enumerate(self.used)}
        self.rows = {b.name: f"row{k}" for k, b in enumerate(kernel.local_buffers)}
        numbers = dict.fromkeys(i.arguments[0] for i in instructions if i.operation == "scalar")
        self.scalars = {number: f"scalar{k}" for k, number in enumerate(numbers)}
        self.checks = any(i.operation == "indirect" and i.arguments[3] for i in instructions)

    def _column_blocks(self) -> int:
        """How many vectors of the outer vectorised loop a reduction or a program's loop runs abreast."""
        if self.plan.outer is None or not (self.has_reduction or self.has_loop):
            return 1
        count = COLUMN_BLOCKS
        if self._is_heavy() and not self.has_loop:
            count = 2
        size = static_int(next(v.size for v in self.kernel.outer if v.symbol == self.plan.outer))
        while count > 1 and size is not None and size < count * self.lanes:
            count //= 2
        return count

    def _is_heavy(self) -> bool:
        return any(
            i.operation in HEAVY for s in self.kernel.stages for i in instructions_of(s.body)
        )

    def _ordered_loops(self) -> tuple[LoopVariable, ...]:
        """The outer loops, the vectorised one last, the one that tiles block before it."""

        def rank(variable: LoopVariable) -> int:
            return 2 if variable.symbol == self.plan.outer else int(self._is_tiled(variable))

        return tuple(sorted(self.kernel.outer, key=rank))

    def _is_tiled(self, variable: LoopVariable) -> bool:
        return self.tiles is not None and variable.symbol == self.tiles.variable.symbol

    # -- names -------------------------------------------------------------------------------------------

    def _symbols(self) -> tuple[sympy.Symbol, ...]:
        """Size symbols: free symbols that no loop and no ``indirect`` binds."""
        bound = {v.symbol for v in self.kernel.outer}
        free: set[sympy.Symbol] = set()
        for variable in self.kernel.outer:
            free |= variable.size.free_symbols
        for local in self.kernel.local_buffers:
            free |= local.size.free_symbols
        for stage in self.kernel.stages:
            bound |= {v.symbol for v in stage.inner}
            for variable in stage.inner:
                free |= variable.size.free_symbols
        for body in self.bodies:
            for expression in expressions_of(body):
                free |= expression.free_symbols
            for instruction in instructions_of(body):
                if instruction.operation == "indirect":
                    bound.add(instruction.arguments[1])
        return tuple(sorted(free - bound, key=lambda s: str(s.name)))

    def _size(self, variable: LoopVariable) -> str:
        return print_index(variable.size, INDEX)

    def _memories(self, per_lane: bool) -> dict[str, Memory]:
        memories = {
            name: Memory(pointer, self.buffers[name].layout.dtype)
            for name, pointer in self.pointers.items()
        }
        for local in self.kernel.local_buffers:
            memories[local.name] = Memory(self.rows[local.name], local.dtype, per_lane)
        if self.tables is not None:
            memories |= {name: Memory(name, dtype) for name, dtype in self.tables.dtypes.items()}
        return memories

    def _scope(self, vector_symbol: sympy.Symbol | None, tag: str) -> Scope:
        scope = Scope(
            self._memories(self.plan.outer is not None), {}, vector_symbol, tag, self.numbers
        )
        scope.scalars = self.scalars
        if self.tiles is not None:
            line = f"{self.tiles.variable.symbol.name}_line"
            scope.tiles = {load: f"{t}[{line}]" for load, t in tile_names(self.tiles).items()}
        return scope

    # -- the function ------------------------------------------------------------------------------------

    def print(self) -> PrintedKernel:
        symbols = self._symbols()
        types = {p: memory_type(self.buffers[n].layout.dtype) for n, p in self.pointers.items()}
        fields = [f"{t}* {p};" for p, t in types.items()]
        fields += [f"i64 {s.name};" for s in symbols]
        fields += [f"f64 {name};" for name in self.scalars.values()] + ["IndexError* index_error;"]
        setup = [f"{t}* {self.qualifier} {p} = call.{p};" for p, t in types.items()]
        setup += [f"const i64 {s.name} = call.{s.name};" for s in symbols]
        setup += [f"const f64 {name} = call.{name};" for name in self.scalars.values()]
        setup += [*self._local_storage(), *self._filled_tables()]
        prototype = f"WEFT_KERNEL void {PLACEHOLDER}(const void* raw, i64 begin, i64 end)"
        declaration = [f"struct {PLACEHOLDER}_call {{", *_indent(fields), "};", f"{prototype};"]
        body = [f"const auto& call = *(const {PLACEHOLDER}_call*)raw;", *setup, *self._units_loop()]
        definition = [f"{prototype} {{", *_indent(body), "}"]
        return PrintedKernel(
            self.kernel.name,
            "\n".join(declaration) + "\n",
            "\n".join(definition) + "\n",
            self.used,
            symbols,
            tuple(self.scalars),
            self._unit_count(),
            self._cost(),
            self.checks,
        )

    def _local_storage(self) -> list[str]:
        copies = self.lanes * self.columns if self.plan.outer is not None else 1
        lines = []
        for local in self.kernel.local_buffers:
            type_name, row = memory_type(local.dtype), self.rows[local.name]
            size = static_int(local.size)
            count = print_index(local.size * copies, INDEX)
            if size is not None and size * copies * local.dtype.itemsize <= STACK_BYTES:
                lines.append(f"alignas(64) {type_name} {row}_all[{max(size * copies, 1)}];")
            else:
                lines.append(f"Scratch<{type_name}> {row}_all({count});")
            if self.plan.outer is None:
                lines.append(f"{type_name}* const {row} = {row}_all;")
        return lines

    def _filled_tables(self) -> list[str]:
        """What is the same in every iteration of the other loops, computed before they begin."""
        if self.tables is None:
            return []
        name, size = self.tables.variable.symbol.name, self._size(self.tables.variable)
        printer = BodyPrinter(self._scope(self.tables.variable.symbol, "tag"))
        self.tables.fill.replay(printer)
        storage = [
            f"alignas(64) {memory_type(dtype)} {table}[{size}];"
            for table, dtype in self.tables.dtypes.items()
        ]
        fill = [f"auto fill = [&](auto tag, const i64 {name}) WEFT_LAMBDA {{"]
        fill += [*_indent(printer.lines), "};"]
        loop = [
            f"for (i64 {name} = 0; {name} < {size}; {name} += lanes) {{",
            f"  if ({name} + lanes <= {size}) fill(Full{{}}, {name});",
            f"  else fill(Part({size} - {name}), {name});",
            "}",
        ]
        return [*storage, "{", *_indent([*fill, *loop]), "}"]

    # -- units: a prefix of the outer loops, flattened -------------------------------------------------

    def _prefix(self) -> int:
        """How many outer loops a unit's number is decoded into."""
        if not self.loops:
            return 0
        count, product = 0, 1
        for variable in self.loops:
            if count and product >= ENOUGH_UNITS:
                break
            size = static_int(variable.size)
            if variable.symbol == self.plan.outer and count and size is None:
                break
            count += 1
            if self._is_tiled(variable) and size is not None:
                size = -(-size // (TILES_ABREAST * self.lanes))
            product = product * size if size is not None else ENOUGH_UNITS
        return count

    def _block(self) -> int:
        """Elements of the vectorised outer loop in one unit, when the unit number includes it."""
        in_blocks = self.has_reduction or self.has_loop
        return self.lanes * self.columns if in_blocks else POINTWISE_BLOCK

    def _counts(self) -> list[str]:
        """The number of values of each loop of the prefix, in units."""
        counts = []
        for variable in self.loops[: self._prefix()]:
            size = self._size(variable)
            if variable.symbol == self.plan.outer:
                size = f"(({size} + {self._block() - 1}) / {self._block()})"
            elif self._is_tiled(variable):
                abreast = TILES_ABREAST * self.lanes
                size = f"(({size} + {abreast - 1}) / {abreast})"
            counts.append(size)
        return counts

    def _unit_count(self) -> str:
        return " * ".join(f"i64({c})" for c in self._counts()) or "i64(1)"

    def _cost(self) -> str:
        terms = []
        outer = [self._size(v) for v in self.kernel.outer]
        for stage in self.kernel.stages:
            lanes = self.lanes if self.plan.outer is not None or stage.inner else 1
            sizes = outer + [self._size(v) for v in stage.inner]
            cost = f"{stage_nanoseconds(stage.body, lanes):.3f}"
            terms.append(" * ".join([cost, *(f"f64({s})" for s in sizes)]))
        return " + ".join(terms)

    def _units_loop(self) -> list[str]:
        """Loops over the units, then over the outer loops inside one unit."""
        prefix = self._prefix()
        if prefix == 0:
            return ["(void)begin, (void)end;", *self._iteration()]
        ahead = self.loops[:prefix]
        last = ahead[-1]
        if prefix == 1 and last.symbol != self.plan.outer:
            name = self._unit_name(last)
            head = f"for (i64 {name} = begin; {name} < end; ++{name}) {{"
            return [head, *_indent([*self._first_of_tile(last), *self._inside(prefix)]), "}"]
        if prefix == 1:
            size = self._size(last)
            bounds = [
                f"const i64 low = begin * {self._block()};",
                f"const i64 high = min_index(end * {self._block()}, {size});",
            ]
            return [*bounds, *self._vector_loop("low", "high")]
        lines = ["for (i64 unit = begin; unit < end; ++unit) {", "  i64 rest = unit;"]
        counts = self._counts()
        for position in range(prefix - 1, -1, -1):
            variable = ahead[position]
            name = self._unit_name(variable)
            if position:
                lines.append(f"  const i64 {name} = rest % {counts[position]};")
                lines.append(f"  rest /= {counts[position]};")
            else:
                lines.append(f"  const i64 {name} = rest;")
            lines += _indent(self._first_of_tile(variable))
        if last.symbol == self.plan.outer:
            size = self._size(last)
            lines.append(f"  const i64 low = block * {self._block()};")
            lines.append(f"  const i64 high = min_index(low + {self._block()}, {size});")
            lines += _indent(self._vector_loop("low", "high"))
        else:
            lines += _indent(self._inside(prefix))
        return [*lines, "}"]

    def _unit_name(self, variable: LoopVariable) -> str:
        """The C++ name of a loop of the prefix: it may count blocks."""
        if variable.symbol == self.plan.outer:
            return "block"
        return f"{variable.symbol.name}_tile" if self._is_tiled(variable) else str(variable.symbol)

    def _first_of_tile(self, variable: LoopVariable) -> list[str]:
        if not self._is_tiled(variable):
            return []
        name = variable.symbol.name
        return [f"const i64 {name}_group = {name}_tile * {TILES_ABREAST * self.lanes};"]

    def _inside(self, position: int) -> list[str]:
        """The outer loops from ``position`` on."""
        if position == len(self.loops):
            return self._iteration()
        variable = self.loops[position]
        if variable.symbol == self.plan.outer:
            return self._vector_loop("0", self._size(variable))
        name, step = variable.symbol.name, "1"
        if self._is_tiled(variable):
            name, step = f"{name}_group", str(TILES_ABREAST * self.lanes)
        head = f"for (i64 {name} = 0; {name} < {self._size(variable)}; {name} += {step}) {{"
        return [head, *_indent(self._inside(position + 1)), "}"]

    def _vector_loop(self, low: str, high: str) -> list[str]:
        """The vectorised outer loop; with tiles, in blocks of columns that several tiles run through."""
        if self.tiles is None:
            return self._vectors(low, high)
        assert self.plan.outer is not None
        name, tiled = self.plan.outer.name, self.tiles.variable.symbol.name
        end = f"{tiled}_group + {TILES_ABREAST * self.lanes}"
        first = f"{tiled}_first"
        inner = [
            f"for (i64 {first} = {tiled}_group; {first} < {tiled}_end; {first} += lanes) {{",
            *_indent(self._vectors(f"{name}_block", f"{name}_end")),
            "}",
        ]
        return [
            f"const i64 {tiled}_end = min_index({end}, {self._size(self.tiles.variable)});",
            f"for (i64 {name}_block = {low}; {name}_block < {high}; {name}_block += {TILED_COLUMNS}) {{",
            f"  const i64 {name}_end = min_index({name}_block + {TILED_COLUMNS}, {high});",
            *_indent(inner),
            "}",
        ]

    def _vectors(self, low: str, high: str) -> list[str]:
        """Blocks of several vectors, single vectors, then the tail."""
        assert self.plan.outer is not None
        name = self.plan.outer.name
        lines = [f"auto columns = [&](auto tag, auto count, const i64 {name}_first) WEFT_LAMBDA {{"]
        lines += _indent(self._iteration() if self.tiles is None else self._tile_iteration())
        lines += ["};", f"i64 {name} = {low};"]
        extent = static_int(next(v.size for v in self.loops if v.symbol == self.plan.outer))
        width = self.columns * self.lanes
        if self.columns > 1:
            lines.append(
                f"for (; {name} + {width} <= {high}; {name} += {width}) "
                f"columns(Full{{}}, Count<{self.columns}>{{}}, {name});"
            )
        if extent is None or (extent >= self.lanes and (self.columns == 1 or extent % width)):
            lines.append(
                f"for (; {name} + lanes <= {high}; {name} += lanes) "
                f"columns(Full{{}}, Count<1>{{}}, {name});"
            )
        if extent is None or extent % self.lanes:
            lines.append(
                f"if ({name} < {high}) columns(Part({high} - {name}), Count<1>{{}}, {name});"
            )
        return lines

    # -- one outer iteration: the stages ----------------------------------------------------------------

    def _iteration(self) -> list[str]:
        lines = []
        for number, stage in enumerate(self.kernel.stages):
            lines.append("{")
            if self.plan.outer is not None:
                lines += _indent(self._column_stage(stage, number))
            elif self.plan.inner[number] is not None:
                lines += _indent(self._row_stage(stage, number))
            else:
                lines += _indent(self._scalar_stage(stage, number))
            lines.append("}")
        return lines

    def _tile_iteration(self) -> list[str]:
        """Read the tiles of one block, then run the body on each of their lines."""
        assert self.tiles is not None
        assert self.plan.outer is not None
        name = self.tiles.variable.symbol.name
        memories = self._memories(True)
        head = f"for (int {name}_line = 0; {name}_line < {name}_count; ++{name}_line) {{"
        place = f"const i64 {name} = {name}_first + {name}_line;"
        return [
            *print_tile_reads(self.tiles, self.plan.outer, memories),
            head,
            *_indent([place, f"(void){name};", *self._iteration()]),
            "}",
        ]

    def _position(self, stage: Stage) -> sympy.Expr:
        """The row-major position in the stage's inner loops."""
        position: sympy.Expr = sympy.S.Zero
        for variable in stage.inner:
            position = position * variable.size + variable.symbol
        return position

    def _column_stage(self, stage: Stage, number: int) -> list[str]:
        """All of the stage with lanes along the outer vectorised loop, ``count`` vectors side by side."""
        assert self.plan.outer is not None
        name = self.plan.outer.name
        reductions = ReductionSet(f"s{number}_", self._position(stage), True)
        printer = BodyPrinter(self._scope(self.plan.outer, "tag"), reductions.reduce)
        stage.body.replay(printer)
        place = [f"const i64 {name} = {name}_first + which * lanes;", f"(void){name};"]
        for local in self.kernel.local_buffers:
            size, row = print_index(local.size, INDEX), self.rows[local.name]
            type_name = memory_type(local.dtype)
            place.append(f"{type_name}* const {row} = {row}_all + which * ({size}) * lanes;")
            place.append(f"(void){row};")
        # of several vectors, a loop's iterations overlap without being unrolled
        unroll = "" if self.has_loop and self._is_heavy() else "WEFT_UNROLL(8) "
        side_by_side = [f"{unroll}for (int which = 0; which < count.value; ++which) {{"]
        body = [*side_by_side, *_indent([*place, *printer.lines]), "}"]
        lines = [*reductions.declare("count.value")]
        lines += self._chunked(reductions, stage.inner, body, "count.value")
        if printer.stores:
            after = BodyPrinter(self._scope(self.plan.outer, "tag"))
            for buffer, index, key, mode in printer.stores:
                after.store(buffer, index, reductions.by_lane(key), mode)
            lines += [*side_by_side, *_indent([*place, *after.lines]), "}"]
        return lines

    def _chunked(
        self,
        reductions: ReductionSet,
        loops: tuple[LoopVariable, ...],
        body: list[str],
        copies: str,
    ) -> list[str]:
        """The nest of ``loops``; a long one in chunks, each with a total of its own."""
        if not loops or not reductions.loses_digits:
            return [*self._nest(loops, body), *reductions.settle(copies)]
        last = loops[-1]
        extent = static_int(last.size)
        if extent is None or extent > 2 * CHUNK:
            run = self._runs(reductions, last, CHUNK, body, copies)
        elif len(loops) == 1:
            return [*self._nest(loops, body), *reductions.settle(copies)]
        else:
            run = self._run(reductions, self._nest((last,), body), copies)
        return self._totalled(reductions, self._nest(loops[:-1], run), copies)

    def _run(self, reductions: ReductionSet, body: list[str], copies: str) -> list[str]:
        """``body`` with accumulators of its own, which then join the totals."""
        return [*reductions.start_run(copies), *body, *reductions.end_run(copies)]

    def _runs(
        self, reductions: ReductionSet, loop: LoopVariable, step: int, body: list[str], copies: str
    ) -> list[str]:
        """The loop over ``body`` in chunks of ``step`` iterations, each with accumulators of its own."""
        name, size = loop.symbol.name, self._size(loop)
        chunk = [
            f"for (i64 {name} = {name}_chunk; {name} < {name}_end; ++{name}) {{",
            *_indent(body),
            "}",
        ]
        return [
            f"for (i64 {name}_chunk = 0; {name}_chunk < {size}; {name}_chunk += {step}) {{",
            f"  const i64 {name}_end = min_index({name}_chunk + {step}, {size});",
            *_indent(self._run(reductions, chunk, copies)),
            "}",
        ]

    def _totalled(self, reductions: ReductionSet, nest: list[str], copies: str) -> list[str]:
        """``nest``, whose runs join totals, and then the totals as the accumulators."""
        return [
            *reductions.declare_totals(copies),
            *nest,
            *reductions.take_totals(copies),
        ]

    def _nest(self, loops: tuple[LoopVariable, ...], body: list[str]) -> list[str]:
        for variable in reversed(loops):
            name = variable.symbol.name
            head = f"for (i64 {name} = 0; {name} < {self._size(variable)}; ++{name}) {{"
            body = [head, *_indent(body), "}"]
        return body

    def _scalar_stage(self, stage: Stage, number: int) -> list[str]:
        reductions = ReductionSet(f"s{number}_", self._position(stage), False)
        printer = BodyPrinter(self._scope(None, "One{}"), reductions.reduce)
        stage.body.replay(printer)
        lines = ["constexpr int which = 0;", "(void)which;", *reductions.declare("1")]
        lines += self._nest(stage.inner, printer.lines)
        lines += reductions.settle("1")
        after = BodyPrinter(self._scope(None, "One{}"))
        for buffer, index, key, mode in printer.stores:
            after.store(buffer, index, reductions.by_lane(key), mode)
        return [*lines, *after.lines]

    def _row_stage(self, stage: Stage, number: int) -> list[str]:
        """Lanes along one inner loop, which becomes the innermost."""
        symbol = self.plan.inner[number]
        vector = next(v for v in stage.inner if v.symbol == symbol)
        reductions = ReductionSet(f"s{number}_", self._position(stage), True)
        printer = BodyPrinter(self._scope(symbol, "tag"), reductions.reduce)
        stage.body.replay(printer)
        heavy = any(i.operation in HEAVY for i in instructions_of(stage.body))
        copies = ROW_COPIES if reductions.accumulators and not heavy else 1
        name = vector.symbol.name
        lines = reductions.declare(str(copies))
        step = [f"auto step = [&](auto tag, const int which, const i64 {name}) WEFT_LAMBDA {{"]
        step += [*_indent(["(void)which;", *printer.lines]), "};"]
        others = tuple(v for v in stage.inner if v.symbol != symbol)
        lines += self._row_nest(reductions, others, vector, copies, step)
        if reductions.accumulators:
            lines += reductions.join(copies)
            after = BodyPrinter(self._scope(None, "One{}"))
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
    ) -> list[str]:
        """The loops of a row stage, ``vector`` innermost; a long total in chunks.

        ``step`` defines the function that runs the body once: it sees the variables of the other loops.
        """
        name, size = vector.symbol.name, self._size(vector)
        extent = static_int(vector.size)
        number = str(copies)
        chunk = CHUNK * copies * self.lanes
        is_long = extent is None or extent > 2 * chunk
        row = [*step, *self._row_loop(name, "0", size, extent, copies)]
        if not reductions.loses_digits or not (is_long or others):
            return [*self._nest(others, row), *reductions.settle(number)]
        if is_long:
            part = self._row_loop(name, f"{name}_chunk", f"{name}_end", None, copies)
            row = [
                *step,
                f"for (i64 {name}_chunk = 0; {name}_chunk < {size}; {name}_chunk += {chunk}) {{",
                f"  const i64 {name}_end = min_index({name}_chunk + {chunk}, {size});",
                *_indent(self._run(reductions, part, number)),
                "}",
            ]
            return self._totalled(reductions, self._nest(others, row), number)
        rows = max(chunk // max(extent or 1, 1), 1)
        runs = self._runs(reductions, others[-1], rows, row, number)
        return self._totalled(reductions, self._nest(others[:-1], runs), number)

    def _row_loop(
        self, name: str, low: str, high: str, extent: int | None, copies: int
    ) -> list[str]:
        """Full vectors, ``copies`` at a time where there are accumulators for them, then the tail.

        ``extent`` is the number of elements where it is known.
        """
        lines = [f"i64 {name} = {low};"]
        single = f"for (; {name} + lanes <= {high}; {name} += lanes) step(Full{{}}, 0, {name});"
        if copies > 1 and (extent is None or extent >= copies * self.lanes):
            width = f"{copies} * lanes"
            lines.append(f"for (; {name} + {width} <= {high}; {name} += {width}) {{")
            lines += [f"  step(Full{{}}, {k}, {name} + {k} * lanes);" for k in range(copies)]
            lines.append("}")
            if extent is None or extent % (copies * self.lanes) >= self.lanes:
                lines.append(single)
        elif extent is None or extent >= self.lanes:
            lines.append(single)
        if extent is None or extent % self.lanes:
            lines.append(f"if ({name} < {high}) step(Part({high} - {name}), 0, {name});")
        return ["{", *_indent(lines), "}"]


def _indent(lines: list[str]) -> list[str]:
    return ["  " + line for line in lines]
