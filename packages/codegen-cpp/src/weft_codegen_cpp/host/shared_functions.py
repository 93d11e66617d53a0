"""Steps that differ only in what they work on share one function: layers alike cost a compiler nothing.

Such a function is given a list of numbers: the slots, the fields of the call and the texts of errors by which
its steps differ.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from weft_codegen_cpp.statements import indent

_PART = re.compile(
    r'c\.failed = (?P<text>"(?:[^"\\]|\\.)*")'
    r"|\b(?:c\.)?(?:owned|made|arguments|objects|views)\[(?P<slot>\d+)\]"
    r"|\b(?P<field>c\.[A-Za-z_]\w*)"
)
"""What tells steps apart: a string, the number of a slot, a buffer's pointer."""


@dataclass(frozen=True)
class Field:
    """The pointer to a buffer in a call: how many others are before it, and the type of what it points to."""

    number: int
    type_name: str


@dataclass(frozen=True)
class _Part:
    """C++ that another step may have otherwise: ``form`` makes it of an element of the step's list."""

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
    parts = []
    for position, lines in enumerate(steps):
        between, found = _split("\n".join(lines), fields)
        parts.append(found)
        alike.setdefault((between, tuple(part.form for part in found)), []).append(position)
    return [
        (_shared(f"step{number}", between, [parts[k] for k in members]), members)
        for number, ((between, _), members) in enumerate(alike.items())
    ]


def _split(code: str, fields: Mapping[str, Field]) -> tuple[tuple[str, ...], list[_Part]]:
    """The parts of ``code`` that may vary, and what lies before, between and behind them."""
    between, parts, end = [], [], 0
    for match in _PART.finditer(code):
        kind = str(match.lastgroup)
        field = fields.get(match[kind][2:]) if kind == "field" else None
        if kind == "field" and field is None:
            continue  # a size, or something that all steps share
        if field is not None:
            part = _Part(match[kind], f"field<{field.type_name}>(c, {{}})", field.number)
        elif kind == "slot":
            part = _Part(match[kind], "{}", int(match[kind]))
        else:
            part = _Part(match[kind], "texts[{}]", match[kind])
        between.append(code[end : match.start(kind)])
        parts.append(part)
        end = match.end(kind)
    return (*between, code[end:]), parts


def _shared(name: str, between: Sequence[str], steps: Sequence[Sequence[_Part]]) -> SharedFunction:
    """The function of ``steps``, which are alike; what is equal in all of them is no part of their lists."""
    columns: dict[tuple[int | str, ...], int] = {}
    code = [between[0]]
    for column, behind in zip(zip(*steps, strict=True), between[1:], strict=True):
        values = tuple(part.value for part in column)
        if len(set(values)) == 1:
            code.append(column[0].code)
        else:
            element = f"list[{columns.setdefault(values, len(columns))}]"
            code.append(column[0].form.format(element))
        code.append(behind)
    parameters = "Call& c, const i32* list, const char* const* texts"
    definition = [
        f"static Status {name}({parameters}) {{",
        *indent("".join(code).split("\n")),
        "  return ok;",
        "}",
    ]
    lists = tuple(zip(*columns, strict=True)) if columns else ((),) * len(steps)
    return SharedFunction(tuple(definition), lists)
