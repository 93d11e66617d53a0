"""Prints kernels of several stages: reductions in one block (persistent) or in a loop, and what follows them.

Rows lie along ``x``; the elements of a row along ``r``, with an axis for each distinct inner range.
"""

from __future__ import annotations

from collections.abc import Callable

import sympy
import torch
from weft_loop_ir import LoopBody, LoopVariable, Stage

from weft_codegen_triton.errors import Unsupported
from weft_codegen_triton.kernel.blocks import extent, reduction_blocks
from weft_codegen_triton.kernel.body_printer import BodyPrinter, ReductionResult, Text
from weft_codegen_triton.kernel.dtypes import highest, lowest, triton_dtype
from weft_codegen_triton.kernel.expressions import print_index
from weft_codegen_triton.kernel.frame import KernelFrame, print_axis, split_index
from weft_codegen_triton.kernel.recomputation import recomputable_rows

LAST_POSITION = {"tl.int32": 2**31 - 1, "tl.int64": 2**63 - 1}
COLUMN = frozenset("x")


class ReductionPrinter:
    """Prints the stages of ``frame.kernel``.

    ``limit`` is the longest row kept in registers; ``overwritten`` names the buffers that the kernel reads
    and whose memory it writes.
    """

    def __init__(self, frame: KernelFrame, limit: int, overwritten: frozenset[str]) -> None:
        self.frame = frame
        self.printer: BodyPrinter = frame.printer
        self.kernel = frame.kernel
        self.ranges = tuple(dict.fromkeys(s.inner for s in self.kernel.stages if s.inner))
        self.blocks = reduction_blocks(self.kernel, self.ranges or ((),), limit)
        self.overwritten = overwritten
        self.scratch: list[tuple[str, torch.dtype, sympy.Expr]] = []
        self.pending: list[Callable[[], Text]] = []  # what prints each reduction's result
        self.shared: dict[tuple[str, str], tuple[str, str, str]] = {}
        self.stored: list[tuple[ReductionResult, str, sympy.Expr]] = []
        self.before: list[str] = []
        self.axis = "r"
        self.inner: tuple[LoopVariable, ...] = ()
        printer = self.printer
        printer.reduce = self._reduce
        printer.store_result = lambda result, name, at: self.stored.append((result, name, at))

    def print(self) -> tuple[tuple[sympy.Expr, ...], tuple[int, ...], int]:
        """The grid's extents, the blocks along it, and the number of warps."""
        printer, kernel = self.printer, self.kernel
        self._place_rows()
        printer.tile.unit = "[1, 1]"
        rows = self.blocks.rows
        print_axis(self.frame, "x", 0, kernel.outer, rows, "[:, None]")
        for number, _ in enumerate(self.ranges):
            axis = self._axis(number)
            block = f"{axis.upper()}BLOCK"
            self.frame.constants[block] = self.blocks.columns[number]
            printer.emit(f"{axis}base = tl.arange(0, {block})[None, :]")
            if self.blocks.persistent:
                self._range(number, f"{axis}base")
            else:
                self.frame.loop_axes.append(axis)
        written: set[str] = set()
        for stage in kernel.stages:
            reads, writes = _touched(stage.body)
            if reads & written - printer.registers:
                printer.emit("tl.debug_barrier()")
            written |= writes
            self._stage(stage, writes)
        return (extent(kernel.outer),), (rows,), self.blocks.warps

    # -- local rows ------------------------------------------------------------------------------------

    def _place_rows(self) -> None:
        """Rows stay in registers where every access is at one index in one range; else in scratch memory."""
        printer, kernel = self.printer, self.kernel
        registers = set()
        if not self.blocks.persistent:
            printer.recomputed = recomputable_rows(kernel, self.overwritten)
        for buffer in kernel.local_buffers:
            if buffer.name in printer.recomputed:
                continue
            uses = {
                (stage.inner, index)
                for stage in kernel.stages
                for name, index in _accesses_by_name(stage.body)
                if name == buffer.name
            }
            if buffer.size == 1 or (self.blocks.persistent and len(uses) == 1):
                registers.add(buffer.name)
                continue
            self.scratch.append((buffer.name, buffer.dtype, extent(kernel.outer) * buffer.size))
        printer.registers = frozenset(registers)
        pointers = dict(printer.pointers)
        for number, (name, _, _) in enumerate(self.scratch):
            (size,) = (b.size for b in kernel.local_buffers if b.name == name)
            pointers[name] = f"scratch{number}_ptr + xindex * {print_index(size, {})}"
        self.scratch = [
            (f"scratch{k}", dtype, count) for k, (_, dtype, count) in enumerate(self.scratch)
        ]
        printer.pointers = pointers

    # -- ranges ----------------------------------------------------------------------------------------

    def _axis(self, number: int) -> str:
        return "r" if number == 0 else f"r{'abcdefghij'[number]}"

    def _range(self, number: int, index: str) -> None:
        """Print the loop variables and the mask of a range, at ``index``."""
        axis, loops = self._axis(number), self.ranges[number]
        printer = self.printer
        printer.emit(f"{axis}index = {index}" + (".to(tl.int64)" if printer.wide else ""))
        printer.emit(f"{axis}mask = {axis}index < {print_index(extent(loops), {})}")
        self._split(axis, loops)

    def _split(self, axis: str, loops: tuple[LoopVariable, ...]) -> None:
        printer = self.printer
        start = len(printer.lines)
        split_index(printer, axis, f"{axis}index", loops)
        for loop in loops:  # ranges may share loop symbols
            name = f"{axis}_{loop.symbol.name}"
            printer.lines[start:] = [
                line.replace(f"{loop.symbol.name} = ", f"{name} = ", 1)
                if line.strip().startswith(f"{loop.symbol.name} = ")
                else line
                for line in printer.lines[start:]
            ]

    def _enter(self, number: int) -> None:
        """Make the symbols of range ``number`` mean its variables."""
        tile, axis = self.printer.tile, self._axis(number)
        self.axis, self.inner = axis, self.ranges[number]
        tile.axes, tile.shape = ("x", axis), f"[XBLOCK, {axis.upper()}BLOCK]"
        for loop in self.inner:
            tile.names[loop.symbol] = f"{axis}_{loop.symbol.name}"
            tile.symbol_axes[loop.symbol] = frozenset((axis,))
            tile.sizes[loop.symbol] = loop.size

    # -- stages ----------------------------------------------------------------------------------------

    def _stage(self, stage: Stage, writes: set[str]) -> None:
        printer = self.printer
        if not stage.inner:
            printer.tile.axes, printer.tile.shape = ("x",), "[XBLOCK, 1]"
            if stage.is_reduction:
                raise Unsupported("a reduction over no loop")
            stage.body.replay(printer)
            return
        number = self.ranges.index(stage.inner)
        self._enter(number)
        self.pending, self.stored, self.shared, self.before = [], [], {}, []
        if self.blocks.persistent:
            stage.body.replay(printer)
        else:
            self._loop(stage, number, writes)
        printer.tile.axes, printer.tile.shape = ("x",), "[XBLOCK, 1]"
        for result, name, index in self.stored:
            value = self.pending[result.number]()
            if name in printer.registers:
                printer.local[name, printer.index(index)[0]] = value
            else:
                if not printer.index(index)[1]:
                    value = Text(value.code, value.dtype, COLUMN)
                printer.write(name, index, value, None, COLUMN)

    def _loop(self, stage: Stage, number: int, writes: set[str]) -> None:
        printer = self.printer
        axis = self._axis(number)
        for key in [k for k in printer.loaded if k[0] in writes]:
            del printer.loaded[key]
        known, loaded = dict(printer.known), dict(printer.loaded)
        start = len(printer.lines)
        total = print_index(extent(stage.inner), {})
        block = f"{axis.upper()}BLOCK"
        printer.emit(f"for {axis}offset in range(0, {total}, {block}):")
        printer.indent += 1
        self._range(number, f"{axis}offset + {axis}base")
        self._enter(number)
        stage.body.replay(printer)
        printer.indent -= 1
        printer.lines[start:start] = ["    " * printer.indent + line for line in self.before]
        printer.forget_since(known, loaded)
        for key in [k for k in printer.loaded if k[0] in writes]:
            del printer.loaded[key]

    # -- reductions ------------------------------------------------------------------------------------

    def _reduce(self, kind: str, dtype: torch.dtype, value: Text) -> ReductionResult:
        arguments = (kind, dtype, value)
        if kind in ("welford_mean", "welford_m2"):
            finish = self._welford(*arguments)
        elif kind in ("argmax", "argmin"):
            finish = self._position(*arguments)
        else:
            finish = self._simple(*arguments)
        self.pending.append(finish)
        return ReductionResult(len(self.pending) - 1)

    def _full(self, code: str, dtype: str) -> str:
        return f"tl.full({self.printer.tile.shape}, {code}, {dtype})"

    def _mask(self) -> str:
        return f"xmask & {self.axis}mask"

    def _fresh(self, prefix: str) -> str:
        name = f"{prefix}{self.printer.count}"
        self.printer.count += 1
        return name

    def _simple(self, kind: str, dtype: torch.dtype, value: Text) -> Callable[[], Text]:
        printer = self.printer
        result_dtype = torch.bool if kind in ("any", "all") else dtype
        logical = result_dtype is torch.bool
        held = "tl.int32" if logical else triton_dtype(dtype)
        operand = value.code
        if logical:
            operand = f"({operand} != 0).to(tl.int32)"
            kind = {"any": "max", "all": "min", "sum": "max", "prod": "min"}.get(kind, kind)
        elif value.dtype is not dtype:
            operand = f"{operand}.to({held})"
        start = {
            "sum": "0", "prod": "1",
            "max": "0" if logical else lowest(dtype), "min": "1" if logical else highest(dtype),
        }[kind]  # fmt: skip
        step = {
            "sum": "{0} + {1}", "prod": "{0} * {1}",
            "max": "weft.maximum({0}, {1})", "min": "weft.minimum({0}, {1})",
        }[kind]  # fmt: skip
        if not dtype.is_floating_point or logical:
            step = step.replace("weft.", "tl.")
        total = self._fresh(f"{kind}_")
        identity = self._full(start, held)
        if self.blocks.persistent:
            printer.emit(f"{total} = tl.where({self._mask()}, {operand}, {identity})")
        else:
            self.before.append(f"{total} = {identity}")
            printer.emit(
                f"{total} = tl.where({self._mask()}, {step.format(total, operand)}, {total})"
            )
        functions = {"prod": "weft.multiply", "max": "weft.maximum", "min": "weft.minimum"}

        def finish() -> Text:
            if kind == "sum":
                code = f"tl.sum({total}, 1)[:, None].to({held})"
            elif logical or (kind != "prod" and not dtype.is_floating_point):
                code = f"tl.{kind}({total}, 1)[:, None]"
            else:
                code = f"math.reduce({total}, 1, {functions[kind]})[:, None]"
            if logical:
                code = f"({code} != 0)"
            return printer.name(code, result_dtype, COLUMN)

        return finish

    def _position(self, kind: str, dtype: torch.dtype, value: Text) -> Callable[[], Text]:
        printer = self.printer
        operand, held = value.code, triton_dtype(value.dtype)
        edge = lowest(value.dtype) if kind == "argmax" else highest(value.dtype)
        if value.dtype is torch.bool:
            operand, held = f"{operand}.to(tl.int32)", "tl.int32"
        index_dtype = "tl.int64" if printer.wide else "tl.int32"
        best, where = self._fresh("best"), self._fresh("where")
        last = self._full(str(LAST_POSITION[index_dtype]), index_dtype)
        identity = self._full(edge, held)
        if self.blocks.persistent:
            printer.emit(f"{best} = tl.where({self._mask()}, {operand}, {identity})")
            printer.emit(f"{where} = tl.where({self._mask()}, {self.axis}index, {last})")
        else:
            self.before += [f"{best} = {identity}", f"{where} = {last}"]
            padded = f"tl.where({self._mask()}, {operand}, {identity})"
            position = f"tl.where({self._mask()}, {self.axis}index, {last})"
            step = f"weft.{kind}_step"
            printer.emit(f"{best}, {where} = {step}({best}, {where}, {padded}, {position})")

        def finish() -> Text:
            pair = self._fresh("pair")
            step = f"weft.{kind}_step"
            printer.emit(f"{pair}_best, {pair} = math.reduce(({best}, {where}), 1, {step})")
            return printer.name(f"{pair}[:, None].to(tl.int64)", torch.int64, COLUMN)

        return finish

    def _welford_step(self, names: tuple[str, str, str], operand: str, held: str) -> None:
        """One element more for each lane; how many a lane has seen is known without counting."""
        printer = self.printer
        mean, m2, weight = names
        axis, block = self.axis, f"{self.axis.upper()}BLOCK"
        total = print_index(extent(self.inner), {})
        seen = f"({total} - {axis}base + {block} - 1) // {block} + {self._full('0', 'tl.int32')}"
        self.before += [f"{name} = {self._full('0', held)}" for name in (mean, m2)]
        self.before.append(f"{weight} = ({seen}).to({held})")
        mask, delta = self._mask(), self._fresh("delta")
        printer.emit(f"{delta} = {operand} - {mean}")
        share = f"1.0 / (tl.full([1, 1], 1, {held}) + {axis}offset // {block})"
        printer.emit(f"{mean} = tl.where({mask}, {mean} + {delta} * ({share}), {mean})")
        printer.emit(f"{m2} = tl.where({mask}, {m2} + {delta} * ({operand} - {mean}), {m2})")

    def _welford(self, kind: str, dtype: torch.dtype, value: Text) -> Callable[[], Text]:
        printer = self.printer
        operand, held = value.code, triton_dtype(dtype)
        names = self.shared.get(("welford", operand))
        count = f"({print_index(extent(self.inner), {})})"
        if names is None:
            names = (self._fresh("mean"), self._fresh("m2_"), self._fresh("weight"))
            self.shared["welford", operand] = names
            mean, m2, weight = names
            zero = self._full("0", held)
            if self.blocks.persistent:
                tile = self._fresh("row")
                printer.emit(f"{tile} = tl.where({self._mask()}, {operand}, {zero})")
                printer.emit(f"{mean} = tl.sum({tile}, 1)[:, None] / {count}")
                printer.emit(f"{tile} = tl.where({self._mask()}, {operand} - {mean}, {zero})")
                printer.emit(f"{m2} = tl.sum({tile} * {tile}, 1)[:, None]")
            else:
                self._welford_step(names, operand, held)
        mean, m2, weight = names

        def finish() -> Text:
            chosen = mean if kind == "welford_mean" else m2
            if self.blocks.persistent:
                return Text(chosen, dtype, COLUMN)
            joined = f"{mean}_all"
            if joined not in printer.known:
                printer.emit(
                    f"{mean}_all, {m2}_all, {weight}_all = "
                    f"math.reduce(({mean}, {m2}, {weight}), 1, weft.welford_join)"
                )
                printer.known[joined] = Text(joined, dtype, COLUMN)
            return printer.name(f"{chosen}_all[:, None]", dtype, COLUMN)

        return finish


def _accesses_by_name(body: LoopBody) -> list[tuple[str, sympy.Expr]]:
    found: list[tuple[str, sympy.Expr]] = []
    for instruction in body.instructions:
        if instruction.operation in ("load", "store"):
            found.append((instruction.arguments[0], instruction.arguments[1]))
        for argument in instruction.arguments:
            if isinstance(argument, LoopBody):
                found += _accesses_by_name(argument)
    return found


def _touched(body: LoopBody) -> tuple[set[str], set[str]]:
    """The buffers that ``body`` loads from and stores to."""
    reads: set[str] = set()
    writes: set[str] = set()
    for instruction in body.instructions:
        if instruction.operation == "load":
            reads.add(instruction.arguments[0])
        elif instruction.operation == "store":
            writes.add(instruction.arguments[0])
        for argument in instruction.arguments:
            if isinstance(argument, LoopBody):
                reads |= _touched(argument)[0]
    return reads, writes
