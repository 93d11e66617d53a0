"""Fills the structures of kernels that run one function: their differences in a table, one loop over it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from weft_codegen_cpp.statements import indent

MIN_ROWS = 8
"""Structures from which a table pays: fewer take the compiler no time as statements."""

_OF_THE_CALL = re.compile(r"c\.(\w+)")
_INTEGER = re.compile(r"-?\d+")


def print_calls(
    kernel: str, calls: str, rows: Sequence[Sequence[str]], names: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Statements that make ``calls``, an array of structures of ``kernel``, and those for each ``task``.

    ``rows`` are the expressions of the structures' fields, ``names`` whom each structure is for.  A compiler
    takes seconds over thousands of assignments in one function, nothing over constants: so a table has which
    fields of the call a structure takes, and its integers.
    """
    columns = list(zip(*rows, strict=True))
    kinds = [_type(column) for column in columns]
    if len(rows) < MIN_ROWS or None in kinds:
        lines = [f"{{{', '.join(row)}}},  // {name}" for row, name in zip(rows, names, strict=True)]
        return [f"const {kernel}_call {calls}[] = {{", *("    " + s for s in lines), "};"], []
    varying = [k for k, kind in enumerate(kinds) if kind]
    table = [", ".join(_entry(row[k]) for k in varying) for row in rows]
    texts = list(rows[0])
    for k in varying:
        place = f"{calls}_of[task].f{k}"
        texts[k] = place if _INTEGER.fullmatch(texts[k]) else f"c.*{place}"
    made = [
        "static const struct {",
        *indent(f"{kinds[k]}f{k};" for k in varying),
        f"}} {calls}_of[] = {{",
        *(f"    {{{entry}}},  // {name}" for entry, name in zip(table, names, strict=True)),
        "};",
        f"{kernel}_call {calls}[{len(rows)}];",
    ]
    return made, [f"{calls}[task] = {{{', '.join(texts)}}};"]


def _type(column: Sequence[str]) -> str | None:
    """How a table declares what differs in a column; ``""`` where nothing does, None if it has no table."""
    if len(set(column)) == 1:
        return ""
    if all(_INTEGER.fullmatch(text) for text in column):
        return "i64 "
    found = [_OF_THE_CALL.fullmatch(text) for text in column]
    if None in found or found[0] is None:
        return None
    return f"decltype(Call::{found[0][1]}) Call::*"


def _entry(text: str) -> str:
    return text if _INTEGER.fullmatch(text) else f"&Call::{text[2:]}"
