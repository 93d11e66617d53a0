"""Reading the bytes of a code object: instructions, the exception table, the names of a frame's slots."""

from __future__ import annotations

import dis
import opcode
import types
from collections.abc import Iterator
from typing import NamedTuple

CACHES: dict[str, int] = {
    name: opcode._inline_cache_entries[code]  # type: ignore[attr-defined]
    for name, code in dis.opmap.items()
    if code < 256
}
"""Code units of inline cache behind an instruction, by its name."""

JUMPS = frozenset(dis.hasjrel)
LOCALS = frozenset(dis.haslocal) | frozenset(dis.hasfree)
"""Operations whose argument is a slot of the frame."""


class Unit(NamedTuple):
    """An instruction as it is in the bytes, an EXTENDED_ARG too; ``argument`` includes its extension.

    ``offset`` and ``target``, where a jump goes, are in bytes.
    """

    offset: int
    operation: int
    name: str
    argument: int
    target: int | None


def read(code: types.CodeType) -> Iterator[Unit]:
    """The instructions of a code object in order."""
    raw = code.co_code
    extended = 0
    offset = 0
    while offset < len(raw):
        operation, argument = raw[offset], raw[offset + 1] | extended
        name = dis.opname[operation]
        following = offset + 2 + 2 * CACHES[name]
        target = None
        if operation in JUMPS:
            # Jumps are relative to the instruction behind this one's caches.
            target = following + (-2 if "BACKWARD" in name else 2) * argument
        yield Unit(offset, operation, name, argument, target)
        extended = argument << 8 if operation == dis.EXTENDED_ARG else 0
        offset = following


def variable_names(code: types.CodeType) -> tuple[str, ...]:
    """Names of all slots of a frame: locals, cells that are not locals, free variables."""
    local = set(code.co_varnames)
    cells = tuple(name for name in code.co_cellvars if name not in local)
    return code.co_varnames + cells + code.co_freevars


class Region(NamedTuple):
    """A row of the exception table; offsets in bytes, ``end`` exclusive.

    For an exception raised in it the stack is cut to ``depth``, the place of the instruction that raised is
    pushed if ``push_offset``, then the exception, and ``target`` runs.
    """

    start: int
    end: int
    target: int
    depth: int
    push_offset: bool


def exception_regions(code: types.CodeType) -> Iterator[Region]:
    """The rows of a code object's exception table: big-endian numbers of groups of 6 bits."""
    table = code.co_exceptiontable
    position = 0

    def number() -> int:
        nonlocal position
        value = table[position] & 63
        while table[position] & 64:
            position += 1
            value = value << 6 | table[position] & 63
        position += 1
        return value

    while position < len(table):
        start, length, target, flags = number() * 2, number() * 2, number() * 2, number()
        yield Region(start, start + length, target, flags >> 1, bool(flags & 1))
