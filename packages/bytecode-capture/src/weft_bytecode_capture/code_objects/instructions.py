"""A code object's instructions as objects that refer to each other, and back to bytes.

Jumps and exception handlers refer to instructions, not to offsets, so that instructions can be inserted,
left out and moved.  Inline caches, EXTENDED_ARG and what a :class:`.Dialect` spells differently exist only
in the bytes.
"""

from __future__ import annotations

import dis
import types
from dataclasses import dataclass, field
from typing import NamedTuple

from .reading import CACHES, LOCALS, exception_entries, read, variable_names
from .spelling import spelled

_EXTENDED_ARGUMENT = dis.EXTENDED_ARG


class Position(NamedTuple):
    """A place in the source; columns None where unknown, all None for no place at all."""

    line: int | None
    end_line: int | None = None
    column: int | None = None
    end_column: int | None = None


NOWHERE = Position(None)


@dataclass(eq=False)
class ExceptionEntry:
    """Where an exception goes: the stack is cut to ``depth``, the offset of the instruction that raised
    is pushed if ``push_offset``, then the exception."""

    target: Instruction
    depth: int
    push_offset: bool


@dataclass(eq=False, repr=False)
class Instruction:
    """One instruction.

    ``argument`` is the number in the bytes; unused where ``target`` says where a jump goes, or ``local``
    which local, cell or free variable is meant.
    """

    name: str
    argument: int = 0
    target: Instruction | None = None
    local: str | None = None
    position: Position = NOWHERE
    handler: ExceptionEntry | None = field(default=None)

    def __repr__(self) -> str:
        if self.target is not None:
            return f"{self.name} -> {self.target.name}"
        return f"{self.name} {self.argument if self.local is None else self.local}"

    def falls_through(self) -> bool:
        """Whether the next instruction may run after this one."""
        return self.name not in _NEVER_FALLS_THROUGH


_NEVER_FALLS_THROUGH = frozenset(
    {
        "JUMP_FORWARD",
        "JUMP_BACKWARD",
        "JUMP_BACKWARD_NO_INTERRUPT",
        "RETURN_VALUE",
        "RETURN_CONST",
        "RAISE_VARARGS",
        "RERAISE",
    }
)


@dataclass
class DecodedCode:
    """``by_index`` has an instruction for each that :func:`read` gives; a prefix stands for the one that
    it belongs to."""

    code: types.CodeType
    instructions: list[Instruction]
    by_index: list[Instruction]

    def index_of(self, instruction: Instruction) -> int:
        """The position in ``instructions``."""
        return self._indices()[id(instruction)]

    def _indices(self) -> dict[int, int]:
        known: dict[int, int] | None = self.__dict__.get("_index_table")
        if known is None:
            known = {id(instruction): i for i, instruction in enumerate(self.instructions)}
            self.__dict__["_index_table"] = known
        return known


def decode(code: types.CodeType) -> DecodedCode:
    """Take a code object apart."""
    variables = variable_names(code)
    positions = [
        Position(line, end, col, end_col) for line, end, col, end_col in code.co_positions()
    ]
    instructions: list[Instruction] = []
    by_index: list[Instruction] = []
    at_offset: dict[int, Instruction] = {}
    jumps: list[tuple[Instruction, int]] = []
    starts: list[int] = []  # offsets that lead to the instruction being read
    parts: dict[int, list[Instruction]] = {}  # by offset
    for unit in read(code):
        starts.append(unit.offset)
        if unit.is_prefix:
            continue
        instruction = Instruction(unit.name, unit.argument, position=positions[starts[0] // 2])
        if unit.target is not None:
            jumps.append((instruction, unit.target))
        elif unit.operation in LOCALS:
            instruction.local = variables[unit.argument]
        for offset in starts:
            at_offset.setdefault(offset, instruction)
            parts.setdefault(offset, []).append(instruction)
        by_index.extend([instruction] * len(starts))
        starts.clear()
        instructions.append(instruction)
    for instruction, target in jumps:
        instruction.target = at_offset[target]
    _set_handlers(code, at_offset, parts)
    return DecodedCode(code, instructions, by_index)


def _set_handlers(
    code: types.CodeType, at_offset: dict[int, Instruction], parts: dict[int, list[Instruction]]
) -> None:
    handlers: dict[tuple[int, int, bool], ExceptionEntry] = {}
    for entry in exception_entries(code):
        key = (entry.target, entry.depth, entry.push_offset)
        if key not in handlers:
            handlers[key] = ExceptionEntry(at_offset[entry.target], entry.depth, entry.push_offset)
        for offset in range(entry.start, entry.end, 2):
            for instruction in parts.get(offset, ()):
                instruction.handler = handlers[key]


def clone(instructions: list[Instruction]) -> tuple[list[Instruction], dict[int, Instruction]]:
    """A copy whose jumps and handlers stay inside it, and the copies by id of their originals."""
    copies = {
        id(i): Instruction(i.name, i.argument, local=i.local, position=i.position)
        for i in instructions
    }
    handlers: dict[int, ExceptionEntry] = {}
    for original in instructions:
        copy = copies[id(original)]
        if original.target is not None:
            copy.target = copies[id(original.target)]
        if original.handler is not None:
            known = handlers.get(id(original.handler))
            if known is None:
                source = original.handler
                known = ExceptionEntry(copies[id(source.target)], source.depth, source.push_offset)
                handlers[id(source)] = known
            copy.handler = known
    return [copies[id(i)] for i in instructions], copies


# Back to bytes.

_FORWARD = {
    "JUMP_BACKWARD": "JUMP_FORWARD",
    "JUMP_BACKWARD_NO_INTERRUPT": "JUMP_FORWARD",
    "POP_JUMP_BACKWARD_IF_TRUE": "POP_JUMP_FORWARD_IF_TRUE",
    "POP_JUMP_BACKWARD_IF_FALSE": "POP_JUMP_FORWARD_IF_FALSE",
    "POP_JUMP_BACKWARD_IF_NONE": "POP_JUMP_FORWARD_IF_NONE",
    "POP_JUMP_BACKWARD_IF_NOT_NONE": "POP_JUMP_FORWARD_IF_NOT_NONE",
}
_BACKWARD = {
    "JUMP_FORWARD": "JUMP_BACKWARD",
    "POP_JUMP_FORWARD_IF_TRUE": "POP_JUMP_BACKWARD_IF_TRUE",
    "POP_JUMP_FORWARD_IF_FALSE": "POP_JUMP_BACKWARD_IF_FALSE",
    "POP_JUMP_FORWARD_IF_NONE": "POP_JUMP_BACKWARD_IF_NONE",
    "POP_JUMP_FORWARD_IF_NOT_NONE": "POP_JUMP_BACKWARD_IF_NOT_NONE",
}


@dataclass(frozen=True)
class Assembled:
    """The parts of a code object that depend on its instructions."""

    bytecode: bytes
    line_table: bytes
    exception_table: bytes


def assemble(
    instructions: list[Instruction],
    variables: tuple[str, ...],
    first_line: int,
    iter_constant: int = 0,
) -> Assembled:
    """Lay instructions out as bytes.  ``variables`` names the frame's slots (:func:`variable_names`).

    ``iter_constant``: see :func:`spelled`.

    :raises ValueError: a jump's target is not among them, or a jump that only goes forward goes back.
    """
    instructions = spelled(instructions, iter_constant)
    index = {id(instruction): i for i, instruction in enumerate(instructions)}
    names = [_directed_name(i, instruction, index) for i, instruction in enumerate(instructions)]
    slots = {name: i for i, name in enumerate(variables)}
    given = [slots[i.local] if i.local is not None else i.argument for i in instructions]
    offsets, arguments = _lay_out(instructions, names, given, index)
    output = bytearray()
    for name, argument in zip(names, arguments, strict=True):
        for shift in range(8 * (_width(argument) - 1), 0, -8):
            output += bytes((_EXTENDED_ARGUMENT, argument >> shift & 255))
        output += bytes((dis.opmap[name], argument & 255)) + bytes(2 * CACHES[name])
    return Assembled(
        bytes(output),
        _line_table(instructions, offsets, first_line),
        _exception_table(instructions, offsets, index),
    )


def _directed_name(i: int, instruction: Instruction, index: dict[int, int]) -> str:
    if instruction.target is None:
        return instruction.name
    if id(instruction.target) not in index:
        raise ValueError(f"{instruction!r} jumps out of the code")
    backward = index[id(instruction.target)] <= i
    name = instruction.name
    if backward and "BACKWARD" not in name:
        if name not in _BACKWARD:
            raise ValueError(f"{name} cannot jump back")
        return _BACKWARD[name]
    if not backward and "BACKWARD" in name:
        return _FORWARD[name]
    return name


def _width(argument: int) -> int:
    """How many code units an argument takes."""
    return max(1, (argument.bit_length() + 7) // 8)


def _lay_out(
    instructions: list[Instruction], names: list[str], given: list[int], index: dict[int, int]
) -> tuple[list[int], list[int]]:
    """Offsets in code units (one more than there are instructions) and final arguments."""
    arguments = [0 if i.target is not None else a for i, a in zip(instructions, given, strict=True)]
    sizes = [_width(a) + CACHES[n] for a, n in zip(arguments, names, strict=True)]
    while True:
        offsets = [0]
        for size in sizes:
            offsets.append(offsets[-1] + size)
        changed = False
        for i, instruction in enumerate(instructions):
            if instruction.target is None:
                continue
            distance = abs(offsets[index[id(instruction.target)]] - offsets[i + 1])
            arguments[i] = distance
            size = _width(distance) + CACHES[names[i]]
            if size > sizes[i]:  # sizes only grow, and distances with them
                sizes[i] = size
                changed = True
        if not changed:
            break
    return offsets, arguments


def _varint(value: int) -> bytes:
    output = bytearray()
    while value >= 64:
        output.append(64 | value & 63)
        value >>= 6
    output.append(value)
    return bytes(output)


def _signed_varint(value: int) -> bytes:
    return _varint(-value << 1 | 1 if value < 0 else value << 1)


def _line_table(instructions: list[Instruction], offsets: list[int], first_line: int) -> bytes:
    """The location table (Objects/locations.md): rows of up to eight code units."""
    output = bytearray()
    line = first_line
    for i, instruction in enumerate(instructions):
        position = instruction.position
        units = offsets[i + 1] - offsets[i]
        while units > 0:
            length = min(units, 8)
            units -= length
            kind = _location_kind(position)
            output.append(0x80 | kind << 3 | length - 1)
            if position.line is None:
                continue
            output += _signed_varint(position.line - line)
            line = position.line
            if kind == 14:
                assert position.end_line is not None
                assert position.column is not None
                assert position.end_column is not None
                output += _varint(position.end_line - line)
                output += _varint(position.column + 1) + _varint(position.end_column + 1)
    return bytes(output)


def _location_kind(position: Position) -> int:
    if position.line is None:
        return 15
    if position.end_line is None or position.column is None or position.end_column is None:
        return 13
    return 14


def _exception_table(
    instructions: list[Instruction], offsets: list[int], index: dict[int, int]
) -> bytes:
    output = bytearray()
    i = 0
    while i < len(instructions):
        handler = instructions[i].handler
        start = i
        while i < len(instructions) and instructions[i].handler is handler:
            i += 1
        if handler is None:
            continue
        if id(handler.target) not in index:
            raise ValueError("an exception handler is not in the code")
        row = (
            _varint_big(offsets[start], first=True)
            + _varint_big(offsets[i] - offsets[start])
            + _varint_big(offsets[index[id(handler.target)]])
            + _varint_big(handler.depth << 1 | handler.push_offset)
        )
        output += row
    return bytes(output)


def _varint_big(value: int, first: bool = False) -> bytes:
    """Big-endian 6-bit groups; bit 64: more follow, bit 128: first byte of a row."""
    groups = [value & 63]
    value >>= 6
    while value:
        groups.append(64 | value & 63)
        value >>= 6
    groups.reverse()
    if first:
        groups[0] |= 128
    return bytes(groups)
