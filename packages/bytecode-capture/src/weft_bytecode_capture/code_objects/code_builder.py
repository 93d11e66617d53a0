"""A code object under construction: instructions with their constants, names and variables."""

from __future__ import annotations

import dis
import types
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from . import indexed_iterators
from .dialects import DIALECT
from .flow import max_depth
from .instructions import (
    NOWHERE,
    Instruction,
    Position,
    assemble,
)
from .reading import variable_names

_ATOMS = (type(None), bool, int, float, complex, str, bytes, type(Ellipsis), types.CodeType)
SUBSCRIPT = len(dis._nb_ops) - 1  # type: ignore[attr-defined]
"""The operand of ``BINARY_OP`` that subscripts (3.14)."""

_CLOSURE = 8  # of MAKE_FUNCTION's flags


def is_code_constant(value: Any) -> bool:
    """Whether a code object may hold the value (what ``marshal`` and the compiler allow)."""
    if type(value) in _ATOMS:
        return True
    return type(value) in (tuple, frozenset) and all(map(is_code_constant, value))


class CodeBuilder:
    """Appends instructions to a list; operands are Python values and names.

    Starts from the constants and names of ``base``, so that instructions taken from it keep their numbers.
    """

    def __init__(self, base: types.CodeType) -> None:
        self.base = base
        self.instructions: list[Instruction] = []
        self.position: Position = NOWHERE
        self._constants: list[Any] = list(base.co_consts)
        self._constant_index = {id(value): i for i, value in enumerate(self._constants)}
        self._names: list[str] = list(base.co_names)
        self._name_index = {name: i for i, name in enumerate(self._names)}

    def constant(self, value: Any) -> int:
        """The number of a constant; by identity, as equal ones may differ in type or sign."""
        index = self._constant_index.get(id(value))
        if index is None:
            index = self._constant_index[id(value)] = len(self._constants)
            self._constants.append(value)
        return index

    def name(self, name: str) -> int:
        index = self._name_index.get(name)
        if index is None:
            index = self._name_index[name] = len(self._names)
            self._names.append(name)
        return index

    def add(
        self,
        name: str,
        argument: int = 0,
        *,
        target: Instruction | None = None,
        local: str | None = None,
    ) -> Instruction:
        instruction = Instruction(name, argument, target, local, self.position)
        self.instructions.append(instruction)
        return instruction

    # Each says what it does to the stack.

    def load_constant(self, value: Any) -> None:
        self.add("LOAD_CONST", self.constant(value))

    def load_local(self, name: str) -> None:
        self.add("LOAD_FAST", local=name)

    def store_local(self, name: str) -> None:
        self.add("STORE_FAST", local=name)

    def delete_local(self, name: str) -> None:
        self.add("DELETE_FAST", local=name)

    def load_global(self, name: str) -> None:
        self.add("LOAD_GLOBAL", self.name(name) << 1)

    def load_attribute(self, name: str) -> None:
        self.add("LOAD_ATTR", self.name(name) << DIALECT.name_flags.get("LOAD_ATTR", 0))

    def load_cell(self, name: str) -> None:
        self.add("LOAD_FAST" if DIALECT.cells_are_locals else "LOAD_CLOSURE", local=name)

    def load_subscript(self) -> None:
        if "BINARY_SUBSCR" in dis.opmap:
            self.add("BINARY_SUBSCR")
        else:  # 3.14
            self.add("BINARY_OP", SUBSCRIPT)

    @contextmanager
    def callee(self) -> Iterator[None]:
        """Pushes the NULL of a call with the callee, which the context pushes."""
        if not DIALECT.null_above_callee:
            self.add("PUSH_NULL")
        yield
        if DIALECT.null_above_callee:
            self.add("PUSH_NULL")

    def prepare_call(self) -> None:
        """Push the NULL of a call with the callee that is on the stack."""
        self.add("PUSH_NULL")
        if not DIALECT.null_above_callee:
            self.add("SWAP", 2)

    def call(self, count: int, keywords: tuple[str, ...] = ()) -> None:
        """Pop ``count`` arguments, the callee and its NULL; push the result."""
        if keywords and DIALECT.keyword_names_on_stack:
            self.load_constant(keywords)
            self.add("CALL_KW", count)
            return
        if keywords:
            self.add("KW_NAMES", self.constant(keywords))
        if DIALECT.announced_calls:
            self.add("PRECALL", count)
        self.add("CALL", count)

    def make_function(self, has_closure: bool) -> None:
        """Pop a code object, and the closure under it; push a function."""
        if not DIALECT.function_attributes:
            self.add("MAKE_FUNCTION", _CLOSURE if has_closure else 0)
            return
        self.add("MAKE_FUNCTION")
        if has_closure:
            self.add("SET_FUNCTION_ATTRIBUTE", _CLOSURE)

    def prologue(self, cells: Sequence[str], free_count: int) -> None:
        """What every function starts with: cells made, the closure copied into the frame."""
        if free_count:
            self.add("COPY_FREE_VARS", free_count)
        for name in cells:
            self.add("MAKE_CELL", local=name)
        self.add("RESUME", 0)

    def drop_empty_jumps(self) -> None:
        """Leave out added jumps to the instruction that follows anyway."""
        old = self.instructions
        targets = {id(i.target) for i in old} | {id(i.handler.target) for i in old if i.handler}
        self.instructions = [
            instruction
            for instruction, following in zip(old, [*old[1:], None], strict=True)
            if instruction.name != "JUMP_FORWARD"
            or instruction.target is not following
            or id(instruction) in targets
        ]

    def finish(
        self,
        signature: types.CodeType,
        local_names: tuple[str, ...],
        cells: tuple[str, ...],
        free: tuple[str, ...],
        **changes: Any,
    ) -> types.CodeType:
        """The code object.  ``signature`` gives the arguments, flags and names, ``changes`` override."""
        shape = signature.replace(
            co_varnames=local_names,
            co_nlocals=len(local_names),
            co_cellvars=cells,
            co_freevars=free,
            co_code=signature.co_code[:0],
            co_exceptiontable=b"",
            co_linetable=b"",
            **changes,
        )
        depth = max_depth(self.instructions)
        iter_constant = 0
        if DIALECT.indexed_iterators:
            if any(instruction.name == "GET_ITER" for instruction in self.instructions):
                iter_constant = self.constant(iter)
            depth += indexed_iterators.ROOM
        variables = variable_names(shape)
        parts = assemble(self.instructions, variables, signature.co_firstlineno, iter_constant)
        return shape.replace(
            co_code=parts.bytecode,
            co_linetable=parts.line_table,
            co_exceptiontable=parts.exception_table,
            co_consts=tuple(self._constants),
            co_names=tuple(self._names),
            co_stacksize=depth,
        )
