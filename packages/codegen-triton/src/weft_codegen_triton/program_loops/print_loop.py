"""Prints a loop that one program runs: a function that calls the parts that its kernels are.

A part goes through the programs that its kernel would be launched with, one after another.  The threads of
the one program wait for each other between parts, so that each sees what the one before has stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import sympy
import torch
from weft_loop_ir import (
    Branch,
    Buffer,
    BufferView,
    Count,
    Kernel,
    Loop,
    ParallelKernels,
    SizeFloat,
    Step,
    StepVisitor,
    all_items,
    print_index,
)

from weft_codegen_triton.kernel.blocks import ELEMENTS_PER_WARP
from weft_codegen_triton.kernel.dtypes import INDEX, pointer_type
from weft_codegen_triton.kernel.frame import NAME, definition, part_text, program_id
from weft_codegen_triton.kernel.kernel_printer import Function, PrintedKernel, Scratch
from weft_codegen_triton.program_loops.find_loops import ProgramLoop

MAX_WARPS = 16
ONLY = program_id(0)
"""The position of the only program, 0."""


def print_program_loop(
    loop: ProgramLoop, buffers: Mapping[str, Buffer], print_part: Callable[[Kernel], PrintedKernel]
) -> PrintedKernel:
    """The function of ``loop``; ``print_part`` gives that of each of its kernels."""
    return _LoopPrinter(buffers, print_part).print(loop)


class _LoopPrinter(StepVisitor[None]):
    def __init__(
        self, buffers: Mapping[str, Buffer], print_part: Callable[[Kernel], PrintedKernel]
    ) -> None:
        self.buffers = buffers
        self.print_part = print_part
        self.lines: list[str] = []
        self.depth = 1
        self.parts: dict[Function, str] = {}
        self.texts: list[str] = []
        self.memory: dict[str, str] = {}  # buffers to parameters
        self.scratch: list[Scratch] = []
        self.symbols: dict[sympy.Symbol, None] = {}
        self.scalars: dict[SizeFloat, str] = {}

    def print(self, loop: ProgramLoop) -> PrintedKernel:
        self.loop(loop)
        counters = {r.count.symbol for r in all_items([loop]) if isinstance(r, Loop) and r.count}
        symbols = tuple(sorted(self.symbols.keys() - counters, key=lambda s: str(s.name)))
        parameters = [
            *((name, pointer_type(self._dtype_of(buffer))) for buffer, name in self.memory.items()),
            *((row.name, pointer_type(row.dtype)) for row in self.scratch),
            *((symbol.name, "i64") for symbol in symbols),
            *((name, "i64") for name in self.scalars.values()),
        ]
        text = definition((name for name, _ in parameters), self.lines)
        template = "\n".join([*self.texts, text])
        function = Function(
            template,
            tuple(parameters),
            (),
            min(MAX_WARPS, max(1, loop.tile // ELEMENTS_PER_WARP)),
            any(part.checks_indices for part in self.parts),
            is_repeatable=False,
        )
        names, numbers = tuple(self.memory), tuple(self.scalars)
        one = (sympy.S.One,)
        return PrintedKernel(function, names, tuple(self.scratch), symbols, numbers, one, (1,))

    def _emit(self, line: str) -> None:
        self.lines.append("    " * self.depth + line)

    def _dtype_of(self, name: str) -> torch.dtype:
        return self.buffers[name].layout.dtype

    def _pointer(self, name: str) -> str:
        return self.memory.setdefault(name, f"m{len(self.memory)}_ptr")

    def _index(self, expression: sympy.Expr) -> str:
        """An expression over sizes and counters."""
        self.symbols.update(dict.fromkeys(expression.free_symbols))
        return print_index(expression, INDEX)

    def _holds(self, predicate: BufferView) -> str:
        """Whether a flag is set, as the program finds it in memory now."""
        place = self._index(predicate.offset)
        return f"(tl.load({self._pointer(predicate.buffer)} + {place}).to(tl.int32) != 0)"

    # -- steps -------------------------------------------------------------------------------------------

    def _block(self, steps: Sequence[Step]) -> None:
        """The steps, each after what comes before it has been stored."""
        self.depth += 1
        for step in steps:
            self._emit("tl.debug_barrier()")
            self.visit(step)
        self._emit("tl.debug_barrier()")
        self.depth -= 1

    def kernel(self, kernel: Kernel) -> None:
        self._part(self.print_part(kernel))

    def parallel_kernels(self, group: ParallelKernels) -> None:
        for kernel in group.kernels:
            self.kernel(kernel)

    def branch(self, branch: Branch) -> None:
        self._emit(f"if {self._holds(branch.predicate)}:")
        self._block(branch.true_block)
        self._emit("else:")
        self._block(branch.false_block)

    def loop(self, loop: Loop) -> None:
        tests = self._count_from(loop.count)
        if not loop.condition:
            tests += [self._holds(loop.predicate)] if loop.predicate is not None else []
            self._emit(f"while {' & '.join(tests)}:")
            self._iteration(loop)
            return
        flag = f"goes_on{self.depth}"
        self._emit(f"{flag} = tl.cast(1, tl.int32)")
        self._emit(f"while {' & '.join([*tests, f'({flag} != 0)'])}:")
        self._block(loop.condition)
        self.depth += 1
        if loop.predicate is not None:
            self._emit(f"{flag} = {self._holds(loop.predicate)}.to(tl.int32)")
        self._emit(f"if {flag} != 0:")
        self._iteration(loop)
        self.depth -= 1

    def _count_from(self, count: Count | None) -> list[str]:
        """Print where the counter begins; the test by which it ends the loop, if it does."""
        if count is None:
            return []
        name = count.symbol.name
        self._emit(f"{name} = tl.cast({self._index(count.start)}, tl.int64)")
        if count.stop is None:
            return []
        return [f"({name} {'<' if count.ascends else '>'} {self._index(count.stop)})"]

    def _iteration(self, loop: Loop) -> None:
        self._block(loop.body)
        if loop.count is not None:
            step = self._index(sympy.sympify(loop.count.step))
            self._emit(f"    {loop.count.symbol.name} += {step}")

    # -- kernels -----------------------------------------------------------------------------------------

    def _part(self, printed: PrintedKernel) -> None:
        """The calls that run all programs of a kernel."""
        function = printed.function
        if function not in self.parts:
            name = f"{NAME}_part{len(self.parts)}"
            self.parts[function] = name
            self.texts.append(part_text(function.template, name, ("program0", "program1")))
        arguments = [
            *map(self._pointer, printed.buffers),
            *map(self._row, printed.scratch),
            *map(self._index, printed.sizes),
            *map(self._scalar, printed.scalars),
            *(str(value) for _, value in function.constants),
        ]
        depth = self.depth
        programs = list(self._programs(printed))
        self._emit(f"{self.parts[function]}({', '.join([*programs, *arguments])})")
        self.depth = depth

    def _programs(self, printed: PrintedKernel) -> Iterator[str]:
        """Print the loops over a kernel's grid; the numbers of a program in it."""
        for axis, (count, block) in enumerate(zip(printed.counts, printed.blocks, strict=True)):
            programs = -(-int(count) // block)
            if programs != 1:
                self._emit(f"for program{axis} in range(0, {programs}):")
                self.depth += 1
            yield ONLY if programs == 1 else f"program{axis}"
        if len(printed.counts) == 1:
            yield ONLY

    def _row(self, row: Scratch) -> str:
        name = f"scratch{len(self.scratch)}_ptr"
        self.scratch.append(Scratch(name, row.dtype, row.elements))
        return name

    def _scalar(self, number: SizeFloat) -> str:
        return self.scalars.setdefault(number, f"number{len(self.scalars)}")
