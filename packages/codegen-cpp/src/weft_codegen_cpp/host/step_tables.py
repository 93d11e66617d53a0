"""Tables of a long program's steps, which one loop of the runtime runs.

A compiler takes milliseconds over the statements of a step, and more the longer their function is, but
nothing over constants.  So steps that depend on no size are rows of a table, others a function each.
"""

from __future__ import annotations

import itertools
import re
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from weft_codegen_cpp.kernel.kernel_printer import PrintedKernel
from weft_codegen_cpp.statements import indent

MIN_ROWS = 32
"""Rows from which a table pays: fewer take the compiler no time as statements."""

HEADER = "weft_steps.h"
FIRST_FIELD = 3
"""Fields of a call before those of its buffers."""

_PLACED = re.compile(r"c\.(\w+) = \([\w ]+\*\)\(c\.frame->arena \+ (\d+)\);")


@dataclass(frozen=True)
class KernelRows:
    """Kernels that run together: the function of each with what it is given, buffers all."""

    kernels: tuple[tuple[PrintedKernel, tuple[str, ...]], ...]


@dataclass(frozen=True)
class AllocationRow:
    """A buffer whose memory is a new tensor: its slot and, as C++, its layout."""

    name: str
    slot: int
    layout: str


@dataclass(frozen=True)
class DropRow:
    """The tensor, or the Python object, in a slot, which is freed by ``drop_owned`` or ``drop_made``."""

    what: str
    slot: int


@dataclass(frozen=True)
class ViewRow:
    """A tensor, by its number, on the memory of a buffer from an offset in bytes on."""

    name: str
    number: int
    offset: int
    layout: str


@dataclass(frozen=True)
class FunctionRow:
    """Statements in a function of their own."""

    statements: tuple[str, ...]


Row = KernelRows | AllocationRow | DropRow | ViewRow | FunctionRow


@dataclass(frozen=True)
class TabledStep:
    """The statements from ``begin`` to ``end`` do the same as ``row``."""

    begin: int
    end: int
    row: Row


def with_tables(
    statements: Sequence[str],
    bounds: Sequence[int],
    tabled: Sequence[TabledStep],
    buffers: Sequence[str],
    threads: int,
) -> tuple[list[str], list[str], list[str]]:
    """The program with tables where they pay: functions, tables, and the statements that run them.

    ``bounds``: where the statements of each step begin, and those of the last one end.  ``buffers`` are the
    names of a call's fields in order.
    """
    fields = {name: FIRST_FIELD + k for k, name in enumerate(buffers)}
    tables = _Tables(fields)
    inputs, places = _with_places(statements[: bounds[0]], fields)
    steps = list(statements[bounds[0] : bounds[-1]])
    rows = _rows(statements, bounds, tabled)
    if sum(map(_size, rows)) >= MIN_ROWS:
        for row in rows:
            tables.add(row)
        call = f"run_rows<table_words, table_tasks>(c, tables, {len(tables.rows)}, {threads})"
        steps = [f"if (Status status = {call}) return status;"]
    definitions = [*places, *tables.definitions()]
    if definitions and buffers:
        first = f"__builtin_offsetof(Call, {buffers[0]})"
        check = f"static_assert({first} == {FIRST_FIELD} * sizeof(void*));"
        definitions = [check, *definitions, ""]
    return tables.functions, definitions, [*inputs, *steps, *statements[bounds[-1] :]]


def _rows(
    statements: Sequence[str], bounds: Sequence[int], tabled: Sequence[TabledStep]
) -> list[Row]:
    """The rows of all steps.

    Statements that no row stands for share names within a step, so from the first of them to the last they
    are one function.
    """
    rows: list[Row] = []
    rest = deque(tabled)
    for begin, end in itertools.pairwise(bounds):
        own = []
        while rest and rest[0].begin < end:
            own.append(rest.popleft())
        known = {k for step in own for k in range(step.begin, step.end)}
        others = [
            k for k in range(begin, end) if k not in known and not statements[k].startswith("//")
        ]
        first, last = (others[0], others[-1]) if others else (end, end)
        rows += [step.row for step in own if step.end <= first]
        if others:
            rows.append(FunctionRow(tuple(statements[first : last + 1])))
        rows += [step.row for step in own if step.begin > last]
    return rows


def _size(row: Row) -> int:
    return len(row.kernels) if isinstance(row, KernelRows) else 1


def _with_places(
    statements: Sequence[str], fields: Mapping[str, int]
) -> tuple[list[str], list[str]]:
    """Statements that place buffers in the arena, which follow each other, as one table."""
    placed = [(k, _PLACED.fullmatch(text)) for k, text in enumerate(statements)]
    found = [(k, match) for k, match in placed if match is not None]
    if len(found) < MIN_ROWS or found[-1][0] - found[0][0] != len(found) - 1:
        return list(statements), []
    rows = [f"    {{{fields[match[1]]}, {match[2]}}},  // {match[1]}" for _, match in found]
    call = f"place_all(&c, c.frame->arena, places, {len(rows)});"
    rest = statements[: found[0][0]], statements[found[-1][0] + 1 :]
    return [*rest[0], call, *rest[1]], ["static const Place places[] = {", *rows, "};"]


class _Tables:
    """The rows of all runs, and what they refer to."""

    def __init__(self, fields: Mapping[str, int]) -> None:
        self.fields = fields
        self.rows: list[str] = []
        self.places: list[str] = []  # lines of numbers
        self.place_count = 0
        self.layouts: dict[str, int] = {}
        self.functions: list[str] = []
        self.function_count = 0
        self.words = self.tasks = 1

    def add(self, row: Row) -> None:
        match row:
            case KernelRows():
                self._kernels(row)
            case AllocationRow():
                first = self._place([self.fields[row.name], row.slot])
                self.rows.append(f"{{make_tensor, {first}, {self._layout(row)}}},  // {row.name}")
            case ViewRow():
                first = self._place([self.fields[row.name], row.number])
                work = f"{self._layout(row)}, 1, nullptr, {row.offset}"
                self.rows.append(f"{{make_view, {first}, {work}}},  // {row.name}")
            case DropRow():
                action = "drop_tensor" if row.what == "owned" else "drop_object"
                self.rows.append(f"{{{action}, {row.slot}}},")
            case FunctionRow():
                name = f"step{self.function_count}"
                lines = [f"static Status {name}(Call& c) {{", *indent(row.statements)]
                self.functions += [*lines, "  return ok;", "}"]
                self.rows.append(f"{{run_function, {self.function_count}}},")
                self.function_count += 1

    def _layout(self, row: AllocationRow | ViewRow) -> int:
        return self.layouts.setdefault(row.layout, len(self.layouts))

    def _kernels(self, row: KernelRows) -> None:
        together = len(row.kernels)
        self.tasks = max(self.tasks, together)
        self.words = max(self.words, sum(len(names) + 1 for _, names in row.kernels))
        for kernel, names in row.kernels:
            first = self._place([self.fields[name] for name in names])
            work = f"{kernel.name}, {kernel.units}, {kernel.nanoseconds or '0'}"
            comment = ", ".join(names)
            self.rows.append(
                f"{{run_kernels, {first}, {len(names)}, {together}, {work}}},  // {comment}"
            )

    def _place(self, numbers: Sequence[int]) -> int:
        first = self.place_count
        if numbers:  # a kernel may take nothing, and a row of nothing is no C++
            self.places.append(", ".join(map(str, numbers)))
        self.place_count += len(numbers)
        return first

    def definitions(self) -> list[str]:
        if not self.rows:
            return []
        layouts = list(self.layouts) or ["0, nullptr, nullptr, 0"]
        functions = [f"step{k}" for k in range(self.function_count)] or ["nullptr"]
        return [
            f"static const StepFunction table_functions[] = {{{', '.join(functions)}}};",
            f"constexpr int table_words = {self.words}, table_tasks = {self.tasks};",
            "static const i32 table_fields[] = {",
            *(f"    {line}," for line in self.places or ["0"]),
            "};",
            "static const TableLayout table_layouts[] = {",
            *(f"    {{{layout}}}," for layout in layouts),
            "};",
            "static const TableRow table_rows[] = {",
            *(f"    {row}" for row in self.rows),
            "};",
            "static const Tables tables = {table_rows, table_fields, table_layouts, table_functions};",
        ]
