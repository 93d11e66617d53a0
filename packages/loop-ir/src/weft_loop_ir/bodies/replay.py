"""Replaying a body into a recorder with other index expressions, buffers and symbols."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import sympy

from weft_loop_ir.bodies.instructions import (
    Access,
    Elementwise,
    IndexValue,
    Indirect,
    Instruction,
    LoopBody,
    Masked,
    Scan,
    Store,
    Value,
)
from weft_loop_ir.recording import BodyRecorder

IndexFunction = Callable[[sympy.Expr], sympy.Expr]
LoadFunction = Callable[[BodyRecorder, str, sympy.Expr], Value]
StoreFunction = Callable[[BodyRecorder, str, sympy.Expr, Value, str | None], None]
PlaceFunction = Callable[[str, sympy.Expr], tuple[str, sympy.Expr]]


def unchanged(expression: sympy.Expr) -> sympy.Expr:
    """The index expression as it is."""
    return expression


@dataclass(eq=False)
class Replayer:
    """Replays bodies into one recorder.

    ``index`` rewrites every index expression; ``place`` then gives the buffer and the index of an access.
    ``load`` and ``store`` say what becomes of it, ``scan`` of a scan (the recorder's own methods when not
    given).
    """

    ops: BodyRecorder
    index: IndexFunction = unchanged
    load: LoadFunction | None = None
    store: StoreFunction | None = None
    scan: Callable[..., Value] | None = None
    place: PlaceFunction | None = None

    def replay(self, body: LoopBody) -> Value | None:
        """Record ``body``'s instructions; gives the value of its result."""
        return self._into(self.ops, body, {})

    def _into(
        self, ops: BodyRecorder, body: LoopBody, renamed: dict[sympy.Symbol, sympy.Symbol]
    ) -> Value | None:
        values: list[Value | None] = []
        for instruction in body.instructions:
            values.append(self._one(instruction, values, ops, renamed))
        return None if body.result is None else values[body.result.index]

    def _one(
        self,
        instruction: Instruction,
        values: list[Value | None],
        ops: BodyRecorder,
        renamed: dict[sympy.Symbol, sympy.Symbol],
    ) -> Value | None:
        if type(instruction) is Elementwise:  # most are
            operands = [values[operand.index] for operand in instruction.arguments]
            return ops.record(instruction.operation.name, *operands)

        def value(operand: Value) -> Value:
            found = values[operand.index]
            assert found is not None
            return found

        if isinstance(instruction, Access):
            buffer, index = instruction.buffer, self._index(instruction.index, renamed)
            if self.place is not None:
                buffer, index = self.place(buffer, index)
            if isinstance(instruction, Store):
                store = self.store or BodyRecorder.store
                store(ops, buffer, index, value(instruction.value), instruction.mode)
                return None
            return (self.load or BodyRecorder.load)(ops, buffer, index)
        if isinstance(instruction, IndexValue):
            assert instruction.dtype is not None
            return ops.index_expr(self._index(instruction.index, renamed), instruction.dtype)
        if isinstance(instruction, Indirect):
            position = value(instruction.value)
            renamed[instruction.symbol] = ops.indirect_symbol(
                position, instruction.size, instruction.check
            )
            return None
        if isinstance(instruction, Masked):
            nested_body = instruction.body
            outer = dict(renamed)

            def nested(inner: BodyRecorder) -> Value:
                result = self._into(inner, nested_body, outer)
                assert result is not None
                return result

            return ops.masked(value(instruction.mask), nested, instruction.other)
        arguments = [value(a) if isinstance(a, Value) else a for a in instruction.arguments]
        if isinstance(instruction, Scan) and self.scan is not None:
            return self.scan(*arguments)
        method: Callable[..., Value] = getattr(ops, instruction.operation.name)
        return method(*arguments)

    def _index(
        self, expression: sympy.Expr, renamed: Mapping[sympy.Symbol, sympy.Symbol]
    ) -> sympy.Expr:
        result = self.index(expression)
        changed = {a: b for a, b in renamed.items() if a != b}
        return result.xreplace(changed) if changed else result
