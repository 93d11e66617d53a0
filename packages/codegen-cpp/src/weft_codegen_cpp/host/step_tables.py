"""Tables of a long program's steps, which one loop of the runtime runs.

A compiler takes milliseconds over the statements of a step, and more the longer their function is, but
nothing over constants.  So steps that depend on no size are rows of a table, others a function each.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from weft_codegen_cpp.host.statements import (
    AllocationRow,
    DropRow,
    FunctionRow,
    KernelRows,
    PlaceRow,
    Row,
    Statement,
    ViewRow,
    lines_of,
)
from weft_codegen_cpp.statements import indent

MIN_ROWS = 32
"""Rows from which a table pays: fewer take the compiler no time as statements."""

HEADER = "weft_steps.h"
FIRST_FIELD = 3
"""Fields of a call before those of its buffers."""


def with_tables(
    statements: Sequence[Statement], bounds: Sequence[int], buffers: Sequence[str], threads: int
) -> tuple[list[str], list[str], list[str]]:
    """The program with tables where they pay: functions, tables, and the statements that run them.

    ``bounds``: where the statements of each step begin, and those of the last one end.  ``buffers`` are the
    names of a call's fields in order.
    """
    fields = {name: FIRST_FIELD + k for k, name in enumerate(buffers)}
    tables = _Tables(fields)
    inputs, places = _with_places(statements[: bounds[0]], fields)
    steps = lines_of(statements[bounds[0] : bounds[-1]])
    rows = [
        row
        for begin, end in itertools.pairwise(bounds)
        for row in _rows_of_step(statements[begin:end])
    ]
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
    return tables.functions, definitions, [*inputs, *steps, *lines_of(statements[bounds[-1] :])]


def _rows_of_step(statements: Sequence[Statement]) -> list[Row]:
    """Statements that no rows stand for share names: from the first of them to the last they are one row."""
    others = [k for k, statement in enumerate(statements) if statement.rows is None]
    first, end = (others[0], others[-1] + 1) if others else (len(statements),) * 2
    function = [FunctionRow(tuple(lines_of(statements[first:end])))] if others else []
    return [*_rows(statements[:first]), *function, *_rows(statements[end:])]


def _rows(statements: Sequence[Statement]) -> list[Row]:
    return [row for statement in statements for row in statement.rows or ()]


def _size(row: Row) -> int:
    return len(row.kernels) if isinstance(row, KernelRows) else 1


def _with_places(
    statements: Sequence[Statement], fields: Mapping[str, int]
) -> tuple[list[str], list[str]]:
    """Statements that place buffers in the arena, which follow each other, as one table."""
    found = [
        (k, row)
        for k, statement in enumerate(statements)
        for row in _rows([statement])
        if isinstance(row, PlaceRow)
    ]
    if len(found) < MIN_ROWS or found[-1][0] - found[0][0] != len(found) - 1:
        return lines_of(statements), []
    rows = [f"    {{{fields[row.name]}, {row.offset}}},  // {row.name}" for _, row in found]
    call = f"place_all(&c, c.frame->arena, places, {len(rows)});"
    rest = statements[: found[0][0]], statements[found[-1][0] + 1 :]
    table = ["static const Place places[] = {", *rows, "};"]
    return [*lines_of(rest[0]), call, *lines_of(rest[1])], table


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
