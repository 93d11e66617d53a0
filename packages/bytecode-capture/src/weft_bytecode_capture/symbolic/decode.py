"""Decoding of code objects into instructions whose handler and operand are already resolved."""

from __future__ import annotations

import dis
import types
from collections.abc import Callable
from typing import Any

from ..code_objects.dialects import DIALECT
from ..code_objects.flow import depth_by_index, live_by_index
from ..code_objects.reading import (
    LOCALS,
    ExceptionEntry,
    Unit,
    exception_entries,
    read,
    variable_names,
)
from ..unsupported import Unsupported

OpcodeHandler = Callable[[Any, "DecodedInstruction"], None]

_HANDLERS: dict[str, OpcodeHandler] = {}

_CONSTANT_OPERATIONS = frozenset(dis.hasconst)
_NAME_OPERATIONS = frozenset(dis.hasname)


def handles(*operation_names: str) -> Callable[[OpcodeHandler], OpcodeHandler]:
    """Register the handler of these opcodes."""

    def register(handler: OpcodeHandler) -> OpcodeHandler:
        for name in operation_names:
            if name in _HANDLERS:
                raise ValueError(f"two handlers of {name}")
            _HANDLERS[name] = handler
        return handler

    return register


def handled_operations() -> frozenset[str]:
    """Names of all opcodes that have a handler."""
    return frozenset(_HANDLERS)


def _not_handled(evaluator: Any, instruction: DecodedInstruction) -> None:
    raise Unsupported("opcode", instruction.name, "the evaluator has no handler for it")


class DecodedInstruction:
    """One instruction: ``index`` counts as :func:`read` does, ``target`` is the index that a jump goes to.

    ``offset`` is where it begins, its prefixes included, each an instruction that does nothing.
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
        self.handler: OpcodeHandler = _HANDLERS.get(name, _not_handled)

    def __repr__(self) -> str:
        return f"{self.name}({self.operand!r}) at {self.offset}"


class DecodedCode:
    """A code object's instructions and exception table."""

    def __init__(self, code: types.CodeType) -> None:
        self.code = code
        self.variable_names = variable_names(code)
        self.instructions: list[DecodedInstruction] = []
        self.exception_entries = tuple(exception_entries(code))
        self.analyses: dict[str, Any] = {}  # what has been found out about the code, by analysis
        self._lines: list[int] | None = None
        self.index_of_offset: dict[int, int] = {}
        targets: list[tuple[DecodedInstruction, int]] = []
        start: int | None = None  # where the prefixes of the next instruction begin
        for unit in read(code):
            index = len(self.instructions)
            offset = unit.offset if start is None else start
            name = "NOP" if unit.is_prefix else unit.name
            instruction = DecodedInstruction(index, offset, name, unit.argument)
            instruction.operand = self._operand(unit)
            self.instructions.append(instruction)
            self.index_of_offset.setdefault(unit.offset, index)
            if unit.target is not None:
                targets.append((instruction, unit.target))
            start = offset if unit.is_prefix else None
        for instruction, target in targets:
            instruction.target = self.index_of_offset[target]

    def _operand(self, unit: Unit) -> Any:
        """The constant, the name, the variable's name, or the number itself."""
        if unit.operation in _CONSTANT_OPERATIONS:
            return self.code.co_consts[unit.argument]
        if unit.operation in LOCALS:
            return self.variable_names[unit.argument]
        if unit.operation in _NAME_OPERATIONS:
            return self.code.co_names[unit.argument >> DIALECT.name_flags.get(unit.name, 0)]
        return unit.argument

    def line(self, index: int) -> int:
        """The source line of an instruction."""
        if self._lines is None:
            first = self.code.co_firstlineno
            by_unit = [position[0] or first for position in self.code.co_positions()]
            self._lines = [by_unit[i.offset // 2] for i in self.instructions]
        return self._lines[index]

    def live_at(self, index: int) -> frozenset[str]:
        """The plain locals that may be read, or found unbound, from the instruction number ``index`` on."""
        if "live" not in self.analyses:
            self.analyses["live"] = live_by_index(self.code)
        live: frozenset[str] = self.analyses["live"][index]
        return live

    def depth_at(self, index: int) -> int | None:
        """How deep the value stack is before the instruction number ``index``."""
        if "depth" not in self.analyses:
            self.analyses["depth"] = depth_by_index(self.code)
        depth: int | None = self.analyses["depth"][index]
        return depth

    def exception_entry(self, offset: int) -> ExceptionEntry | None:
        """The exception handler in force at an instruction."""
        for entry in self.exception_entries:
            if entry.start <= offset < entry.end:
                return entry
        return None


def after_loop(head: DecodedInstruction) -> int:
    """Where FOR_ITER goes, with the iterator popped, when that is exhausted."""
    return head.target + len(DIALECT.loop_end)
