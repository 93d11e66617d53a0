"""Branches and loops of the host program: plain C++ around the steps that they run.

Iterations of a loop may run on several threads: a function runs some of them, for ``weft_loops.h``.  A body
of kernels and calls through torch's C interface needs no Python and runs on one thread by itself, since torch
and libraries see that they are in a parallel region.  Each thread works on a copy of the call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Any

import sympy
import torch
from weft_loop_ir import (
    Branch,
    BufferView,
    Count,
    ExternCall,
    Kernel,
    Loop,
    ParallelKernels,
    Schedule,
    Step,
    StepVisitor,
    all_items,
    independent_iterations,
    trip_count,
)

from weft_codegen_cpp.cpu import cpu_of
from weft_codegen_cpp.host.extern_calls import native_call
from weft_codegen_cpp.host.parts import Pointer
from weft_codegen_cpp.host.statements import Statement, failures_of, joined, lines_of
from weft_codegen_cpp.host.writer import HostWriter
from weft_codegen_cpp.kernel.expressions import indent, memory_type
from weft_codegen_cpp.kernel.kernel_printer import PrintedKernel


def print_branch(writer: HostWriter, branch: Branch) -> None:
    """Append the statements of ``branch``."""
    writer.comment(branch.name)
    head = f"if ({_holds(writer, branch.predicate)}) {{"
    blocks = [writer.nested(block) for block in branch.blocks]
    writer.steps.append(joined(head, blocks[0], "} else {", blocks[1], "}"))


def print_loop(writer: HostWriter, loop: Loop) -> None:
    """Append the statements of ``loop``."""
    writer.comment(loop.name)
    body = writer.nested(loop.condition)
    if loop.predicate is not None:
        body.append(Statement((f"if (!{_holds(writer, loop.predicate)}) break;",)))
    body += writer.nested(loop.body)
    writer.steps.append(joined(f"{_head(writer, loop.count)} {{", body, "}"))


def _head(writer: HostWriter, count: Count | None) -> str:
    if count is None:
        return "for (;;)"
    name = f"c.{count.symbol.name}"
    test = ""
    if count.stop is not None:
        test = f"{name} {'<' if count.ascends else '>'} {writer.index(count.stop)}"
    step = writer.index(count.step)
    return f"for ({name} = {writer.index(count.start)}; {test}; {name} += {step})"


def _holds(writer: HostWriter, predicate: BufferView) -> str:
    return f"{Pointer(predicate.buffer)}[{writer.index(predicate.offset)}]"


# -- iterations on several threads ---------------------------------------------------------------------


HEADER = "weft_loops.h"

CALL_NANOSECONDS = 1000
"""What a library's call costs by itself, about."""


def own_buffers(loop: Loop, schedule: Schedule) -> frozenset[str] | None:
    """The intermediates that each iteration needs for itself; None for what runs in order."""
    calls = [item for item in all_items(loop.body) if isinstance(item, ExternCall)]
    if any(native_call(call) is None for call in calls):
        return None
    return independent_iterations(loop, schedule)


def print_iterations(
    writer: HostWriter, loop: Loop, own: Set[str], kernels: Mapping[str, PrintedKernel]
) -> None:
    """Append the statements that run ``loop``."""
    count = loop.count
    assert count is not None
    first = len(writer.owned)
    body = writer.nested(loop.body)
    slots = range(first, len(writer.owned))
    name = f"loop{len(writer.functions)}"
    offsets = writer.schedule.memory.offsets
    begin = [f"c.owned[{slot}] = nullptr;" for slot in slots]
    for buffer in sorted(own & set(offsets)):
        type_name = memory_type(writer.schedule.buffers[buffer].layout.dtype)
        place = f"c.frame->arena + {writer.index(offsets[buffer])}"
        begin.append(f"c.{buffer} = ({type_name}*)({place});")
    finish = [f"if (c.owned[{slot}]) drop_owned(c.owned[{slot}]);" for slot in slots]
    iterations = [
        "for (i64 iteration = first; iteration < end; ++iteration) {",
        f"  c.{count.symbol.name} = {_counter(writer, count, 'iteration')};",
        *indent(lines_of(body)),
        "}",
        "return ok;",
    ]
    parts = [
        f"// {loop.name}",
        *_function("Status", f"{name}_run(Call& c, i64 first, i64 end)", iterations),
        *_function("void", f"{name}_begin([[maybe_unused]] Call& c)", begin),
        *_function("void", f"{name}_finish([[maybe_unused]] Call& c)", finish),
        f"static const Iterations<Call> {name} = {{{name}_run, {name}_begin, {name}_finish}};",
    ]
    writer.functions.append("\n".join(parts) + "\n")
    writer.headers.add(HEADER)
    arguments = f"c, {name}, trips, cost, {writer.options.threads}, view_count"
    run_loop = f"if (const Status status = run_loop({arguments}); status != ok) return status;"
    run = (*_Costs(writer, kernels, "cost").whole(loop, "trips"), run_loop)
    writer.comment(loop.name)
    writer.steps.append(joined("{", [Statement(run, failures_of(body))], "}"))


def _function(result: str, signature: str, lines: Sequence[str]) -> list[str]:
    return [f"static {result} {signature} {{", *indent(lines), "}"]


def _counter(writer: HostWriter, count: Count, iteration: str) -> str:
    return f"{writer.index(count.start)} + {writer.index(count.step)} * {iteration}"


class _Costs(StepVisitor[list[str]]):
    """Statements that add the estimated nanoseconds of steps to the variable ``cost``."""

    def __init__(self, writer: HostWriter, kernels: Mapping[str, PrintedKernel], cost: str) -> None:
        self.kernels = kernels
        self.writer = writer
        self.cost = cost

    def whole(self, loop: Loop, trips: str) -> list[str]:
        """Define the variable as those of ``loop``, by its middle iteration, and ``trips``."""
        count, lines = loop.count, [f"f64 {self.cost} = 0;"]
        if count is None or count.stop is None:  # nothing says how often it runs
            return lines + self.block(loop.body)
        middle = _counter(self.writer, count, f"({trips} / 2)")
        return [
            f"const i64 {trips} = {self.writer.index(trip_count(count))};",
            f"c.{count.symbol.name} = {middle};",
            *lines,
            *self.block(loop.body),
            f"{self.cost} *= f64({trips});",
        ]

    def block(self, steps: Sequence[Step]) -> list[str]:
        return [line for step in steps for line in self.visit(step)]

    def kernel(self, kernel: Kernel) -> list[str]:
        one = self.kernels[kernel.name]
        values = [f"const i64 {s.name} = {one.values.get(s, f'c.{s.name}')};" for s in one.symbols]
        return [" ".join(["{", *values, f"{self.cost} += {one.nanoseconds or '0'}; }}"])]

    def parallel_kernels(self, group: ParallelKernels) -> list[str]:
        return self.block(group.kernels)

    def extern_call(self, call: ExternCall) -> list[str]:
        operations = f"2 * f64({self.writer.index(_products(call, self.writer.schedule))})"
        work = f"{operations} / {cpu_of(self.writer.options).operations_a_nanosecond}"
        return [f"{self.cost} += {CALL_NANOSECONDS} + {work};"]

    def branch(self, branch: Branch) -> list[str]:
        return [line for block in branch.blocks for line in self.block(block)]

    def loop(self, loop: Loop) -> list[str]:
        inner = _Costs(self.writer, self.kernels, f"{self.cost}_inside")
        lines = indent(inner.whole(loop, f"{inner.cost}_trips"))
        return ["{", *lines, f"  {self.cost} += {inner.cost};", "}"]


def _products(call: ExternCall, schedule: Schedule) -> sympy.Expr:
    """About how many numbers a call multiplies."""
    sizes = [a.size for a in call.arguments if isinstance(a, BufferView)]
    results = [schedule.buffers[name].layout.size for name in call.outputs if name is not None]
    elements = sympy.Mul(*(results[0] if results else ()))
    if call.operator is torch.ops.aten.convolution.default:
        return elements * sympy.Mul(*sizes[1][1:])
    matrices: list[Any] = [size for size in sizes if len(size) > 1]
    return elements * (matrices[-1][-2] if matrices else sympy.S.One)
