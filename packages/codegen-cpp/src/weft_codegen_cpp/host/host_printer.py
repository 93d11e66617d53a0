"""Prints the host program: one native function that runs the steps of a schedule in order."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from weft_loop_ir import (
    Branch,
    BufferKind,
    ExternCall,
    Item,
    Kernel,
    Loop,
    ParallelKernels,
    Requirement,
    Schedule,
    Step,
    SymbolDefinition,
    SymbolInput,
    changes_state,
    item_writes,
    print_index,
    print_number,
)

from weft_codegen_cpp.host.data_symbols import print_definition, quoted
from weft_codegen_cpp.host.entry import STAMP, Entry, print_entry, print_timeline
from weft_codegen_cpp.host.extern_calls import writes_into
from weft_codegen_cpp.host.extern_printer import print_extern
from weft_codegen_cpp.host.parts import Member, Pointer, Slot, plain
from weft_codegen_cpp.host.regions import own_buffers, print_branch, print_iterations, print_loop
from weft_codegen_cpp.host.results import print_results
from weft_codegen_cpp.host.statements import (
    DropRow,
    Failure,
    KernelRows,
    PlaceRow,
    Statement,
    failures_of,
    joined,
)
from weft_codegen_cpp.host.step_tables import HEADER, Expression, print_calls, with_tables
from weft_codegen_cpp.host.writer import HostWriter, Place
from weft_codegen_cpp.kernel.expressions import (
    INDEX,
    MAGNITUDE,
    NUMBER,
    doubles,
    indent,
    memory_type,
)
from weft_codegen_cpp.kernel.kernel_printer import PrintedKernel
from weft_codegen_cpp.options import CppOptions

NAMES_OF_LINE = 8
"""How many names of one declaration are printed beside one another; so few have one each."""

SHORT_RUN = 4
"""Pointers that follow each other are set in a loop, fewer by a statement each."""


@dataclass(frozen=True)
class PrintedHost:
    """``source`` follows the kernels; ``objects`` are what the program refers to by position.

    ``headers`` of the runtime come before all.  ``may_fail``: a step may raise.  ``early_errors`` names the
    errors that come before anything is written to an input and before a random number is drawn.
    ``checks_first``: all checks come before anything is written to an input.
    ``table_length``: characters of the source that are tables.
    """

    source: str
    objects: tuple[Any, ...]
    headers: tuple[str, ...] = ()
    may_fail: bool = True
    early_errors: str = ""
    checks_first: bool = True
    table_length: int = 0


def print_host(
    schedule: Schedule,
    kernels: Mapping[str, PrintedKernel],
    constants: Mapping[str, torch.Tensor],
    options: CppOptions,
) -> PrintedHost:
    """The program; constants that ``schedule`` itself holds never change, so their layout may be another."""
    return _HostPrinter(schedule, kernels, constants, options).print()


class _HostPrinter(HostWriter):
    """``positions`` are those of input tensors among the call's arguments."""

    def __init__(
        self,
        schedule: Schedule,
        kernels: Mapping[str, PrintedKernel],
        constants: Mapping[str, torch.Tensor],
        options: CppOptions,
    ) -> None:
        super().__init__(schedule, options)
        self.kernels = kernels
        self.uses_python = False
        self.calls_torch = False
        self.table_length = 0
        self.bounds: list[int] = []  # where the statements of each step begin and end
        self.own_of: dict[str, frozenset[str] | None] = {}  # of each iteration of a loop
        self.late = Failure.NONE  # what may end a call after the first effect
        self.has_written = False
        self.checks_first = True
        self.timed: list[Step] = []
        self.constants = {
            name: self.object(constants[name])
            for name, buffer in schedule.buffers.items()
            if buffer.kind is BufferKind.CONSTANT
        }
        passed = [item for item in schedule.inputs if item not in self.constants]
        self.input_count = len(passed)
        self.positions = {item: k for k, item in enumerate(passed) if isinstance(item, str)}

    def print(self) -> PrintedHost:
        self._inputs()
        if self.options.timed:
            self.emit(STAMP.format(0))
        self.bounds.append(len(self.steps))
        self.walk()
        self.allocate_unwritten()
        results = print_results(self)
        may_fail = bool(failures_of(self.steps))
        functions = [*self.functions, self._steps_function(self.bounds)]
        if self.options.timed:
            functions.insert(0, print_timeline(self.timed))
        parts = [self._call_struct(), *functions, results, self._entry()]
        return PrintedHost(
            plain("\n".join(parts)),
            tuple(self.objects),
            tuple(sorted(self.headers)),
            may_fail=may_fail,
            early_errors=_early_errors(self.late),
            checks_first=self.checks_first,
            table_length=self.table_length,
        )

    # -- steps -------------------------------------------------------------------------------------------

    def outermost(self, step: Step) -> None:
        """One of the schedule's steps; notes where its statements lie, and which may end a late call."""
        before = len(self.steps)
        super().outermost(step)
        self.has_written |= any(self.buffers[name].kind.is_given for name in item_writes(step))
        if self.has_written and failures_of(self.steps[before:]) & Failure.REQUIREMENT:
            self.checks_first = False
        if self.has_effects:
            self.late |= _late_failures(step, self.steps[before:])
        if self.options.timed:
            self.timed.append(step)
            self.emit(STAMP.format(len(self.timed)))
        self.bounds.append(len(self.steps))

    def first_effect(self, step: Step) -> None:
        self.emit("c.changed = true;")
        self.bounds.append(len(self.steps))

    def kernel(self, kernel: Kernel) -> None:
        self._kernels([kernel])

    def parallel_kernels(self, group: ParallelKernels) -> None:
        self._kernels(group.kernels)

    def call(self, call: ExternCall) -> None:
        self.calls_torch = True
        self.uses_python |= print_extern(self, call)

    def define(self, call: ExternCall, definition: SymbolDefinition) -> None:
        self.emit(print_definition(call, definition, self._handle, self.index))

    def require(self, requirement: Requirement) -> None:
        condition = f"{self.index(requirement.expression)} {requirement.comparison}"
        self.fail_if(f"!({condition})", Failure.REQUIREMENT, quoted(requirement.message))

    def branch(self, branch: Branch) -> None:
        print_branch(self, branch)

    def loop(self, loop: Loop) -> None:
        own = self.own_of[loop.name]
        if own is None:
            print_loop(self, loop)
        else:
            print_iterations(self, loop, own, self.kernels)

    def _kernels(self, kernels: Sequence[Kernel]) -> None:
        """Run ``kernels``, several of them in one parallel region."""
        alike: dict[tuple[str, str, str], list[Kernel]] = {}
        for kernel in kernels:
            one = self.kernels[kernel.name]
            alike.setdefault((one.name, one.units, one.nanoseconds), []).append(kernel)
        threads = self.options.threads
        printed = [self.kernels[kernel.name] for kernel in kernels]
        with self.collected() as run:
            self.emit(f"Task tasks[{len(kernels)}];")
            first = 0
            for number, members in enumerate(alike.values()):
                self.emit(*self._tasks(members, f"calls{number}", first))
                first += len(members)
            if any(one.has_symbols for one in printed):
                self.fail_if(f"endless(tasks, {len(kernels)})", Failure.TOO_LARGE)
            if len(kernels) == 1:
                self.emit(f"run_task(tasks[0], {threads});")
            else:
                self.emit(f"run_tasks(tasks, {len(kernels)}, {threads});")
            if any(one.may_fail for one in printed):
                self.fail_if("c.error.status", Failure.KERNEL)
        self.steps.append(joined("{", run, "}", rows=self._rows(kernels)))

    def _rows(self, kernels: Sequence[Kernel]) -> tuple[KernelRows] | None:
        """The row of a table that stands for running ``kernels``, which are given nothing but buffers."""
        printed = [self.kernels[kernel.name] for kernel in kernels]
        if any(one.symbols or one.scalars for one in printed):
            return None
        given = (self.kernels[kernel.name].buffers for kernel in kernels)
        return (KernelRows(tuple(zip(printed, given, strict=True))),)

    def _tasks(self, kernels: Sequence[Kernel], calls: str, first: int) -> list[str]:
        """Fill ``tasks`` from the number ``first`` on with kernels that run one function.

        A loop over a table, since compilers take their time over hundreds of statements.
        """
        one = self.kernels[kernels[0].name]
        count, cost = len(kernels), one.nanoseconds or "0"
        work = f"{one.units}, {cost}, {quoted(one.name)}"
        rows = [self._call(kernel) for kernel in kernels]
        made, filled = print_calls(one.name, calls, rows, [kernel.name for kernel in kernels])
        return [
            *made,
            f"for (i64 task = 0; task < {count}; ++task) {{",
            *indent(filled),
            *(f"  const i64 {s.name} = {calls}[task].{s.name};" for s in one.symbols),
            f"  tasks[{first} + task] = {{{one.name}, &{calls}[task], {work}}};",
            "}",
        ]

    def _call(self, kernel: Kernel) -> list[Expression]:
        """What fills the structure that the function of ``kernel`` is given."""
        one = self.kernels[kernel.name]
        fields: list[Expression] = [Pointer(name) for name in one.buffers]
        fields += [one.values.get(s, Member(s.name)) for s in one.symbols]
        for number in one.scalars:
            text = print_number(number, NUMBER, self.names())
            fields.append(Member(number.leaf.name) if number.is_passed else text)
        return [*fields, "&c.error"]

    # -- inputs ------------------------------------------------------------------------------------------

    def _inputs(self) -> None:
        """Read tensors' memory and sizes, and place intermediates in the arena."""
        for name, position in self.positions.items():
            self.sources[name] = Place("c.arguments", position)
        self.sources |= self.constants
        self._point_all("c.arguments", list(self.positions.items()))
        self._point_all("c.program->objects", [(n, k) for k, n in enumerate(self.constants)])
        for symbol, source in self.symbols.items():
            if source.input is None:
                read = "PyLong_AsLongLong" if symbol.is_integer else "PyFloat_AsDouble"
                self.emit(f"c.{symbol.name} = api.{read}(c.arguments[{self._argument(source)}]);")
            else:
                self.emit(
                    f"{{ i64* sizes = nullptr; {_getter(source)}({self._handle(source.input)}, &sizes); "
                    f"c.{symbol.name} = sizes[{source.dimension}]; }}"
                )
        for name, offset in self.schedule.memory.offsets.items():
            type_name = memory_type(self.schedule.buffers[name].layout.dtype)
            rows = (PlaceRow(name, int(offset)),) if offset.is_Integer else None
            self.emit(
                f"c.{name} = ({type_name}*)(c.frame->arena + {self.index(offset)});", rows=rows
            )
        if self.options.poison_arena:
            self.emit("__builtin_memset(c.frame->arena, 0xff, c.frame->bytes);")

    def _point_all(self, objects: str, places: Sequence[tuple[str, int]]) -> None:
        """Let buffers be the memory of tensors, given by their place among ``objects``.

        Those that follow each other in the call and there are pointed in one loop: statements for hundreds
        of parameters take a compiler seconds.
        """
        fields = {name: k for k, name in enumerate(self.schedule.buffers)}
        for _, group in itertools.groupby(
            enumerate(places), lambda p: (fields[p[1][0]] - p[0], p[1][1] - p[0])
        ):
            run = [place for _, place in group]
            (first, place), count = run[0], len(run)
            if count < SHORT_RUN:
                for name, _ in run:
                    self.point(name, self._handle(name))
                continue
            self.emit(
                f"point_all(&c, __builtin_offsetof(Call, {first}), {objects} + {place}, {count});"
            )

    def _handle(self, name: str) -> str:
        return self.sources[name].handle

    def _argument(self, source: SymbolInput) -> int:
        """The position of a number among the inputs that are not constants."""
        before = self.schedule.inputs[: source.position]
        return source.position - sum(item in self.constants for item in before)

    # -- memory ------------------------------------------------------------------------------------------

    def memory_for(self, step: Item) -> Collection[str]:
        """Each iteration of a loop allocates its own."""
        own: Collection[str] = ()
        if isinstance(step, Loop):
            self.own_of[step.name] = own_buffers(step, self.schedule)
            own = self.own_of[step.name] or ()
        return [name for name in super().memory_for(step) if name not in own]

    def writes_into(self, call: ExternCall) -> bool:
        return writes_into(call)

    def free(self, names: Sequence[str]) -> None:
        """Free their tensors, as eager would."""
        for slot in sorted(self._slots[name] for name in names if name in self._slots):
            name = self.owned[slot]
            what = "owned" if self.object_of(name) is None else "made"
            drop = f"drop_{what}(c.{what}[{Slot(slot)}]);"
            if name in self.made_in_regions:
                self.emit(f"if (c.{what}[{Slot(slot)}]) {drop}")
            else:
                self.emit(drop, rows=(DropRow(what, slot),))

    # -- functions ---------------------------------------------------------------------------------------

    def _types(self) -> dict[str, str]:
        """By buffer the type of its elements in memory."""
        return {name: memory_type(b.layout.dtype) for name, b in self.schedule.buffers.items()}

    def _call_struct(self) -> str:
        fields = [*_pointers(self._types())]
        fields += [f"{_number_type(s)} {s.name};" for s in self.names()]
        owned = max(len(self.owned), 1)
        return "\n".join(
            [
                f"constexpr i64 view_count = {self.views};",
                "// Everything that one call works on.",
                "struct Call {",
                "  Program* program;",
                "  Frame* frame;",
                "  Object const* arguments;",
                *("  " + f for f in fields),
                f"  Handle owned[{owned}];  // tensors made in this call: {', '.join(self.owned) or 'none'}",
                f"  Object made[{owned}];  // their Python objects, where they have one",
                "  const char* failed;",
                "  bool changed;  // something has been written to an input, or a number drawn",
                "  KernelError error;",
                "};",
                "",
            ]
        )

    def _steps_function(self, bounds: Sequence[int]) -> str:
        """``bounds``: where in the statements those of each step begin, and those of the last one end."""
        types = self._types()
        functions, tables, steps = with_tables(self.steps, bounds, types, self.options.threads)
        self.table_length = len("\n".join(tables))
        if tables:
            self.headers.add(HEADER)
        head = [*functions, *tables, "static Status steps(Call& c) {"]
        return "\n".join([*head, *indent(steps), "  return ok;", "}", ""])

    def _entry(self) -> str:
        arena = sympy.sympify(self.schedule.memory.arena_bytes)
        return print_entry(
            Entry(
                self.input_count,
                tuple(self.positions.values()),
                tuple(self._early_symbols(arena.free_symbols)),
                _clipped(arena),
                print_index(arena, MAGNITUDE, doubles(arena)),
                len(self.owned),
                self.calls_torch,
                self.uses_python,
            )
        )

    def _early_symbols(self, symbols: set[sympy.Symbol]) -> list[str]:
        """Read the sizes that the arena's size depends on, before there is a frame."""
        lines = []
        for symbol in sorted(symbols, key=lambda s: str(s.name)):
            source = self.symbols[symbol]
            if source.input is None:
                lines.append(
                    f"const i64 {symbol.name} = api.PyLong_AsLongLong(arguments[{self._argument(source)}]);"
                )
            else:
                lines.append(
                    f"i64* {symbol.name}_sizes = nullptr; "
                    f"{_getter(source)}({self._handle(source.input)}, &{symbol.name}_sizes);"
                )
                lines.append(f"const i64 {symbol.name} = {symbol.name}_sizes[{source.dimension}];")
        return lines


def _pointers(types: Mapping[str, str]) -> Iterator[str]:
    """Declarations of pointers to ``types``: many in a row share one, since each takes the compiler time."""
    for kind, alike in itertools.groupby(types, types.__getitem__):
        names = list(alike)
        if len(names) <= NAMES_OF_LINE:
            yield from (f"{kind}* {name};" for name in names)
            continue
        starts = range(0, len(names), NAMES_OF_LINE)
        lines = (", *".join(names[k : k + NAMES_OF_LINE]) for k in starts)
        printed = ",\n    *".join(lines)
        yield f"{kind} *{printed};"


def _clipped(size: sympy.Expr) -> str:
    """A number of bytes in C++; more than an integer holds are as many as it does."""
    return print_index(min(int(size), 2**63 - 1) if size.is_Integer else size, INDEX)


def _late_failures(step: Step, statements: Sequence[Statement]) -> Failure:
    """What may go wrong in the ``statements`` of a step; drawing random numbers raises no Python error."""
    failures = failures_of(statements)
    if isinstance(step, ExternCall) and changes_state(step) and step.operator.namespace == "aten":
        failures &= ~Failure.PYTHON
    return failures


def _early_errors(late: Failure) -> str:
    """The class of errors that none of the failures ``late`` raises; empty if there is none."""
    if not late:
        return Exception.__name__
    return "" if late & (Failure.KERNEL | Failure.PYTHON) else IndexError.__name__


def _number_type(symbol: sympy.Symbol) -> str:
    return "i64" if symbol.is_integer else "f64"


def _getter(source: SymbolInput) -> str:
    """The function that reads the sizes, or the strides, of which one defines a symbol."""
    return "api.get_strides" if source.is_stride else "api.get_sizes"
