"""Branches and loops of the host program: plain C++ around the steps that they run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import sympy
from weft_loop_ir import (
    Branch,
    BufferView,
    Count,
    Loop,
    Schedule,
    Step,
    all_items,
)

from weft_codegen_cpp.statements import indent


class StepPrinter(Protocol):
    """What printing a region needs of the host program's printer."""

    steps: list[str]

    def nested(self, block: Sequence[Step]) -> list[str]: ...

    def index(self, expression: object) -> str: ...


def counters(schedule: Schedule) -> tuple[sympy.Symbol, ...]:
    """The symbols of the loops' counters, which are fields of a call."""
    loops = [item for item in all_items(schedule.steps) if isinstance(item, Loop)]
    return tuple(dict.fromkeys(loop.count.symbol for loop in loops if loop.count is not None))


def print_branch(printer: StepPrinter, branch: Branch) -> None:
    """Append the statements of ``branch``."""
    lines = [f"// {branch.name}", f"if ({_holds(printer, branch.predicate)}) {{"]
    lines += indent(printer.nested(branch.true_block))
    lines.append("} else {")
    printer.steps += [*lines, *indent(printer.nested(branch.false_block)), "}"]


def print_loop(printer: StepPrinter, loop: Loop) -> None:
    """Append the statements of ``loop``."""
    lines = [f"// {loop.name}", f"{_head(printer, loop.count)} {{"]
    lines += indent(printer.nested(loop.condition))
    if loop.predicate is not None:
        lines.append(f"  if (!{_holds(printer, loop.predicate)}) break;")
    printer.steps += [*lines, *indent(printer.nested(loop.body)), "}"]


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
