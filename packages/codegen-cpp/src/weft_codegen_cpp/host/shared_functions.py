"""Steps that differ only in what they work on share one function: layers alike cost a compiler nothing.

Such a function is given a list of numbers: the slots, the fields of the call and the texts of errors by which
its steps differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from weft_codegen_cpp.host.parts import Message, Part, Slot, filled, pieces_of
from weft_codegen_cpp.statements import indent


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
