"""Prints a sequential stage: a loop of the program inside a kernel, with its state in registers."""

from __future__ import annotations

from weft_loop_ir import Stage

from weft_codegen_triton.kernel.body_printer import BodyPrinter, Text
from weft_codegen_triton.kernel.dtypes import loop_bound


def print_sequential_stage(printer: BodyPrinter, stage: Stage) -> None:
    """Print the loop of ``stage``; what it stores in local buffers is carried from iteration to iteration.

    An element that one iteration stores and a later one loads is handled by the same program, whose threads
    wait for each other in between.
    """
    reads, writes = set(stage.body.reads), set(stage.body.writes)
    state = sorted(key for key in printer.local if key[0] in writes)
    everywhere = frozenset(printer.tile.axes)
    variables = {}
    for number, key in enumerate(state):
        first = printer.local[key]
        variables[key] = Text(f"state{number}", first.dtype, everywhere)
        printer.emit(f"state{number} = tl.broadcast_to({first.code}, {printer.tile.shape})")
    printer.local.update(variables)
    _forget(printer, writes)
    goes_on = variables.get((stage.goes_on or "", "0"))
    with printer.loop(_head(printer, stage, goes_on)):
        _name_counters(printer, stage)
        printer.replay(stage.body)
        after = [
            f"tl.broadcast_to({printer.local[key].code}, {printer.tile.shape})" for key in state
        ]
        if state:
            targets = ", ".join(variables[key].code for key in state)
            printer.emit(f"{targets} = {', '.join(after)}")
        if reads & writes - printer.registers:
            printer.settle()
        if goes_on is not None:
            for loop in stage.inner:
                printer.emit(f"{loop.symbol.name}_number += 1")
            printer.emit(f"goes_on = {_any(printer, goes_on)}")
    printer.local.update(variables)
    _forget(printer, writes)


def _head(printer: BodyPrinter, stage: Stage, goes_on: Text | None) -> str:
    """The head of the loop, what it reads printed; one that data ends goes on while any element does."""
    if goes_on is None:
        (loop,) = stage.inner
        return f"for {loop.symbol.name}_number in range({loop_bound(printer.number(loop.size))}):"
    tests = []
    for loop in stage.inner:
        printer.emit(f"{loop.symbol.name}_number = 0")
        tests.append(f"({loop.symbol.name}_number < {printer.number(loop.size)})")
    printer.emit(f"goes_on = {_any(printer, goes_on)}")
    return f"while {' & '.join([*tests, '(goes_on != 0)'])}:"


def _name_counters(printer: BodyPrinter, stage: Stage) -> None:
    for loop in stage.inner:
        name = loop.symbol.name
        printer.emit(f"{name} = tl.full([1], 0, {printer.index_type}) + {name}_number")
        printer.tile.names[loop.symbol] = name


def _any(printer: BodyPrinter, flags: Text) -> str:
    """Whether a flag is set for any point of the tile that is one of the kernel's."""
    masks = " & ".join(printer.tile.masks[a] for a in printer.tile.axes if a in printer.tile.masks)
    code = f"({flags.code} & {masks})" if masks else flags.code
    reduced = f"{code}.to(tl.int32)"
    for _ in printer.tile.axes:
        reduced = f"tl.max({reduced}, 0)"
    return reduced


def _forget(printer: BodyPrinter, writes: set[str]) -> None:
    """What has been loaded of buffers that iterations write holds no more."""
    for key in [k for k in printer.loaded if k[0] in writes]:
        del printer.loaded[key]
