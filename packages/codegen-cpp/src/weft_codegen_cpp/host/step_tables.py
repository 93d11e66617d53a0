"""Tables of a long program's steps, which one loop of the runtime runs.

A compiler takes milliseconds over the statements of a step, and more the longer their function is, but
nothing over constants.  So steps that depend on no size are rows of a table, others shared functions.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

from weft_codegen_cpp.host.data_symbols import quoted
from weft_codegen_cpp.host.shared_functions import Field, share_functions
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

MIN_ROWS = 32
"""Rows from which a table pays: fewer take the compiler no time as statements."""

HEADER = "weft_steps.h"
FIRST_FIELD = 3
"""Fields of a call before those of its buffers."""


def with_tables(
    statements: Sequence[Statement],
    bounds: Sequence[int],
    buffers: Mapping[str, str],
    threads: int,
) -> tuple[list[str], list[str], list[str]]:
    """The program with tables where they pay: functions, tables, and the statements that run them.

    ``bounds``: where the statements of each step begin, and those of the last one end.  ``buffers`` are the
    names of a call's fields in order, with the types of what they point to.
    """
    fields = {n: Field(FIRST_FIELD + k, t) for k, (n, t) in enumerate(buffers.items())}
    tables = _Tables(fields)
    inputs, places = _with_places(statements[: bounds[0]], fields)
    steps = lines_of(statements[bounds[0] : bounds[-1]])
    rows = [
        row
        for begin, end in itertools.pairwise(bounds)
        for row in _rows_of_step(statements[begin:end])
    ]
    if sum(map(_size, rows)) >= MIN_ROWS:
        tables.add(rows)
        call = f"run_rows<table_words, table_tasks>(c, tables, {len(tables.rows)}, {threads})"
        steps = [f"if (Status status = {call}) return status;"]
    definitions = [*places, *tables.definitions()]
    if definitions and buffers:
        first = f"__builtin_offsetof(Call, {next(iter(buffers))})"
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
    statements: Sequence[Statement], fields: Mapping[str, Field]
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
    rows = [f"    {{{fields[row.name].number}, {row.offset}}},  // {row.name}" for _, row in found]
    call = f"place_all(&c, c.frame->arena, places, {len(rows)});"
    rest = statements[: found[0][0]], statements[found[-1][0] + 1 :]
    table = ["static const Place places[] = {", *rows, "};"]
    return [*lines_of(rest[0]), call, *lines_of(rest[1])], table


class _Tables:
    """The rows of all runs, and what they refer to."""

    def __init__(self, fields: Mapping[str, Field]) -> None:
        self.fields = fields
        self.rows: list[str] = []
        self.places: list[str] = []  # lines of numbers
        self.place_count = 0
        self.layouts: dict[str, int] = {}
        self.texts: dict[str, int] = {}
        self.functions: list[str] = []
        self.function_count = 0
        self.words = self.tasks = 1

    def add(self, rows: Sequence[Row]) -> None:
        """Append ``rows``: called once, for all of them share their functions."""
        calls = self._share([row for row in rows if isinstance(row, FunctionRow)])
        for row in rows:
            if isinstance(row, FunctionRow):
                self.rows.append(next(calls))
            else:
                self._add(row)

    def _share(self, rows: Sequence[FunctionRow]) -> Iterator[str]:
        """Define the functions of ``rows``; what calls them in order."""
        shared = share_functions([row.statements for row in rows], self.fields)
        self.function_count = len(shared)
        lists: dict[int, tuple[int, tuple[int | str, ...]]] = {}
        for number, (function, members) in enumerate(shared):
            self.functions += function.definition
            lists.update(zip(members, ((number, one) for one in function.lists), strict=True))
        for _, (number, one) in sorted(lists.items()):
            first = self._place([self._number(element) for element in one])
            yield f"{{run_function, {number}, {first}}},"

    def _number(self, element: int | str) -> int:
        """An element of a function's list: a text by its position among all."""
        return (
            element if isinstance(element, int) else self.texts.setdefault(element, len(self.texts))
        )

    def _add(self, row: PlaceRow | KernelRows | AllocationRow | ViewRow | DropRow) -> None:
        match row:
            case KernelRows():
                self._kernels(row)
            case AllocationRow():
                first = self._place([self.fields[row.name].number, row.slot])
                self.rows.append(f"{{make_tensor, {first}, {self._layout(row)}}},  // {row.name}")
            case ViewRow():
                first = self._place([self.fields[row.name].number, row.number])
                work = f"{self._layout(row)}, 1, nullptr, {row.offset}"
                self.rows.append(f"{{make_view, {first}, {work}}},  // {row.name}")
            case DropRow():
                action = "drop_tensor" if row.what == "owned" else "drop_object"
                self.rows.append(f"{{{action}, {row.slot}}},")

    def _layout(self, row: AllocationRow | ViewRow) -> int:
        return self.layouts.setdefault(row.layout, len(self.layouts))

    def _kernels(self, row: KernelRows) -> None:
        together = len(row.kernels)
        self.tasks = max(self.tasks, together)
        self.words = max(self.words, sum(len(names) + 1 for _, names in row.kernels))
        for kernel, names in row.kernels:
            first = self._place([self.fields[name].number for name in names])
            work = (
                f"{kernel.name}, {kernel.units}, {kernel.nanoseconds or '0'}, {quoted(kernel.name)}"
            )
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
            "static const char* const table_texts[] = {",
            *(f"    {text}," for text in self.texts or ["nullptr"]),
            "};",
            "static const TableLayout table_layouts[] = {",
            *(f"    {{{layout}}}," for layout in layouts),
            "};",
            "static const TableRow table_rows[] = {",
            *(f"    {row}" for row in self.rows),
            "};",
            "static const Tables tables = {",
            "    table_rows, table_fields, table_layouts, table_functions, table_texts};",
        ]
