"""Iterators of two slots (3.15), read and written as if they had one.

A ``for`` loop over a list or a tuple has the sequence and an index on the stack, one over anything else an
iterator and NULL; so has ``yield from``.  Reading leaves the upper slot out, with what counts it.
Writing takes a loop's iterator by ``iter()``, which any code may go on with, and lets NULL lie on it for
the one instruction that asks for its next element.
"""

from __future__ import annotations

import dis
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .reading import ExceptionEntry, Unit

Slots = tuple[bool, ...]
"""Of each slot of the stack whether it is the upper one of an iterator."""

_WITH_ARGUMENT: frozenset[int] = frozenset(getattr(dis, "hasarg", ()))  # 3.12
_LEAVE = frozenset(("RETURN_VALUE", "RAISE_VARARGS", "RERAISE"))
_YIELD_FROM = 3
"""The bits of ``GET_ITER``'s operand: not 0 for ``yield from``, which takes generators as they are."""

_COUNTED_FROM = {
    **dict.fromkeys(("SWAP", "COPY"), 0),
    **dict.fromkeys(("LIST_APPEND", "SET_ADD", "LIST_EXTEND", "SET_UPDATE", "DICT_UPDATE"), 1),
    "MAP_ADD": 2,
}
"""How many slots an instruction takes off before it counts those to the slot that it is about."""

SPELLINGS: Mapping[str, tuple[tuple[str, int | None], ...]] = {
    "GET_ITER": (("LOAD_CONST", None), ("SWAP", 2), ("PUSH_NULL", 0), ("SWAP", 2), ("CALL", 1)),
    "FOR_ITER": (("PUSH_NULL", 0), ("FOR_ITER", None), ("SWAP", 2), ("POP_TOP", 0)),
    "GET_YIELD_FROM_ITER": (("GET_ITER", None),),
    "GET_AWAITABLE": (("GET_AWAITABLE", None), ("PUSH_NULL", 0)),
    "GET_ANEXT": (("GET_ANEXT", None), ("PUSH_NULL", 0)),
}
"""What is written for an instruction; None: the operand is the constant :func:`iter`, else as it was.

From ``GET_YIELD_FROM_ITER`` to ``END_SEND`` the upper slot stays: there generators look for their iterator.
"""

ROOM = 2
"""By how many slots the stack may be deeper as it is written."""


def iter_calls(constants: Sequence[object]) -> tuple[tuple[str, int], ...] | None:
    """What is written for ``GET_ITER`` in code of these constants; None if it has not been."""
    number = next((i for i, constant in enumerate(constants) if constant is iter), None)
    if number is None:
        return None
    parts = SPELLINGS["GET_ITER"]
    return tuple((name, number if argument is None else argument) for name, argument in parts)


def index_slots(units: Sequence[Unit], rows: Sequence[ExceptionEntry]) -> dict[int, Slots]:
    """By offset, the stack before each instruction that may run, as it is in the bytes."""
    if all(unit.name not in ("FOR_ITER", "SEND") for unit in units):
        return {}
    handlers = {offset: row for row in rows for offset in range(row.start, row.end, 2)}
    number = {unit.offset: i for i, unit in enumerate(units)}
    found: dict[int, Slots] = {}
    pending: list[tuple[int, Slots]] = [(0, ())]
    while pending:
        i, slots = pending.pop()
        unit = units[i]
        if unit.offset in found:
            continue
        found[unit.offset] = slots
        row = handlers.get(unit.offset)
        if row is not None:
            raised = slots[: row.depth] + (False,) * (1 + row.push_offset)
            pending.append((number[row.target], raised))
        after = _after(units, i, slots)
        if unit.target is not None:
            pending.append((number[unit.target], after))
        if unit.name not in _LEAVE and not unit.name.startswith(("JUMP_FORWARD", "JUMP_BACKWARD")):
            pending.append((i + 1, after))
    return found


def _after(units: Sequence[Unit], i: int, slots: Slots) -> Slots:
    """The stack after an instruction that does not raise."""
    unit = units[i]
    name, argument = unit.name, unit.argument
    if unit.is_prefix:
        return slots
    if name == "GET_ITER":
        return (*slots, True)
    if name == "PUSH_NULL":
        return (*slots, _is_index(units, i))
    if name == "END_SEND":
        return slots[:-2]
    if name == "RETURN_GENERATOR":
        return (*slots, False)
    if name == "SWAP":
        swapped = list(slots)
        swapped[-1], swapped[-argument] = swapped[-argument], swapped[-1]
        return tuple(swapped)
    effect = dis.stack_effect(
        unit.operation, argument if unit.operation in _WITH_ARGUMENT else None
    )
    return slots[:effect] if effect < 0 else slots + (False,) * effect


def _is_index(units: Sequence[Unit], i: int) -> bool:
    """Whether the NULL that an instruction pushes lies on an iterator."""
    rest = [other.name for other in units[i + 1 : i + 9] if other.operation != dis.EXTENDED_ARG]
    return rest[:1] == ["FOR_ITER"] or rest[1:2] == ["SEND"]  # as written here; ``await``


def without_indices(units: Sequence[Unit], found: Mapping[int, Slots]) -> list[Unit]:
    """The instructions for a stack without the upper slots of iterators; ``found`` is before each."""
    result: list[Unit] = []
    for i, unit in enumerate(units):
        if unit.name == "PUSH_NULL" and _is_index(units, i):
            result.append(unit._replace(is_prefix=True))
        elif unit.name == "POP_ITER" and units[i - 1].name != "END_FOR":
            # Within a loop; where FOR_ITER ends one, what is written has NULL on the iterator too.
            result.append(unit._replace(name="POP_TOP", operation=dis.opmap["POP_TOP"]))
        else:
            result.append(_without_index(unit, found.get(unit.offset, ())))
    for i, unit in enumerate(result):
        if unit.name == "SWAP" and unit.argument == 1:  # behind a FOR_ITER as it is written here
            behind = result[i + 2].offset
            result[i : i + 2] = [
                u._replace(is_prefix=True, offset=behind) for u in result[i : i + 2]
            ]
    return result


def _without_index(unit: Unit, slots: Slots) -> Unit:
    name = unit.name
    if name == "GET_ITER" and unit.argument & _YIELD_FROM:
        return unit._replace(name="GET_YIELD_FROM_ITER", operation=-1)
    if name in _COUNTED_FROM:
        counted = unit.argument + _COUNTED_FROM[name]
        return unit._replace(argument=unit.argument - sum(slots[-counted:]))
    if name == "POP_TOP" and slots[-1:] == (True,):
        return unit._replace(is_prefix=True)
    return unit
