"""Prints attention as one Triton function: a program goes through the keys for a block of queries.

It keeps the largest score of each query so far, the sum of exponentials relative to that, and the sum of
values weighted by them; both are scaled when a larger score comes.  What is done to a score is the body of
the kernel whose place it takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import sympy
import torch
from weft_loop_ir import AttentionKernel, Buffer, Instruction, LoopBody, Operand, Value, print_index

from weft_codegen_triton.attention.narrow_positions import with_narrow_positions
from weft_codegen_triton.kernel.blocks import GRID_LIMIT, accesses, power_of_two
from weft_codegen_triton.kernel.body_printer import BodyPrinter, Text, Tile
from weft_codegen_triton.kernel.dtypes import pointer_type, triton_dtype
from weft_codegen_triton.kernel.expressions import INDEX, INT32_SAFE, magnitude
from weft_codegen_triton.kernel.kernel_printer import PLACEHOLDER, Function, PrintedKernel

MOST_WIDTH = 256
"""Elements of a query, and of a value."""
LEAST_SIDE = 16
"""Of a block that tensor cores multiply."""
SHARED_BYTES = 200 << 10


@dataclass(frozen=True)
class AttentionTile:
    """Queries of a program, keys of a step, warps, steps in flight."""

    queries: int
    keys: int
    warps: int
    stages: int


NARROW_TILES = (
    AttentionTile(128, 64, 8, 3),
    AttentionTile(64, 64, 4, 3),
    AttentionTile(128, 64, 4, 3),
    AttentionTile(128, 128, 8, 3),
    AttentionTile(64, 32, 4, 3),
)
"""What is timed for 16 bits and at most 128 elements of a query: the first where all keys are seen.

The second is for few queries, and where a mask bounds the keys.  ms of both on an H200, 2048 x 2048 scores:
4 x 12 heads with a bias 0.217 and 0.237, 4 x 16 heads with a causal ALiBi 0.204 and 0.186.
"""
WIDE_TILES = (
    AttentionTile(128, 64, 8, 2),
    AttentionTile(64, 32, 4, 2),
    AttentionTile(64, 64, 8, 2),
    AttentionTile(128, 32, 8, 2),
)
FLOAT_TILES = (
    AttentionTile(64, 32, 8, 2),
    AttentionTile(32, 32, 4, 2),
    AttentionTile(64, 64, 8, 2),
)
"""In float32, which plain arithmetic multiplies: tensor cores would round."""
WHOLE = 128
"""A multiple of every tile's keys."""
ENOUGH_PROGRAMS = 132
"""Programs with which the larger blocks leave no processor of a large GPU idle."""


def has_template(attention: AttentionKernel) -> bool:
    """Whether there is a function for ``attention``: rows of queries and values have known, short sizes."""
    widths = (attention.query.size[2], attention.value.size[2])
    return all(n.is_Integer and int(n) <= MOST_WIDTH for n in widths)


def print_attention(attention: AttentionKernel, buffers: Mapping[str, Buffer]) -> PrintedKernel:
    """The function of ``attention``, for the tile that suits its size; others are its alternatives."""
    return _AttentionPrinter(attention, buffers).print()


class _ScorePrinter(BodyPrinter):
    """Prints what is done to scores, whose absolute errors alone matter: they are exponents."""

    def tanh(self, value: Text) -> Text:
        function = "weft.tanh_of_exponent" if self.for_half else "math.tanh"
        return self.name(f"{function}({value.code})", value.dtype, value.axes)


class _AttentionPrinter:
    def __init__(self, attention: AttentionKernel, buffers: Mapping[str, Buffer]) -> None:
        self.attention = attention
        self.buffers = buffers
        names = tuple(dict.fromkeys((*attention.reads, *attention.writes)))
        self.names = names
        self.pointers = {
            n: f"{'out' if n in attention.writes else 'in'}{k}_ptr" for k, n in enumerate(names)
        }
        self.batches, self.queries, self.depth = attention.query.size
        _, self.keys, self.columns = attention.value.size
        self.dtype = buffers[attention.result].layout.dtype
        loops = (*attention.outer, attention.key_loop)
        self.sizes = {loop.symbol: loop.size for loop in loops}
        self.wide = self._needs_int64()
        self.batch_axis = 1 if self.batches.is_Integer and int(self.batches) <= GRID_LIMIT else 0
        self.score = attention.score
        if not self.wide:
            self.score = with_narrow_positions(attention.score, self.sizes)
        self.printer = self._body_printer()

    # -- the function ------------------------------------------------------------------------------------

    def print(self) -> PrintedKernel:
        self._begin()
        self._step()
        self._end()
        printer = self.printer
        symbols = self._size_symbols()
        parameters = [
            (self.pointers[n], pointer_type(self.buffers[n].layout.dtype)) for n in self.names
        ]
        parameters += [(s.name, "i64") for s in symbols]
        parameters += [(name, "i64") for name in printer.scalars.values()]
        tiles = self._tiles()
        functions = []
        for tile in tiles:
            constants = [("YBLOCK", tile.queries), ("XBLOCK", tile.keys)]
            grid_blocks = ("YBLOCK",)
            if self.batch_axis == 0:
                constants.append(("BATCHES", 1))
                grid_blocks = ("BATCHES", "YBLOCK")  # type: ignore[assignment]
            arguments = [name for name, _ in parameters]
            arguments += [f"{name}: tl.constexpr" for name, _ in constants]
            head = ["@triton.jit", f"def {PLACEHOLDER}({', '.join(arguments)}):"]
            functions.append(
                Function(
                    "\n".join([*head, *printer.lines, ""]),
                    tuple(parameters),
                    tuple(constants),
                    tile.warps,
                    printer.uses_assert,
                    grid_blocks,
                    ("XBLOCK",),
                    True,
                    stages=tile.stages,
                )
            )
        counts, blocks = (self.queries, self.batches), (tiles[0].queries, 1)
        if self.batch_axis == 0:
            counts, blocks = counts[::-1], blocks[::-1]
        return PrintedKernel(
            replace(functions[0], alternatives=tuple(functions[1:])),
            self.names,
            (),
            symbols,
            tuple(printer.scalars),
            counts,
            blocks,
        )

    def _tiles(self) -> list[AttentionTile]:
        """Those whose blocks fit, the one that suits the size first."""
        depth, columns = self._padded(self.depth), self._padded(self.columns)
        query, value = (
            self.buffers[o.buffer].layout.dtype.itemsize
            for o in (self.attention.query, self.attention.value)
        )
        tiles = (
            FLOAT_TILES if max(query, value) > 2 else NARROW_TILES if depth <= 128 else WIDE_TILES
        )
        fitting = [
            t
            for t in tiles
            if t.queries * depth * query + t.keys * t.stages * (depth * query + columns * value)
            <= SHARED_BYTES
        ]
        few = self.queries.is_Integer and int(self.queries) <= tiles[1].queries
        if self.queries.is_Integer and self.batches.is_Integer:
            programs = -(-int(self.queries) // tiles[0].queries) * int(self.batches)
            few = few or programs < ENOUGH_PROGRAMS
        is_bounded = self.attention.bounds is not None and tiles is NARROW_TILES
        first = tiles[1] if few or is_bounded else tiles[0]
        return sorted(fitting, key=lambda t: t is not first)

    def _padded(self, width: sympy.Expr) -> int:
        return max(LEAST_SIDE, power_of_two(int(width)))

    def _emit(self, *lines: str) -> None:
        for line in lines:
            self.printer.emit(line)

    # -- before the keys ---------------------------------------------------------------------------------

    def _begin(self) -> None:
        depth, columns = self._padded(self.depth), self._padded(self.columns)
        wide = ".to(tl.int64)" if self.wide else ""
        block_axis = 1 - self.batch_axis
        self._emit(
            f"batch = tl.program_id({self.batch_axis}){wide}",
            f"block = tl.num_programs({block_axis}) - 1 - tl.program_id({block_axis})",
            f"first = block{wide} * YBLOCK",
            "y = first + tl.arange(0, YBLOCK)",
            "yindex = y[:, None]",
            f"ymask = yindex < {print_index(self.queries, INDEX)}",
            f"depth = tl.arange(0, {depth})",
            f"column = tl.arange(0, {columns})[None, :]",
        )
        attention = self.attention
        query = self._place(attention.query, "yindex", "depth[None, :]")
        self._emit(
            f"query = tl.load({query}, {self._mask('ymask', 'depth[None, :]', self.depth)}, other=0.0)",
            f"key_column = {self._place(attention.key, 'depth[:, None]', None)}",
            f"value_row = {self._place(attention.value, None, 'column')}",
            'largest = tl.full([YBLOCK, 1], float("-inf"), tl.float32)',
            "total = tl.zeros([YBLOCK, 1], dtype=tl.float32)",
            f"sums = tl.zeros([YBLOCK, {columns}], dtype=tl.float32)",
        )
        self._name_loops()
        _invariant(self.score, attention.scores, attention.key_loop.symbol).replay(self.printer)

    def _place(self, operand: Operand, row: str | None, column: str | None) -> str:
        """Where the elements of the matrix ``batch`` are, at ``row`` and ``column`` where these are given."""
        names = {Operand.batch: "batch" if self.wide else "batch.to(tl.int64)"}
        parts = [self.pointers[operand.buffer], print_index(operand.base, INDEX, names)]
        for index, step in zip((row, column), operand.steps, strict=True):
            if index is not None:
                parts.append(f"{index} * {print_index(step, INDEX)}")
        return " + ".join(parts)

    def _mask(self, mask: str, index: str, width: sympy.Expr) -> str:
        """``mask`` and that ``index`` is below ``width``, if that isn't always so."""
        if self._padded(width) == width:
            return mask
        inside = f"({index} < {int(width)})"
        return f"({mask}) & {inside}" if mask else inside

    def _name_loops(self) -> None:
        """Print the loops' variables from the matrix and its line."""
        lines, printer = self.attention.lines, self.printer
        tile = printer.tile
        for loop in self.attention.outer:
            tile.names[loop.symbol], tile.symbol_axes[loop.symbol] = "0", frozenset()
        for digit in lines.digits:
            inside = sympy.cancel(digit.step / lines.queries)
            if lines.query is not None and digit.loop.symbol in lines.query.free_symbols:
                place, step, extent, axes = "yindex", digit.step, lines.queries, frozenset("y")
            elif lines.query is not None:
                place, step, extent, axes = "batch", inside, lines.batches, frozenset()
            else:
                row = f"(batch * {print_index(lines.queries, INDEX)} + yindex)"
                place, step, axes = row, digit.step, frozenset("y")
                extent = lines.batches * lines.queries
            code = place if step == 1 else f"{place} // {print_index(step, INDEX)}"
            if sympy.expand(step * digit.loop.size - extent) != 0:
                code = f"({code}) % {print_index(digit.loop.size, INDEX)}"
            name = digit.loop.symbol.name
            printer.emit(f"{name} = {code}")
            tile.names[digit.loop.symbol], tile.symbol_axes[digit.loop.symbol] = name, axes

    # -- a block of keys ---------------------------------------------------------------------------------

    def _step(self) -> None:
        attention, printer = self.attention, self.printer
        is_whole = self.keys.is_Integer and int(self.keys) % WHOLE == 0
        keys = print_index(self.keys, INDEX)
        key_step = print_index(attention.key.steps[1], INDEX)
        value_step = print_index(attention.value.steps[0], INDEX)
        key_mask = self._mask("" if is_whole else "xmask", "depth[:, None]", self.depth)
        value_mask = self._mask("" if is_whole else f"x[:, None] < {keys}", "column", self.columns)
        self._emit(f"for start in {self._range(keys)}:")
        printer.indent += 1
        wide = ".to(tl.int64)" if self.wide else ""
        self._emit(
            f"x = start + tl.arange(0, XBLOCK){wide}",
            "xindex = x[None, :]",
            f"xmask = xindex < {keys}",
        )
        if is_whole:
            printer.lines.pop()
            printer.tile.masks.pop("x")
        self._emit(
            f"keys = tl.load(key_column + xindex * {key_step}{_masked(key_mask)})",
            'score = tl.dot(query, keys, input_precision="ieee")',
        )
        symbol = attention.key_loop.symbol
        printer.tile.names[symbol], printer.tile.symbol_axes[symbol] = "xindex", frozenset("x")
        self._bind_scores()
        element = self.score.replay(printer).code
        if not is_whole:
            element = f'tl.where(xmask, {element}, float("-inf"))'
        self._emit(
            f"element = {element}",
            "higher = tl.maximum(largest, tl.max(element, 1)[:, None])",
            'shift = tl.where(higher == float("-inf"), 0.0, higher)',
            "factor = tl.exp(largest - shift)",
            "share = tl.exp(element - shift)",
            "total = total * factor + tl.sum(share, 1)[:, None]",
            "largest = higher",
            f"values = tl.load(value_row + x[:, None] * {value_step}{_masked(value_mask)})",
            f"share = share.to({triton_dtype(self.dtype)})",
            'sums = tl.dot(share, values, sums * factor, input_precision="ieee")',
        )
        printer.indent -= 1

    def _range(self, keys: str) -> str:
        """The first keys of the blocks that a block of queries may see."""
        bounds = self.attention.bounds
        start, stop = "0", keys
        if bounds is not None and bounds.first is not None:
            first = f"tl.maximum(first + {print_index(bounds.first, INDEX)}, 0)"
            start = f"math.bound({first} // XBLOCK * XBLOCK)"
        if bounds is not None and bounds.last is not None:
            stop = f"tl.minimum(first + YBLOCK + {print_index(bounds.last, INDEX)}, {keys})"
        if not stop.isdigit():
            stop = f"math.bound({stop})"
        return f"range({start}, {stop}, XBLOCK)"

    def _bind_scores(self) -> None:
        attention = self.attention
        for instruction in attention.score.instructions:
            if instruction.operation == "load" and instruction.arguments[0] == attention.scores:
                place = self.printer.index(instruction.arguments[1])[0]
                score = Text("score", torch.float32, frozenset("yx"))
                self.printer.local[attention.scores, place] = score

    # -- after the keys ----------------------------------------------------------------------------------

    def _end(self) -> None:
        layout = self.buffers[self.attention.result].layout
        stride = (sympy.S.Zero,) * (3 - len(layout.stride)) + layout.stride
        result = Operand(
            self.attention.result,
            (self.batches, self.queries, self.columns),
            layout.offset + Operand.batch * stride[0],
            stride[1:],
        )
        self._emit("result = sums / total")
        if self.attention.hidden_are_zero:
            self._emit("result = tl.where(total == 0.0, 0.0, result)")
        mask = self._mask("ymask", "column", self.columns)
        place = self._place(result, "yindex", "column")
        self._emit(f"tl.store({place}, result.to({triton_dtype(self.dtype)}), {mask})")

    # -- facts -------------------------------------------------------------------------------------------

    def _body_printer(self) -> BodyPrinter:
        """A printer for what is done to a score, at a tile of lines and keys."""
        tile = Tile(("y", "x"), "[YBLOCK, XBLOCK]", "[1, 1]", sizes=self.sizes)
        tile.masks = {"y": "ymask", "x": "xmask"}

        def dtype_of(name: str) -> torch.dtype:
            return self.buffers[name].layout.dtype

        registers = frozenset((self.attention.scores,))
        printer = _ScorePrinter(tile, self.pointers, dtype_of, registers, wide=self.wide)
        printer.for_half = self.dtype.itemsize == 2
        return printer

    def _needs_int64(self) -> bool:
        """Whether a place within a matrix, or an index of what is done to scores, may pass 2**31."""
        attention = self.attention
        places = [
            n * step
            for operand in (attention.query, attention.key, attention.value)
            for n, step in zip(operand.size[1:], operand.steps, strict=True)
        ]
        places += accesses(attention.score, {attention.scores})
        places.append(self.batches * self.queries)
        return any(magnitude(place, self.sizes) >= INT32_SAFE for place in places)

    def _size_symbols(self) -> tuple[sympy.Symbol, ...]:
        """The symbols of sizes that the function mentions, by name."""
        attention = self.attention
        found: set[sympy.Symbol] = set()
        for operand in (attention.query, attention.key, attention.value):
            for expression in (*operand.size, operand.base, *operand.steps):
                found |= expression.free_symbols
        layout = self.buffers[attention.result].layout
        for expression in (
            *layout.stride,
            layout.offset,
            *(d.step for d in attention.lines.digits),
        ):
            found |= expression.free_symbols
        found |= _symbols(attention.score)
        bound = {
            Operand.batch,
            attention.key_loop.symbol,
            *(loop.symbol for loop in attention.outer),
        }
        return tuple(sorted(found - bound, key=lambda s: str(s.name)))


def _masked(mask: str) -> str:
    return f", {mask}, other=0.0" if mask else ""


def _symbols(body: LoopBody) -> set[sympy.Symbol]:
    """The symbols that a body mentions and does not define."""
    found: set[sympy.Symbol] = set()
    defined: set[sympy.Symbol] = set()
    for instruction in body.instructions:
        if instruction.operation == "indirect":
            defined.add(instruction.arguments[1])
        for argument in instruction.arguments:
            if isinstance(argument, sympy.Expr):
                found |= argument.free_symbols
            elif isinstance(argument, LoopBody):
                found |= _symbols(argument)
    return found - defined


def _invariant(body: LoopBody, scores: str, key: sympy.Symbol) -> LoopBody:
    """What ``body`` computes that is the same for all keys: printed first, it is not printed again."""
    kept: dict[int, Value] = {}
    instructions: list[Instruction] = []
    for position, instruction in enumerate(body.instructions):
        arguments = instruction.arguments
        operands = [a.index for a in arguments if isinstance(a, Value)]
        symbols = {s for a in arguments if isinstance(a, sympy.Expr) for s in a.free_symbols}
        varies = key in symbols or any(s.name.startswith("indirect") for s in symbols)
        if instruction.operation in ("indirect", "masked") or varies or scores in arguments:
            continue
        if all(o in kept for o in operands):
            kept[position] = Value(len(instructions))
            moved = tuple(kept[a.index] if isinstance(a, Value) else a for a in arguments)
            instructions.append(Instruction(instruction.operation, moved, instruction.dtype))
    return LoopBody(tuple(instructions))
