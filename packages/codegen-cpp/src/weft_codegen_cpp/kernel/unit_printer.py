"""Prints a kernel's outer loops: units of work, which threads share, and the loops inside of one unit."""

from __future__ import annotations

from weft_loop_ir import LoopVariable

from weft_codegen_cpp.cpu import CACHE_LINE
from weft_codegen_cpp.kernel.expressions import indent, size_of, static_int
from weft_codegen_cpp.kernel.kernel_layout import KernelLayout
from weft_codegen_cpp.kernel.stage_printer import StagePrinter

POINTWISE_BLOCK = 1024  # elements in the unit of work of a one-loop kernel
TILES_ABREAST = 4  # tiles that one block of columns runs through: whole cache lines
UNITS_THRESHOLD = 32  # how many units to split a kernel into before the loops inside a unit begin


class UnitPrinter:
    """A unit is a number that a prefix of the outer loops, flattened, is decoded from."""

    def __init__(self, layout: KernelLayout) -> None:
        self.layout = layout
        self.plan = layout.plan
        self.tiles = layout.tiles
        self.columns = layout.columns
        self.lanes = layout.lanes
        self.loops = self._ordered_loops()
        self.stages = StagePrinter(layout)

    def _ordered_loops(self) -> tuple[LoopVariable, ...]:
        """The outer loops, the vectorised one last, the one that tiles block before it."""

        def rank(variable: LoopVariable) -> int:
            return 2 if variable.symbol == self.plan.outer else int(self.layout.is_tiled(variable))

        return tuple(sorted(self.layout.kernel.outer, key=rank))

    def _prefix(self) -> int:
        """How many outer loops a unit's number is decoded into."""
        if not self.loops:
            return 0
        count, product = 0, 1
        for variable in self.loops:
            if count and product >= UNITS_THRESHOLD:
                break
            size = static_int(variable.size)
            if variable.symbol == self.plan.outer and count and size is None:
                break
            count += 1
            if self.layout.is_tiled(variable) and size is not None:
                size = -(-size // (TILES_ABREAST * self.lanes))
            product = product * size if size is not None else UNITS_THRESHOLD
        return count

    def _block(self) -> int:
        """Elements of the vectorised outer loop in one unit, when the unit number includes it."""
        in_blocks = self.layout.has_reduction or self.layout.has_loop
        return self.lanes * self.columns if in_blocks else POINTWISE_BLOCK

    def _counts(self) -> list[str]:
        """The number of values of each loop of the prefix, in units."""
        counts = []
        for variable in self.loops[: self._prefix()]:
            size = size_of(variable)
            if variable.symbol == self.plan.outer:
                size = f"(({size} + {self._block() - 1}) / {self._block()})"
            elif self.layout.is_tiled(variable):
                abreast = TILES_ABREAST * self.lanes
                size = f"(({size} + {abreast - 1}) / {abreast})"
            counts.append(size)
        return counts

    def count(self) -> str:
        return " * ".join(f"i64({c})" for c in self._counts()) or "i64(1)"

    def loop(self) -> list[str]:
        """Loops over the units, then over the outer loops inside one unit."""
        prefix = self._prefix()
        if prefix == 0:
            return ["(void)begin, (void)end;", *self.stages.iteration()]
        ahead = self.loops[:prefix]
        last = ahead[-1]
        if prefix == 1 and last.symbol != self.plan.outer:
            name = self._unit_name(last)
            head = f"for (i64 {name} = begin; {name} < end; ++{name}) {{"
            return [head, *indent([*self._first_of_tile(last), *self._inside(prefix)]), "}"]
        if prefix == 1:
            size = size_of(last)
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
            lines += indent(self._first_of_tile(variable))
        if last.symbol == self.plan.outer:
            size = size_of(last)
            lines.append(f"  const i64 low = block * {self._block()};")
            lines.append(f"  const i64 high = min_index(low + {self._block()}, {size});")
            lines += indent(self._vector_loop("low", "high"))
        else:
            lines += indent(self._inside(prefix))
        return [*lines, "}"]

    def _unit_name(self, variable: LoopVariable) -> str:
        """The C++ name of a loop of the prefix: it may count blocks."""
        if variable.symbol == self.plan.outer:
            return "block"
        return (
            f"{variable.symbol.name}_tile"
            if self.layout.is_tiled(variable)
            else str(variable.symbol)
        )

    def _first_of_tile(self, variable: LoopVariable) -> list[str]:
        if not self.layout.is_tiled(variable):
            return []
        name = variable.symbol.name
        return [f"const i64 {name}_group = {name}_tile * {TILES_ABREAST * self.lanes};"]

    def _inside(self, position: int) -> list[str]:
        """The outer loops from ``position`` on."""
        if position == len(self.loops):
            return self.stages.iteration()
        variable = self.loops[position]
        if variable.symbol == self.plan.outer:
            return self._vector_loop("0", size_of(variable))
        name, step = variable.symbol.name, "1"
        if self.layout.is_tiled(variable):
            name, step = f"{name}_group", str(TILES_ABREAST * self.lanes)
        head = f"for (i64 {name} = 0; {name} < {size_of(variable)}; {name} += {step}) {{"
        return [head, *indent(self._inside(position + 1)), "}"]

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
            *indent(self._vectors(f"{name}_block", f"{name}_end")),
            "}",
        ]
        columns = self.layout.cpu.near_bytes // CACHE_LINE  # stay in the cache for the next tile
        return [
            f"const i64 {tiled}_end = min_index({end}, {size_of(self.tiles.variable)});",
            f"for (i64 {name}_block = {low}; {name}_block < {high}; {name}_block += {columns}) {{",
            f"  const i64 {name}_end = min_index({name}_block + {columns}, {high});",
            *indent(inner),
            "}",
        ]

    def _vectors(self, low: str, high: str) -> list[str]:
        """Blocks of several vectors, single vectors, then the tail."""
        assert self.plan.outer is not None
        name = self.plan.outer.name
        lines = [f"auto columns = [&](auto tag, auto count, const i64 {name}_first) WEFT_LAMBDA {{"]
        lines += indent(
            self.stages.iteration() if self.tiles is None else self.stages.tile_iteration()
        )
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
