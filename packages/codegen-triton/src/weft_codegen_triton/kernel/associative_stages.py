"""Prints a scan of few or long rows: a program scans a block of each at once, and goes on with its last.

The loop of a scan's kernel reads its running values and a row's elements, combines them, and stores what
follows from the result.  The first becomes a function of its own, which Triton combines elements with in any
grouping; the second is printed for all elements of a block.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sympy
import torch
from weft_loop_ir import Instruction, Kernel, LoopBody, SizeFloat, Stage, Value, print_index

from weft_codegen_triton.kernel.blocks import accesses, extent, power_of_two, static
from weft_codegen_triton.kernel.body_printer import NO_AXES, BodyPrinter, Text, Tile
from weft_codegen_triton.kernel.dtypes import literal, triton_dtype
from weft_codegen_triton.kernel.expressions import INDEX, loop_bound, unit_stride
from weft_codegen_triton.kernel.frame import KernelFrame, print_axis

MANY_ROWS = 1 << 14
"""Rows that keep a GPU busy with a thread each."""
ELEMENTS = 1024
COLUMNS = 16
"""Rows side by side that a program scans, so that what it reads at once is contiguous."""


class _CombinePrinter(BodyPrinter):
    """Prints a loop's body as a function of running values and elements; what it stores there is returned."""

    def __init__(self, stage: Stage, printer: BodyPrinter) -> None:
        super().__init__(Tile(("x",), "[]", "[]"), {}, printer.dtype_of, frozenset(), printer.wide)
        self.running = {name: k for k, (name, _) in enumerate(stage.combines)}
        self.rows = {row: k for k, (_, row) in enumerate(stage.combines)}
        self.dtypes = [printer.dtype_of(name) for name, _ in stage.combines]
        self.results: dict[int, Text] = {}

    def load(self, buffer: str, index: sympy.Expr) -> Text:
        if buffer in self.running:
            k = self.running[buffer]
            return Text(f"left{k}", self.dtypes[k], NO_AXES)
        k = self.rows[buffer]
        return Text(f"right{k}", self.dtypes[k], NO_AXES)

    def store(self, buffer: str, index: sympy.Expr, value: Any, mode: str | None = None) -> None:
        if buffer in self.running:
            self.results[self.running[buffer]] = value

    def constant(self, value: bool | int | float, dtype: torch.dtype) -> Text:
        code = f"tl.full([], {literal(value)}, {triton_dtype(dtype)})"
        return self.name(code, dtype, NO_AXES)

    def function(self, name: str, body: LoopBody) -> list[str]:
        """The function's lines."""
        body.replay(self)
        count = len(self.dtypes)
        parameters = [f"{side}{k}" for side in ("left", "right") for k in range(count)]
        results = ", ".join(self.results[k].code for k in range(count))
        head = ["@triton.jit", f"def {name}({', '.join(parameters)}):"]
        return [*head, *self.lines, f"    return {results}", "", ""]


def associative_stage(kernel: Kernel) -> Stage | None:
    """The stage by which ``kernel`` is printed as a scan of blocks; None where it has to be a loop.

    That is where rows are many and side by side, or an iteration takes more than its elements.
    """
    stages = [stage for stage in kernel.stages if stage.combines]
    if len(stages) != 1 or kernel.stages[-1] is not stages[0]:
        return None
    (stage,) = stages
    (loop,) = stage.inner
    running = {name for name, _ in stage.combines}
    rows = {row for _, row in stage.combines}
    if {b.name for b in kernel.local_buffers} != running:
        return None
    if not all(map(_is_of_elements, stage.body.instructions)):
        return None
    read: dict[str, set[sympy.Expr]] = {}
    for instruction in stage.body.instructions:
        if instruction.operation == "load":
            read.setdefault(instruction.arguments[0], set()).add(instruction.arguments[1])
    if not read.keys() <= running | rows or any(len(read[row]) > 1 for row in rows & read.keys()):
        return None
    if not _needs_only_results(stage.body, running):
        return None
    along = any(unit_stride(e, loop.symbol) for row in rows & read.keys() for e in read[row])
    return stage if along or static(extent(kernel.outer)) < MANY_ROWS else None


def _is_of_elements(instruction: Instruction) -> bool:
    """Whether a function of elements can have the instruction: it has no places, and no parameters."""
    if instruction.operation == "store":
        return len(instruction.arguments) < 4 or instruction.arguments[3] is None
    if instruction.operation == "load":
        return True
    return not any(isinstance(a, sympy.Expr | LoopBody | SizeFloat) for a in instruction.arguments)


def _results(body: LoopBody, running: set[str]) -> dict[str, int]:
    """By running value, the instruction whose value it gets."""
    return {
        i.arguments[0]: i.arguments[2].index
        for i in body.instructions
        if i.operation == "store" and i.arguments[0] in running
    }


def _needs_only_results(body: LoopBody, running: set[str]) -> bool:
    """Whether what is stored elsewhere follows from the combined values, not from those before."""
    combined = set(_results(body, running).values())
    pending = [
        i.arguments[2].index
        for i in body.instructions
        if i.operation == "store" and i.arguments[0] not in running
    ]
    while pending:
        position = pending.pop()
        if position in combined:
            continue
        instruction = body.instructions[position]
        if instruction.operation == "load" and instruction.arguments[0] in running:
            return False
        pending += [a.index for a in instruction.arguments if isinstance(a, Value)]
    return True


def print_associative(
    frame: KernelFrame, stage: Stage, name: str
) -> tuple[list[str], tuple[sympy.Expr, ...], tuple[int, ...], int]:
    """Print the kernel; the lines of the function called ``name`` before it, the grid, and warps."""
    kernel, printer = frame.kernel, frame.printer
    (loop,) = stage.inner
    combine = _CombinePrinter(stage, printer)
    lines = combine.function(name, stage.body)
    rows = extent(kernel.outer)
    is_along = any(unit_stride(e, loop.symbol) for e in accesses(stage.body))
    block = 1 if is_along else min(COLUMNS, power_of_two(static(rows)))
    columns = min(ELEMENTS // block, power_of_two(static(loop.size)))
    tile = printer.tile
    tile.unit, tile.axes, tile.shape = "[1, 1]", ("x",), "[XBLOCK, 1]"
    tile.masks = {"x": "xmask"}
    print_axis(frame, "x", 0, kernel.outer, block, "[:, None]")
    frame.constants["RBLOCK"] = columns
    for before in kernel.stages[:-1]:
        before.body.replay(printer)
    for k, (running, _) in enumerate(stage.combines):
        printer.emit(
            f"running{k} = tl.broadcast_to({printer.local[running, '0'].code}, {tile.shape})"
        )
    length = print_index(loop.size, INDEX)
    with printer.loop(f"for roffset in range(0, {loop_bound(length)}, RBLOCK):"):
        _print_block(frame, stage, name, length)
    warps = max(1, min(4, block * columns // 256))
    return lines, (rows,), (block,), warps


def _print_block(frame: KernelFrame, stage: Stage, name: str, length: str) -> None:
    """Print the scan of a block, what is stored of it, and what the next block goes on with."""
    printer, tile = frame.printer, frame.printer.tile
    (loop,) = stage.inner
    wide = ".to(tl.int64)" if printer.wide else ""
    printer.emit(f"rindex = roffset + tl.arange(0, RBLOCK)[None, :]{wide}")
    printer.emit(f"rmask = rindex < {length}")
    tile.axes, tile.shape = ("x", "r"), "[XBLOCK, RBLOCK]"
    tile.masks = {**tile.masks, "r": "rmask"}
    tile.names[loop.symbol], tile.symbol_axes[loop.symbol] = "rindex", frozenset(("r",))
    count = len(stage.combines)
    dtypes = [printer.dtype_of(running) for running, _ in stage.combines]
    indices = {
        i.arguments[0]: i.arguments[1] for i in stage.body.instructions if i.operation == "load"
    }
    for k, row in enumerate(row for _, row in stage.combines):
        if row in indices:
            element = printer.to_dtype(printer.load(row, indices[row]), dtypes[k])
        else:  # what the function doesn't take
            element = Text(f"running{k}", dtypes[k], frozenset(("x",)))
        printer.emit(f"element{k} = tl.broadcast_to({element.code}, {tile.shape})")
    elements = _tuple([f"element{k}" for k in range(count)])
    results = ", ".join(f"result{k}" for k in range(count))
    printer.emit(f"{results} = tl.associative_scan({elements}, 1, {name})")
    before = ", ".join(f"tl.broadcast_to(running{k}, {tile.shape})" for k in range(count))
    printer.emit(f"{results} = {name}({before}, {results})")
    made = {running: Text(f"result{k}", dtypes[k], frozenset(tile.axes))
            for k, (running, _) in enumerate(stage.combines)}  # fmt: skip
    _print_stores(printer, stage.body, made)
    for k, dtype in enumerate(dtypes):
        held, restored = _HELD.get(dtype, ("{}", f"{{}}.to({triton_dtype(dtype)})"))
        last = f"rindex == roffset + RBLOCK - 1, {held.format(f'result{k}')}, 0"
        printer.emit(f"running{k} = {restored.format(f'tl.sum(tl.where({last}), 1)[:, None]')}")


_HELD = {
    torch.bool: ("{}.to(tl.int32)", "{}.to(tl.int1)"),
    torch.float32: ("{}.to(tl.int32, bitcast=True)", "{}.to(tl.float32, bitcast=True)"),
    torch.float64: ("{}.to(tl.int64, bitcast=True)", "{}.to(tl.float64, bitcast=True)"),
}
"""As what a value is picked out of a block by a sum with zeros, and back: bits, for a zero has a sign."""


def _tuple(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"({', '.join(names)})"


def _print_stores(printer: BodyPrinter, body: LoopBody, made: Mapping[str, Text]) -> None:
    """Print what is stored besides running values: values that follow from the combined ones."""
    known: dict[int, Any] = {
        position: made[name] for name, position in _results(body, set(made)).items()
    }

    def value(argument: Any) -> Any:
        if not isinstance(argument, Value):
            return argument
        if argument.index not in known:
            instruction = body.instructions[argument.index]
            method = getattr(printer, instruction.operation)
            known[argument.index] = method(*(value(a) for a in instruction.arguments))
        return known[argument.index]

    for instruction in body.instructions:
        if instruction.operation == "store" and instruction.arguments[0] not in made:
            printer.store(*(value(a) for a in instruction.arguments))
