"""Prints a sequential stage: a loop of the program inside a kernel, with its state in registers."""

from __future__ import annotations

import sympy
from weft_loop_ir import Stage, print_index

from weft_codegen_triton.kernel.blocks import touched
from weft_codegen_triton.kernel.body_printer import BodyPrinter, Text
from weft_codegen_triton.kernel.expressions import INDEX


def print_sequential_stage(printer: BodyPrinter, stage: Stage) -> None:
    """Print the loop of ``stage``; what it stores in local buffers is carried from iteration to iteration.

    An element that one iteration stores and a later one loads is handled by the same program, whose threads
    wait for each other in between.
    """
    (loop,) = stage.inner
    reads, writes = touched(stage.body)
    state = sorted(key for key in printer.local if key[0] in writes)
    everywhere = frozenset(printer.tile.axes)
    variables = {}
    for number, key in enumerate(state):
        first = printer.local[key]
        variables[key] = Text(f"state{number}", first.dtype, everywhere)
        printer.emit(f"state{number} = tl.broadcast_to({first.code}, {printer.tile.shape})")
    printer.local.update(variables)
    _forget(printer, writes)
    known, loaded = dict(printer.known), dict(printer.loaded)
    name = loop.symbol.name
    printer.emit(f"for {name}_number in {_range(loop.size)}:")
    printer.indent += 1
    dtype = "tl.int64" if printer.wide else "tl.int32"
    printer.emit(f"{name} = tl.full([1], 0, {dtype}) + {name}_number")
    printer.tile.names[loop.symbol] = name
    stage.body.replay(printer)
    after = [f"tl.broadcast_to({printer.local[key].code}, {printer.tile.shape})" for key in state]
    if state:
        targets = ", ".join(variables[key].code for key in state)
        printer.emit(f"{targets} = {', '.join(after)}")
    if reads & writes - printer.registers:
        printer.emit("tl.debug_barrier()")
    printer.indent -= 1
    printer.forget_since(known, loaded)
    printer.local.update(variables)
    _forget(printer, writes)


def _range(size: sympy.Expr) -> str:
    if size.is_Integer:
        return f"range({int(size)})"
    return f"range(0, math.bound({print_index(size, INDEX)}))"


def _forget(printer: BodyPrinter, writes: set[str]) -> None:
    """What has been loaded of buffers that iterations write holds no more."""
    for key in [k for k in printer.loaded if k[0] in writes]:
        del printer.loaded[key]
