"""Fills the structures of kernels that run one function: their differences in a table, one loop over it."""

from __future__ import annotations

from collections.abc import Sequence

from weft_codegen_cpp.host.parts import Member
from weft_codegen_cpp.statements import indent

MIN_ROWS = 8
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
    if len(rows) < MIN_ROWS or None in kinds:
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
