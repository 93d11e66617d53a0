"""Reading the bytes of a code object: instructions, the exception table, the names of a frame's slots."""

from __future__ import annotations

import dis
import opcode
import types
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from .dialects import DIALECT
from .indexed_iterators import index_slots, iter_calls, without_indices


def _caches() -> dict[str, int]:
    entries = opcode._inline_cache_entries  # type: ignore[attr-defined]
    if isinstance(entries, Mapping):  # 3.13
        return {name: entries.get(name, 0) for name in dis.opmap}
    return {name: entries[code] for name, code in dis.opmap.items() if code < 256}


CACHES: dict[str, int] = _caches()
"""Code units of inline cache behind an instruction, by its name."""

JUMPS = frozenset(dis.hasjrel) - {dis.opmap["END_ASYNC_FOR"]}
"""Not what 3.14 has as one for tools only."""

LOCALS = frozenset(dis.haslocal) | frozenset(dis.hasfree)
"""Operations whose argument is a slot of the frame."""


class Unit(NamedTuple):
    """An instruction, as it is in the bytes but for what :class:`Dialect` says is spelled differently.

    ``argument`` includes its extension.  ``offset`` and ``target``, where a jump goes, are in bytes; two
    that are one instruction in the bytes have the same offset.  ``is_prefix``: it does nothing but prepare
    the next one.
    """

    offset: int
    operation: int
    name: str
    argument: int
    target: int | None
    is_prefix: bool = False


def read(code: types.CodeType) -> Iterator[Unit]:
    """The instructions of a code object in order."""
    units = list(_plain(code))
    if DIALECT.indexed_iterators:
        slots = index_slots(list(_encoded(code)), list(_exception_rows(code)))
        units = without_indices(units, slots)
        written = iter_calls(code.co_consts)
        if written is not None:
            _join(units, "GET_ITER", written)
            units = [u._replace(argument=0) if u.name == "GET_ITER" else u for u in units]
    for name, parts in DIALECT.sequences.items():
        _join(units, name, parts)
    if DIALECT.bools_before:
        _imply_bools(units)
    return iter(units)


def _imply_bools(units: list[Unit]) -> None:
    """Let each ``TO_BOOL`` be a prefix of the test behind it, if there is one."""
    for i, unit in enumerate(units):
        if unit.name == "TO_BOOL":
            following = next(other for other in units[i + 1 :] if not other.is_prefix)
            if following.name in DIALECT.bools_before:
                units[i] = unit._replace(is_prefix=True)


def _join(units: list[Unit], name: str, parts: tuple[tuple[str, int], ...]) -> None:
    """Let each sequence of ``parts`` be one instruction, the last, with the others as its prefixes."""
    found = [(unit.name, unit.argument) for unit in units]
    for i in range(len(parts) - 1, len(units)):
        start = i + 1 - len(parts)
        if found[i] == parts[-1] and tuple(found[start : i + 1]) == parts:
            units[start:i] = [unit._replace(is_prefix=True) for unit in units[start:i]]
            units[i] = units[i]._replace(name=name, operation=dis.opmap.get(name, -1))


def _plain(code: types.CodeType) -> Iterator[Unit]:
    """The instructions with pairs taken apart, and synonyms by one name."""
    for unit in _encoded(code):
        if unit.name not in _RESPELLED:
            yield unit
            continue
        name = DIALECT.synonyms.get(unit.name, unit.name)
        pair = DIALECT.pairs.get(name)
        if pair is not None:
            for part, number in zip(pair, divmod(unit.argument, 16), strict=True):
                yield unit._replace(name=part, operation=dis.opmap[part], argument=number)
        elif name == "COMPARE_OP" and unit.argument & DIALECT.comparison_to_bool:
            yield unit._replace(argument=unit.argument & ~DIALECT.comparison_to_bool)
            yield Unit(unit.offset, dis.opmap["TO_BOOL"], "TO_BOOL", 0, None)
        elif name != unit.name:
            yield unit._replace(name=name, operation=dis.opmap[name])
        else:
            yield unit


_RESPELLED = frozenset({*DIALECT.synonyms, *DIALECT.pairs, "COMPARE_OP"})
"""Names of instructions that may be spelled differently in the bytes."""

_STEPS = {dis.opmap[name]: (name, 2 + 2 * count) for name, count in CACHES.items()}
"""Of each operation its name, and the bytes to the next one."""


def _encoded(code: types.CodeType) -> Iterator[Unit]:
    """The instructions as they are in the bytes."""
    raw = code.co_code
    extended = 0
    offset = 0
    end = len(raw)
    while offset < end:
        operation, argument = raw[offset], raw[offset + 1] | extended
        name, size = _STEPS[operation]
        following = offset + size
        target = None
        if operation in JUMPS:
            # Jumps are relative to the instruction behind this one's caches.
            target = following + (-2 if "BACKWARD" in name else 2) * argument
        is_prefix = operation == dis.EXTENDED_ARG
        yield Unit(offset, operation, name, argument, target, is_prefix)
        extended = argument << 8 if is_prefix else 0
        offset = following


def variable_names(code: types.CodeType) -> tuple[str, ...]:
    """Names of all slots of a frame: locals, cells that are not locals, free variables."""
    local = set(code.co_varnames)
    cells = tuple(name for name in code.co_cellvars if name not in local)
    return code.co_varnames + cells + code.co_freevars


class ExceptionEntry(NamedTuple):
    """A row of the exception table; offsets in bytes, ``end`` exclusive.

    For an exception raised in it the stack is cut to ``depth``, the place of the instruction that raised is
    pushed if ``push_offset``, then the exception, and ``target`` runs.
    """

    start: int
    end: int
    target: int
    depth: int
    push_offset: bool


def exception_entries(code: types.CodeType) -> Iterator[ExceptionEntry]:
    """The rows of a code object's exception table, for the stack as :func:`read` describes it."""
    rows = list(_exception_rows(code))
    if DIALECT.indexed_iterators and rows:
        slots = index_slots(list(_encoded(code)), rows)
        rows = [row._replace(depth=row.depth - _index_count(row, slots)) for row in rows]
    return iter(rows)


def _index_count(row: ExceptionEntry, slots: Mapping[int, tuple[bool, ...]]) -> int:
    """How many slots that count elements a handler leaves on the stack."""
    covered = (slots[offset] for offset in range(row.start, row.end, 2) if offset in slots)
    return sum(next(covered, ())[: row.depth])


def _exception_rows(code: types.CodeType) -> Iterator[ExceptionEntry]:
    """The exception table as it is in the bytes: big-endian numbers of groups of 6 bits."""
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
        yield ExceptionEntry(start, start + length, target, flags >> 1, bool(flags & 1))
