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

from weft_codegen_cpp.host.statements import Statement, joined


class StepPrinter(Protocol):
    """What printing a region needs of the host program's printer."""

    steps: list[Statement]

    def comment(self, text: str) -> None: ...

    def nested(self, block: Sequence[Step]) -> list[Statement]: ...

    def index(self, expression: object) -> str: ...


def counters(schedule: Schedule) -> tuple[sympy.Symbol, ...]:
    """The symbols of the loops' counters, which are fields of a call."""
    loops = [item for item in all_items(schedule.steps) if isinstance(item, Loop)]
    return tuple(dict.fromkeys(loop.count.symbol for loop in loops if loop.count is not None))


def print_branch(printer: StepPrinter, branch: Branch) -> None:
    """Append the statements of ``branch``."""
    printer.comment(branch.name)
    head = f"if ({_holds(printer, branch.predicate)}) {{"
    blocks = [printer.nested(block) for block in branch.blocks]
    printer.steps.append(joined(head, blocks[0], "} else {", blocks[1], "}"))


def print_loop(printer: StepPrinter, loop: Loop) -> None:
    """Append the statements of ``loop``."""
    printer.comment(loop.name)
    body = printer.nested(loop.condition)
    if loop.predicate is not None:
        body.append(Statement((f"if (!{_holds(printer, loop.predicate)}) break;",)))
    body += printer.nested(loop.body)
    printer.steps.append(joined(f"{_head(printer, loop.count)} {{", body, "}"))


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
