"""Replaying a body with other index expressions, buffers and symbols; and removing what is unused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import sympy

from weft_loop_ir.ir import Instruction, LoopBody, Value
from weft_loop_ir.recording import BodyRecorder

IndexFunction = Callable[[sympy.Expr], sympy.Expr]
LoadFunction = Callable[[BodyRecorder, str, sympy.Expr], Value]
StoreFunction = Callable[[BodyRecorder, str, sympy.Expr, Value, str | None], None]


class Replayer:
    """Replays bodies into one recorder.

    ``index`` rewrites every index expression; ``load`` and ``store`` then say what becomes of an access,
    ``scan`` of a scan (the recorder's own methods when not given).
    """

    def __init__(
        self,
        ops: BodyRecorder,
        index: IndexFunction,
        load: LoadFunction | None = None,
        store: StoreFunction | None = None,
        scan: Callable[..., Value] | None = None,
    ) -> None:
        self.ops = ops
        self.index = index
        self.load = load
        self.store = store
        self.scan = scan

    def replay(self, body: LoopBody, ops: BodyRecorder | None = None) -> Value | None:
        """Record ``body``'s instructions; gives the value of its result."""
        target = self.ops if ops is None else ops
        values: list[Value | None] = []
        renamed: dict[sympy.Symbol, sympy.Symbol] = {}
        for instruction in body.instructions:
            values.append(self._one(instruction, values, target, renamed))
        return None if body.result is None else values[body.result.index]

    def _one(
        self,
        instruction: Instruction,
        values: list[Value | None],
        ops: BodyRecorder,
        renamed: dict[sympy.Symbol, sympy.Symbol],
    ) -> Value | None:
        arguments: list[Any] = [
            values[a.index] if isinstance(a, Value) else a for a in instruction.arguments
        ]
        operation = instruction.operation
        if operation == "load":
            index = self._index(arguments[1], renamed)
            if self.load is not None:
                return self.load(ops, arguments[0], index)
            return ops.load(arguments[0], index)
        if operation == "store":
            index = self._index(arguments[1], renamed)
            mode = arguments[3] if len(arguments) > 3 else None
            if self.store is not None:
                self.store(ops, arguments[0], index, arguments[2], mode)
            else:
                ops.store(arguments[0], index, arguments[2], mode)
            return None
        if operation == "index_expr":
            return ops.index_expr(self._index(arguments[0], renamed), arguments[1])
        if operation == "indirect":
            value, symbol, size, check = arguments
            renamed[symbol] = ops.indirect_symbol(value, size, check)
            return None
        if operation == "masked":
            nested_body = arguments[1]
            outer = dict(renamed)

            def nested(inner: BodyRecorder) -> Value:
                result = self._replay_nested(nested_body, inner, outer)
                assert result is not None
                return result

            return ops.masked(arguments[0], nested, arguments[2])
        if operation == "scan" and self.scan is not None:
            return self.scan(*arguments)
        method: Callable[..., Value] = getattr(ops, operation)
        return method(*arguments)

    def _replay_nested(
        self, body: LoopBody, ops: BodyRecorder, renamed: dict[sympy.Symbol, sympy.Symbol]
    ) -> Value | None:
        values: list[Value | None] = []
        for instruction in body.instructions:
            values.append(self._one(instruction, values, ops, renamed))
        return None if body.result is None else values[body.result.index]

    def _index(
        self, expression: sympy.Expr, renamed: Mapping[sympy.Symbol, sympy.Symbol]
    ) -> sympy.Expr:
        result = self.index(expression)
        changed = {a: b for a, b in renamed.items() if a != b}
        return result.xreplace(changed) if changed else result


def without_unused(body: LoopBody, stores: bool = True) -> LoopBody:
    """``body`` without instructions whose results nothing uses.

    Checked ``indirect`` ones stay, and ``stores`` if they are to.
    """
    used: set[int] = set() if body.result is None else {body.result.index}
    symbols: set[sympy.Symbol] = set()
    keep: list[int] = []
    for position in reversed(range(len(body.instructions))):
        instruction = body.instructions[position]
        operation = instruction.operation
        wanted = position in used or (stores and operation == "store")
        if operation == "indirect":
            wanted = bool(instruction.arguments[3]) or instruction.arguments[1] in symbols
        if not wanted:
            continue
        keep.append(position)
        _note_uses(instruction, used, symbols)
    if len(keep) == len(body.instructions):
        return body
    keep.reverse()
    new_index = {old: Value(new) for new, old in enumerate(keep)}
    instructions = tuple(
        Instruction(
            i.operation,
            tuple(new_index[a.index] if isinstance(a, Value) else a for a in i.arguments),
            i.dtype,
        )
        for i in (body.instructions[k] for k in keep)
    )
    return LoopBody(instructions, None if body.result is None else new_index[body.result.index])


def _note_uses(instruction: Instruction, used: set[int], symbols: set[sympy.Symbol]) -> None:
    for argument in instruction.arguments:
        if isinstance(argument, Value):
            used.add(argument.index)
        elif isinstance(argument, sympy.Expr):
            symbols.update(argument.free_symbols)
        elif isinstance(argument, LoopBody):
            for nested in argument.instructions:
                _note_uses(nested, set(), symbols)
