"""Decoding of code objects into instructions whose handler and operand are already resolved."""

from __future__ import annotations

import dis
import types
from collections.abc import Callable
from typing import Any

from ..code_objects.instructions import IS_312
from ..unsupported import Unsupported

Handler = Callable[[Any, "Instruction"], None]

_HANDLERS: dict[str, Handler] = {}

_CONSTANT_OPERATIONS = frozenset(dis.hasconst)
_NAME_OPERATIONS = frozenset(dis.hasname)
_LOCAL_OPERATIONS = frozenset(dis.haslocal) | frozenset(dis.hasfree)
_JUMP_OPERATIONS = frozenset(dis.hasjrel)
_EXTENDED_ARGUMENT = dis.EXTENDED_ARG


def handles(*operation_names: str) -> Callable[[Handler], Handler]:
    """Register the handler of these opcodes."""

    def register(handler: Handler) -> Handler:
        for name in operation_names:
            if name in _HANDLERS:
                raise ValueError(f"two handlers of {name}")
            _HANDLERS[name] = handler
        return handler

    return register


def handled_operations() -> frozenset[str]:
    """Names of all opcodes that have a handler."""
    return frozenset(_HANDLERS)


def _not_handled(evaluator: Any, instruction: Instruction) -> None:
    raise Unsupported("opcode", instruction.name, "the evaluator has no handler for it")


class Instruction:
    """One instruction: ``index`` counts as ``dis`` does, ``target`` is the index that a jump goes to.

    ``operand`` is the constant, the name, the variable's name, or the number itself.
    """

    __slots__ = ("argument", "handler", "index", "name", "offset", "operand", "target")

    def __init__(self, index: int, offset: int, name: str, argument: int) -> None:
        self.index = index
        self.offset = offset
        self.name = name
        self.argument = argument
        self.operand: Any = argument
        self.target = -1
        self.handler: Handler = _HANDLERS.get(name, _not_handled)

    def __repr__(self) -> str:
        return f"{self.name}({self.operand!r}) at {self.offset}"


class ExceptionRegion:
    """A row of the exception table; offsets in bytes, ``end`` exclusive."""

    __slots__ = ("depth", "end", "push_last_instruction", "start", "target")

    def __init__(self, start: int, end: int, target: int, depth: int, push: bool) -> None:
        self.start = start
        self.end = end
        self.target = target
        self.depth = depth
        self.push_last_instruction = push


class DecodedCode:
    """A code object's instructions and exception table."""

    def __init__(self, code: types.CodeType) -> None:
        self.code = code
        self.variable_names: tuple[str, ...] = _variable_names(code)
        self.instructions = _decode(code, self.variable_names)
        self.index_of_offset = {i.offset: i.index for i in self.instructions}
        self.exception_regions = _parse_exception_table(code.co_exceptiontable)
        self._lines: list[int] | None = None
        for instruction in self.instructions:
            if dis.opmap[instruction.name] in _JUMP_OPERATIONS:
                target = self._jump_target(instruction)
                instruction.target = self.index_of_offset[target]

    def _jump_target(self, instruction: Instruction) -> int:
        following = instruction.index + 1
        # Jumps are relative to the instruction after this one's caches.
        if following < len(self.instructions):
            base = self.instructions[following].offset
        else:
            base = len(self.code.co_code)
        sign = -1 if "BACKWARD" in instruction.name else 1
        return base + sign * 2 * instruction.argument

    def line(self, index: int) -> int:
        """The source line of an instruction."""
        if self._lines is None:
            first = self.code.co_firstlineno
            by_unit = [position[0] or first for position in self.code.co_positions()]
            self._lines = [by_unit[i.offset // 2] for i in self.instructions]
        return self._lines[index]

    def region(self, offset: int) -> ExceptionRegion | None:
        """The exception handler in force at an instruction."""
        for region in self.exception_regions:
            if region.start <= offset < region.end:
                return region
        return None


def _variable_names(code: types.CodeType) -> tuple[str, ...]:
    own = code.co_varnames + tuple(c for c in code.co_cellvars if c not in code.co_varnames)
    return own + code.co_freevars


def _decode(code: types.CodeType, variable_names: tuple[str, ...]) -> list[Instruction]:
    raw = code.co_code
    names, constants = code.co_names, code.co_consts
    instructions: list[Instruction] = []
    extended = 0
    for offset in range(0, len(raw), 2):
        opcode = raw[offset]
        if opcode == 0:  # an inline cache
            continue
        argument = raw[offset + 1] | extended
        name = dis.opname[opcode]
        instruction = Instruction(len(instructions), offset, name, argument)
        if opcode == _EXTENDED_ARGUMENT:
            extended = argument << 8
        else:
            extended = 0
            if opcode in _CONSTANT_OPERATIONS:
                instruction.operand = constants[argument]
            elif opcode in _LOCAL_OPERATIONS:
                instruction.operand = variable_names[argument]
            elif opcode in _NAME_OPERATIONS:
                instruction.operand = names[argument >> _NAME_SHIFT.get(name, 0)]
        instructions.append(instruction)
    return instructions


def _name_shift() -> dict[str, int]:
    """How many low bits of a name operand are flags."""
    if not IS_312:
        return {"LOAD_GLOBAL": 1}
    return {"LOAD_GLOBAL": 1, "LOAD_ATTR": 1, "LOAD_SUPER_ATTR": 2}


_NAME_SHIFT = _name_shift()


def _parse_exception_table(table: bytes) -> tuple[ExceptionRegion, ...]:
    """Rows of (start, length, target, depth << 1 | lasti), each a big-endian 6-bit varint."""
    position = 0

    def varint() -> int:
        nonlocal position
        byte = table[position]
        position += 1
        value = byte & 63
        while byte & 64:
            byte = table[position]
            position += 1
            value = (value << 6) | (byte & 63)
        return value

    regions = []
    while position < len(table):
        start, length, target, flags = varint() * 2, varint() * 2, varint() * 2, varint()
        regions.append(ExceptionRegion(start, start + length, target, flags >> 1, bool(flags & 1)))
    return tuple(regions)
