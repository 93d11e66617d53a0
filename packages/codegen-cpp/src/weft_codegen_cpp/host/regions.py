"""Branches and loops of the host program: plain C++ around the steps that they run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import sympy
from weft_loop_ir import (
    Branch,
    BufferView,
    Count,
    ExternCall,
    Loop,
    Region,
    Schedule,
    Step,
    all_items,
)

from weft_codegen_cpp.statements import indent


class StepPrinter(Protocol):
    """What printing a region needs of the host program's printer."""

    steps: list[str]

    def nested(self, block: Sequence[Step], number: int) -> list[str]: ...

    def index(self, expression: object) -> str: ...


def counters(schedule: Schedule) -> tuple[sympy.Symbol, ...]:
    """The symbols of the loops' counters, which are fields of a call."""
    loops = [item for item in all_items(schedule.steps) if isinstance(item, Loop)]
    return tuple(dict.fromkeys(loop.count.symbol for loop in loops if loop.count is not None))


def allocated_by_calls(region: Region, writes_into: Callable[[ExternCall], bool]) -> set[str]:
    """The buffers that operators called in ``region`` allocate: the program gives them no memory."""
    return {
        name
        for item in all_items([region])
        if isinstance(item, ExternCall) and not writes_into(item)
        for name in item.outputs
        if name is not None
    }


def print_region(printer: StepPrinter, region: Region, number: int) -> None:
    """Append the statements of ``region``, which is (in) the schedule's step ``number``."""
    if isinstance(region, Branch):
        lines = [f"if ({_holds(printer, region.predicate)}) {{"]
        lines += indent(printer.nested(region.true_block, number))
        lines.append("} else {")
        lines += indent(printer.nested(region.false_block, number))
    else:
        lines = [f"{_head(printer, region.count)} {{"]
        lines += indent(printer.nested(region.condition, number))
        if region.predicate is not None:
            lines.append(f"  if (!{_holds(printer, region.predicate)}) break;")
        lines += indent(printer.nested(region.body, number))
    printer.steps += [f"// {region.name}", *lines, "}"]


def _head(printer: StepPrinter, count: Count | None) -> str:
    if count is None:
        return "for (;;)"
    name = f"c.{count.symbol.name}"
    test = ""
    if count.stop is not None:
        test = f"{name} {'<' if count.ascends else '>'} {printer.index(count.stop)}"
    step = printer.index(count.step)
    return f"for ({name} = {printer.index(count.start)}; {test}; {name} += {step})"


def _holds(printer: StepPrinter, predicate: BufferView) -> str:
    return f"c.{predicate.buffer}[{printer.index(predicate.offset)}]"
