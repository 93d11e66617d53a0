"""The parts of a host program's C++ that other steps may have otherwise, known from where they are written.

A text is C++ with its parts between marks, so that it is put together as any text; :func:`pieces_of` gives
them as data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

MARK = "\0"  # C++ has none


@dataclass(frozen=True)
class Slot:
    """The number of a tensor, an object or a view in a list of the call."""

    number: int

    def __str__(self) -> str:
        return f"{MARK}Slot {self.number}{MARK}"

    @property
    def code(self) -> str:
        return str(self.number)


@dataclass(frozen=True)
class Member:
    """A field of the call."""

    name: str

    def __str__(self) -> str:
        return self.code

    @property
    def code(self) -> str:
        return f"c.{self.name}"


class Pointer(Member):
    """The field that points to the memory of a buffer."""

    def __str__(self) -> str:
        return f"{MARK}Pointer {self.name}{MARK}"


@dataclass(frozen=True)
class Message:
    """A C++ string that says where a call failed."""

    code: str

    def __str__(self) -> str:
        return f"{MARK}Message {self.code}{MARK}"


Part = Slot | Pointer | Message


def _part(marked: str) -> Part:
    kind, _, content = marked.partition(" ")
    match kind:
        case "Slot":
            return Slot(int(content))
        case "Pointer":
            return Pointer(content)
    return Message(content)


def pieces_of(text: str) -> tuple[tuple[str, ...], tuple[Part, ...]]:
    """What lies before, between and behind the parts of ``text``, and the parts."""
    pieces = text.split(MARK)
    return tuple(pieces[::2]), tuple(map(_part, pieces[1::2]))


def filled(between: Sequence[str], codes: Sequence[str]) -> str:
    """The C++ whose parts are ``codes``."""
    return "".join(piece for pair in zip(between, (*codes, ""), strict=True) for piece in pair)


def plain(text: str) -> str:
    """``text`` with the C++ of its parts."""
    between, parts = pieces_of(text)
    return filled(between, [part.code for part in parts])
