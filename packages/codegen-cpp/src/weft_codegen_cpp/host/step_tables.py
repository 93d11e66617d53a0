"""Tables of a long program's steps, which one loop of the runtime runs.

A compiler takes milliseconds over the statements of a step, and more the longer their function is, but
nothing over constants.  So steps that depend on no size are rows of a table, others shared functions: steps
that differ only in what they work on, as those of layers, are calls of one.  It is given a list of numbers:
the slots, the fields of the call and the texts of errors by which its steps differ.

Calls of kernels that run one function are filled so too: their differences in a table, one loop over it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from weft_codegen_cpp.host.data_symbols import quoted
from weft_codegen_cpp.host.parts import Member, Message, Part, Slot, filled, pieces_of
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
from weft_codegen_cpp.kernel.expressions import indent


@dataclass(frozen=True)
class Field:
    """The pointer to a buffer in a call: how many others are before it, and the type of what it points to."""

    number: int
    type_name: str


@dataclass(frozen=True)
class _Element:
    """A part of a step as C++, and the element of the step's list of which ``form`` makes it."""

    code: str
    form: str
    value: int | str


@dataclass(frozen=True)
class SharedFunction:
    """A function's definition, and the list that it is given for each step: numbers, and texts of errors."""

    definition: tuple[str, ...]
    lists: tuple[tuple[int | str, ...], ...]


def share_functions(
    steps: Sequence[Sequence[str]], fields: Mapping[str, Field]
) -> list[tuple[SharedFunction, list[int]]]:
    """The functions of ``steps``, each the lines of one, with the positions of the steps that they stand for.

    ``fields`` are those of a call, by name.  The functions are named ``step0``, ``step1`` and so on.
    """
    alike: dict[tuple[tuple[str, ...], tuple[str, ...]], list[int]] = {}
    elements = []
    for position, lines in enumerate(steps):
        between, parts = pieces_of("\n".join(lines))
        elements.append([_element(part, fields) for part in parts])
        forms = tuple(element.form for element in elements[-1])
        alike.setdefault((between, forms), []).append(position)
    return [
        (_shared(f"step{number}", between, [elements[k] for k in members]), members)
        for number, ((between, _), members) in enumerate(alike.items())
    ]


def _element(part: Part, fields: Mapping[str, Field]) -> _Element:
    match part:
        case Slot():
            return _Element(part.code, "{}", part.number)
        case Message():
            return _Element(part.code, "texts[{}]", part.code)
    field = fields[part.name]
    return _Element(part.code, f"field<{field.type_name}>(c, {{}})", field.number)


def _shared(
    name: str, between: Sequence[str], steps: Sequence[Sequence[_Element]]
) -> SharedFunction:
    """The function of ``steps``, which are alike; what is equal in all of them is no part of their lists."""
    lists: dict[tuple[int | str, ...], int] = {}
    codes = []
    for column in zip(*steps, strict=True):
        values = tuple(element.value for element in column)
        if len(set(values)) == 1:
            codes.append(column[0].code)
        else:
            codes.append(column[0].form.format(f"list[{lists.setdefault(values, len(lists))}]"))
    definition = (
        f"static Status {name}(Call& c, const i32* list, const char* const* texts) {{",
        *indent(filled(between, codes).split("\n")),
        "  return ok;",
        "}",
    )
    return SharedFunction(
        definition, tuple(zip(*lists, strict=True)) if lists else ((),) * len(steps)
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


# -- calls ---------------------------------------------------------------------------------------------


MIN_CALLS = 8
"""Structures from which a table pays: fewer take the compiler no time as statements."""


Expression = Member | int | str
"""In C++: what a table can hold, or whatever else."""


def print_calls(
    kernel: str, calls: str, rows: Sequence[Sequence[Expression]], names: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Statements that make ``calls``, an array of structures of ``kernel``, and those for each ``task``.

    ``rows`` are the expressions of the structures' fields, ``names`` whom each structure is for.  A compiler
    takes seconds over thousands of assignments in one function, nothing over constants: so a table has which
    fields of the call a structure takes, and its integers.
    """
    columns = list(zip(*rows, strict=True))
    kinds = [_type(column) for column in columns]
    if len(rows) < MIN_CALLS or None in kinds:
        texts = [", ".join(map(str, row)) for row in rows]
        lines = [f"{{{text}}},  // {name}" for text, name in zip(texts, names, strict=True)]
        return [f"const {kernel}_call {calls}[] = {{", *("    " + s for s in lines), "};"], []
    varying = [k for k, kind in enumerate(kinds) if kind]
    table = [", ".join(_entry(row[k]) for k in varying) for row in rows]
    fields = list(map(str, rows[0]))
    for k in varying:
        place = f"{calls}_of[task].f{k}"
        fields[k] = place if isinstance(rows[0][k], int) else f"c.*{place}"
    made = [
        "static const struct {",
        *indent(f"{kinds[k]}f{k};" for k in varying),
        f"}} {calls}_of[] = {{",
        *(f"    {{{entry}}},  // {name}" for entry, name in zip(table, names, strict=True)),
        "};",
        f"{kernel}_call {calls}[{len(rows)}];",
    ]
    return made, [f"{calls}[task] = {{{', '.join(fields)}}};"]


def _type(column: Sequence[Expression]) -> str | None:
    """How a table declares what differs in a column; ``""`` where nothing does, None if it has no table."""
    first = column[0]
    if len(set(column)) == 1:
        return ""
    if all(isinstance(expression, int) for expression in column):
        return "i64 "
    if isinstance(first, Member) and all(isinstance(one, Member) for one in column):
        return f"decltype(Call::{first.name}) Call::*"
    return None


def _entry(expression: Expression) -> str:
    return f"&Call::{expression.name}" if isinstance(expression, Member) else str(expression)
