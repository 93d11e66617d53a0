"""Runs a schedule's host program in Python, on tensors.

The reference evaluator is a subclass, and so may be a program of kernels whose code generator has
no host program yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy
import torch

from weft_loop_ir.callees import lies_in, settle
from weft_loop_ir.data_symbols import layout_symbols, symbols_within
from weft_loop_ir.expressions import evaluate_expression
from weft_loop_ir.host_walk import HostWalk
from weft_loop_ir.ir import (
    Branch,
    BufferView,
    Count,
    ExternCall,
    Loop,
    Requirement,
    Schedule,
    SymbolDefinition,
    SymbolInput,
)
from weft_loop_ir.loop_graph import extern_writes
from weft_loop_ir.schedule.memory_plan import storage_elements
from weft_loop_ir.size_float import SizeFloat


class HostInterpreter(HostWalk):
    """Runs one call of a schedule: a walk over its steps with tensors for memory.

    A subclass says how :meth:`kernel` runs, by :meth:`flat` and :meth:`value`; calls, branches, loops,
    allocations and results are done here.  ``memory`` holds each buffer's tensor, ``sizes`` the numbers that
    sizes, counters and passed floats are in this call.
    """

    def __init__(self, schedule: Schedule, inputs: Sequence[Any]) -> None:
        super().__init__(schedule)
        self.sizes: dict[sympy.Symbol, Any] = {}  # and floats that are passed
        self.memory: dict[str, torch.Tensor] = {}
        self._bind(inputs)
        count = self.value(sympy.sympify(schedule.memory.arena_bytes))
        self.arena = self.new_memory(count)
        self._varying = {symbol for step in schedule.steps for symbol in symbols_within(step)}
        self._results: Sequence[Any] = ()  # of the call at hand
        self._operands: Sequence[torch.Tensor] = ()

    def _bind(self, inputs: Sequence[Any]) -> None:
        declared = self.schedule.inputs
        if len(inputs) != len(declared):
            raise ValueError(f"expected {len(declared)} inputs, got {len(inputs)}")
        for entry, value in zip(declared, inputs, strict=True):
            if isinstance(entry, SymbolInput):
                if isinstance(value, int | float):
                    self.sizes[entry.symbol] = value
            else:
                self.memory[entry] = value
        for symbol in self.schedule.symbols:
            if symbol.input is not None:
                tensor = self.memory[symbol.input]
                extents = tensor.stride() if symbol.is_stride else tensor.shape
                self.sizes[symbol.symbol] = int(extents[symbol.dimension])
        self.memory.update(self.schedule.constants)

    def value(self, expression: sympy.Expr) -> Any:
        """An index expression in this call."""
        return evaluate_expression(expression, self.sizes)

    def new_memory(self, bytes_: int) -> torch.Tensor:
        """Memory for intermediates and results."""
        return torch.empty((bytes_,), dtype=torch.uint8)

    def run(self) -> tuple[Any, ...]:
        self.walk()
        self.allocate_unwritten()
        return tuple(self._result(o) for o in self.schedule.outputs)

    def branch(self, branch: Branch) -> None:
        holds = bool(self.view(branch.predicate))
        self.block(branch.true_block if holds else branch.false_block)

    def loop(self, loop: Loop) -> None:
        count = loop.count
        if count is not None:
            self.sizes[count.symbol] = self.value(count.start)
        while count is None or count.stop is None or self._is_before(count):
            self.block(loop.condition)
            if loop.predicate is not None and not bool(self.view(loop.predicate)):
                return
            self.block(loop.body)
            if count is not None:
                self.sizes[count.symbol] += self.value(sympy.sympify(count.step))

    def _is_before(self, count: Count) -> bool:
        assert count.stop is not None
        distance = self.value(count.stop) - self.sizes[count.symbol]
        return bool(distance > 0 if count.ascends else distance < 0)

    # -- memory ----------------------------------------------------------------------------------------

    def has_memory(self, name: str) -> bool:
        """Of the size that the buffer has in this iteration, where that differs."""
        buffer = self.buffers[name]
        if name not in self.memory or not layout_symbols(buffer) & self._varying:
            return name in self.memory
        size = [self.value(n) for n in buffer.layout.size]
        return list(self.memory[name].shape) == size

    def allocate(self, name: str) -> None:
        buffer, plan = self.buffers[name], self.schedule.memory
        layout = buffer.layout
        # Below zero for a matrix of no rows and columns whose number only data says.
        elements = max(self.value(storage_elements(buffer)), 0)
        size = [self.value(s) for s in layout.size]
        stride = [self.value(s) for s in layout.stride]
        bytes_ = elements * layout.dtype.itemsize
        if name in plan.reused:
            taken = self.memory[plan.reused[name]].view(layout.dtype)
            self.memory[name] = taken.as_strided(size, stride, taken.storage_offset())
            return
        if name in plan.offsets:
            offset = self.value(plan.offsets[name])
            flat = self.arena[offset : offset + bytes_].view(layout.dtype)
        else:
            flat = self.new_memory(bytes_).view(layout.dtype)
        self.memory[name] = flat.as_strided(size, stride)

    def free(self, names: Sequence[str]) -> None:
        for name in names:
            self.memory.pop(name, None)

    def flat(self, name: str) -> torch.Tensor:
        """The buffer's memory from its first element on, one-dimensional."""
        tensor = self.memory[name]
        available = tensor.untyped_storage().nbytes() // tensor.itemsize
        start = tensor.storage_offset()
        return tensor.as_strided((max(available - start, 0),), (1,), start)

    def view(self, view: BufferView) -> torch.Tensor:
        """The tensor that a call takes or the program returns."""
        tensor = self.memory[view.buffer]
        size = [self.value(s) for s in view.size]
        stride = [self.value(s) for s in view.stride]
        offset = self.value(view.offset)
        return tensor.as_strided(size, stride, tensor.storage_offset() + offset)

    def _result(self, output: Any) -> Any:
        if isinstance(output, BufferView):
            return self.view(output)
        if isinstance(output, sympy.Expr):
            return self.value(output)
        return output

    # -- steps -----------------------------------------------------------------------------------------

    def _argument(self, argument: Any) -> Any:
        if isinstance(argument, BufferView):
            return self.view(argument)
        if isinstance(argument, sympy.Expr):
            return self.value(argument)
        if isinstance(argument, SizeFloat):
            return argument.evaluate(self.sizes)
        return argument

    def extern_call(self, call: ExternCall) -> None:
        super().extern_call(call)
        if not self.writes_into(call):
            for name in extern_writes(call):
                self._settle(name)

    def call(self, call: ExternCall) -> None:
        arguments, keywords = call.with_leaves(self._argument)
        if call.out_variant is not None and self.writes_into(call):
            (name,) = extern_writes(call)
            call.out_variant(*arguments, **keywords, **{call.out_name: self.memory[name]})
            return
        results = call.operator(*arguments, **keywords)
        self._results = results if isinstance(results, list | tuple) else (results,)
        self._operands = [self.memory[name] for name in call.reads]
        made = zip(call.outputs, self._results, strict=True)
        self.memory.update((name, result) for name, result in made if name is not None)

    def define(self, call: ExternCall, definition: SymbolDefinition) -> None:
        result = self._results[definition.result]
        self.sizes[definition.symbol] = (
            result if definition.dimension is None else int(result.shape[definition.dimension])
        )

    def require(self, requirement: Requirement) -> None:
        if not requirement.holds(self.value(requirement.expression)):
            raise RuntimeError(requirement.message)

    def _settle(self, name: str) -> None:
        """Give a buffer that a call has made the layout that the program reads it by.

        What lies in the memory of an operand is copied: the plan takes that for others when it was read last.
        """
        layout = self.buffers[name].layout
        size = tuple(self.value(n) for n in layout.size)
        stride = [self.value(s) for s in layout.stride]
        result = self.memory[name]
        copy = lies_in(result, self._operands)
        self.memory[name] = settle(result, size, stride, layout.dtype, layout.device, copy)
