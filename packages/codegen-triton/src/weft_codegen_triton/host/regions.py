"""Branches and loops of the host program: Python around the steps that they run.

What a test reads comes back from the device, once for a branch and once for each iteration of a loop.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import sympy
from weft_loop_ir import (
    Branch,
    Buffer,
    BufferView,
    Count,
    ExternCall,
    Item,
    Loop,
    Region,
    Schedule,
    Step,
    all_items,
    item_reads,
    item_writes,
    sized_within,
)

from weft_codegen_triton.host.expressions import print_size
from weft_codegen_triton.host.printed_host import LaunchPrinter
from weft_codegen_triton.program_loops.find_loops import ProgramLoop


class RegionPrinter(Protocol):
    """What printing a region needs of the host program's printer."""

    buffers: Mapping[str, Buffer]
    depth: int
    launches: LaunchPrinter
    tensors: dict[str, str]
    pointers: dict[str, str]

    def emit(self, line: str) -> None: ...

    def tensor(self, name: str) -> str: ...

    def step(self, step: Item) -> None: ...

    def view(self, view: BufferView) -> str: ...


def is_repeatable(schedule: Schedule) -> bool:
    """Whether calls of one size run the same steps: no branch, and no loop that data ends."""
    regions = [step for step in every_step(schedule.steps) if isinstance(step, Region)]
    return all(
        isinstance(region, ProgramLoop) or (isinstance(region, Loop) and region.predicate is None)
        for region in regions
    )


def every_step(steps: Sequence[Step]) -> Iterator[Step]:
    """``steps`` in order, each region of the host followed by the steps within."""
    for step in steps:
        yield step
        if isinstance(step, Region) and not isinstance(step, ProgramLoop):
            for block in step.blocks:
                yield from every_step(block)


def read_within(step: Step) -> set[str]:
    """The buffers that something in a step reads."""
    found: set[str] = set()
    for item in all_items([step]):
        if isinstance(item, Branch):
            found.add(item.predicate.buffer)
        elif isinstance(item, Loop):
            found |= set() if item.predicate is None else {item.predicate.buffer}
        else:
            found.update(item_reads(item))
    return found


def print_branch(printer: RegionPrinter, branch: Branch) -> None:
    """Print ``branch`` and what is in it."""
    _begin(printer, branch)
    printer.emit(f"if {printer.view(branch.predicate)}.item():")
    _block(printer, branch.true_block)
    printer.emit("else:")
    _block(printer, branch.false_block)


def print_loop(printer: RegionPrinter, loop: Loop) -> None:
    """Print ``loop`` and what is in it."""
    _begin(printer, loop)
    printer.emit(_head(loop.count))
    _block(printer, loop.condition, loop.predicate)
    _block(printer, loop.body)


def _begin(printer: RegionPrinter, region: Region) -> None:
    """Name the tensors that calls and tests in ``region`` take, once rather than in each iteration."""
    items = list(every_step([region]))
    calls = [step for step in items if isinstance(step, ExternCall)]
    made = {name for call in calls if call.out_variant is None for name in call.outputs}
    made |= sized_within(region, printer.buffers)
    regions = [item for item in items if isinstance(item, Region)]
    tested = [inner.predicate.buffer for inner in regions if inner.predicate is not None]
    taken = [n for c in calls for n in (*item_reads(c), *item_writes(c))]
    for name in dict.fromkeys((*tested, *taken)):
        if name not in made:
            printer.tensor(name)
    printer.emit(f"# {region.name}: {region.origin}")


def _head(count: Count | None) -> str:
    if count is None:
        return "while True:"
    name, start = count.symbol.name, print_size(count.start)
    step = print_size(sympy.sympify(count.step))
    if count.stop is None:
        return f"for {name} in itertools.count({start}, {step}):"
    return f"for {name} in range({start}, {print_size(count.stop)}, {step}):"


def _block(
    printer: RegionPrinter, block: Sequence[Step], ends_without: BufferView | None = None
) -> None:
    """Print a block; what it names is not there after it.  ``ends_without``: a flag that ends the loop."""
    tensors, pointers = dict(printer.tensors), dict(printer.pointers)
    printer.depth += 1
    for step in block:
        printer.step(step)
    printer.launches.flush()
    if ends_without is not None:
        printer.emit(f"if not {printer.view(ends_without)}.item():")
        printer.emit("    break")
    printer.emit("pass")
    printer.depth -= 1
    printer.tensors, printer.pointers = tensors, pointers
