"""The reference evaluator: runs a schedule or a loop graph with torch, one operation at a time.

Each operation is evaluated on the whole iteration grid at once: values are tensors of shape
``[outer iterations, inner iterations]``, either extent possibly 1.  It is slow and simple; code generators
and tests compare with it.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import sympy
import torch

from weft_loop_ir.data_symbols import (
    layout_symbols,
    symbols_within,
)
from weft_loop_ir.evaluate_index import evaluate_expression
from weft_loop_ir.evaluate_ops import TorchOps
from weft_loop_ir.host_walk import HostWalk
from weft_loop_ir.ir import (
    Branch,
    BufferView,
    Count,
    ExternCall,
    Kernel,
    Loop,
    LoopVariable,
    MemoryPlan,
    Requirement,
    Schedule,
    Stage,
    SymbolDefinition,
    SymbolInput,
)
from weft_loop_ir.library_results import settle
from weft_loop_ir.loop_graph import LoopGraph, LoopNode, extern_writes
from weft_loop_ir.schedule.memory_plan import storage_elements
from weft_loop_ir.size_float import SizeFloat


def evaluate(
    program: Schedule | LoopGraph, inputs: Sequence[Any], *, use_arena: bool = False
) -> tuple[Any, ...]:
    """Run ``program`` on ``inputs``, all placeholders in order, constants included.

    ``use_arena`` places intermediates by the schedule's memory plan, in memory that is filled with noise
    first; otherwise each buffer has memory of its own, filled the same way.  Raises ``IndexError`` for an
    indirect index out of range, and whatever an extern operator raises.
    """
    if isinstance(program, LoopGraph):
        if use_arena:
            raise ValueError("only a schedule has a memory plan")
        fields = {name: getattr(program, name) for name in _SHARED}
        program = Schedule(steps=cast(Any, program.nodes), memory=_NO_PLAN, **fields)
    return _Run(program if use_arena else replace(program, memory=_NO_PLAN), inputs).run()


_NO_PLAN = MemoryPlan(sympy.S.Zero, {})
_SHARED = ("name", "inputs", "symbols", "buffers", "outputs", "fallbacks", "constants")
"""What a loop graph and a schedule have both."""


class _Run(HostWalk):
    def __init__(self, schedule: Schedule, inputs: Sequence[Any]) -> None:
        super().__init__(schedule)
        self.sizes: dict[sympy.Symbol, Any] = {}  # and floats that are passed
        self.memory: dict[str, torch.Tensor] = {}
        self._bind(inputs)
        count = evaluate_expression(sympy.sympify(schedule.memory.arena_bytes), self.sizes)
        self.arena = torch.full((count,), 0x7B, dtype=torch.uint8)
        self._varying = {symbol for step in schedule.steps for symbol in symbols_within(step)}
        self._results: Sequence[Any] = ()  # of the call at hand

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

    def run(self) -> tuple[Any, ...]:
        self.walk()
        self.allocate_unwritten()
        return tuple(self._result(o) for o in self.schedule.outputs)

    def branch(self, branch: Branch) -> None:
        holds = bool(self._view(branch.predicate))
        self.block(branch.true_block if holds else branch.false_block)

    def loop(self, loop: Loop) -> None:
        count = loop.count
        if count is not None:
            self.sizes[count.symbol] = evaluate_expression(count.start, self.sizes)
        while count is None or count.stop is None or self._is_before(count):
            self.block(loop.condition)
            if loop.predicate is not None and not bool(self._view(loop.predicate)):
                return
            self.block(loop.body)
            if count is not None:
                self.sizes[count.symbol] += evaluate_expression(
                    sympy.sympify(count.step), self.sizes
                )

    def _is_before(self, count: Count) -> bool:
        assert count.stop is not None
        distance = evaluate_expression(count.stop, self.sizes) - self.sizes[count.symbol]
        return bool(distance > 0 if count.ascends else distance < 0)

    # -- memory ----------------------------------------------------------------------------------------

    def has_memory(self, name: str) -> bool:
        """Of the size that the buffer has in this iteration, where that differs."""
        buffer = self.buffers[name]
        if name not in self.memory or not layout_symbols(buffer) & self._varying:
            return name in self.memory
        size = [evaluate_expression(n, self.sizes) for n in buffer.layout.size]
        return list(self.memory[name].shape) == size

    def allocate(self, name: str) -> None:
        buffer, plan = self.buffers[name], self.schedule.memory
        layout = buffer.layout
        # Below zero for a matrix of no rows and columns whose number only data says.
        elements = max(evaluate_expression(storage_elements(buffer), self.sizes), 0)
        size = [evaluate_expression(s, self.sizes) for s in layout.size]
        stride = [evaluate_expression(s, self.sizes) for s in layout.stride]
        bytes_ = elements * layout.dtype.itemsize
        if name in plan.reused:
            taken = self.memory[plan.reused[name]].view(layout.dtype)
            self.memory[name] = taken.as_strided(size, stride, taken.storage_offset())
            return
        if name in plan.offsets:
            offset = evaluate_expression(plan.offsets[name], self.sizes)
            flat = self.arena[offset : offset + bytes_].view(layout.dtype)
        else:
            flat = torch.full((bytes_,), 0x7B, dtype=torch.uint8).view(layout.dtype)
        self.memory[name] = flat.as_strided(size, stride)

    def free(self, names: Sequence[str]) -> None:
        for name in names:
            self.memory.pop(name, None)

    def _flat(self, name: str) -> torch.Tensor:
        """The buffer's memory from its first element on, one-dimensional."""
        tensor = self.memory[name]
        available = tensor.untyped_storage().nbytes() // tensor.itemsize
        start = tensor.storage_offset()
        return tensor.as_strided((max(available - start, 0),), (1,), start)

    def _view(self, view: BufferView) -> torch.Tensor:
        tensor = self.memory[view.buffer]
        size = [evaluate_expression(s, self.sizes) for s in view.size]
        stride = [evaluate_expression(s, self.sizes) for s in view.stride]
        offset = evaluate_expression(view.offset, self.sizes)
        return tensor.as_strided(size, stride, tensor.storage_offset() + offset)

    def _result(self, output: Any) -> Any:
        if isinstance(output, BufferView):
            return self._view(output)
        if isinstance(output, sympy.Expr):
            return evaluate_expression(output, self.sizes)
        return output

    # -- steps -----------------------------------------------------------------------------------------

    def _argument(self, argument: Any) -> Any:
        if isinstance(argument, BufferView):
            return self._view(argument)
        if isinstance(argument, sympy.Expr):
            return evaluate_expression(argument, self.sizes)
        if isinstance(argument, SizeFloat):
            return argument.evaluate(self.sizes)
        if isinstance(argument, list | tuple):
            return [self._argument(a) for a in argument]
        return argument

    def extern_call(self, call: ExternCall) -> None:
        super().extern_call(call)
        if not self.writes_into(call):
            for name in extern_writes(call):
                self._settle(name)

    def call(self, call: ExternCall) -> None:
        arguments = [self._argument(a) for a in call.arguments]
        keywords = {k: self._argument(a) for k, a in call.keywords.items()}
        if call.out_variant is not None and self.writes_into(call):
            (name,) = extern_writes(call)
            call.out_variant(*arguments, **keywords, out=self.memory[name])
            return
        results = call.operator(*arguments, **keywords)
        self._results = results if isinstance(results, list | tuple) else (results,)
        made = zip(call.outputs, self._results, strict=True)
        self.memory.update((name, result) for name, result in made if name is not None)

    def define(self, call: ExternCall, definition: SymbolDefinition) -> None:
        result = self._results[definition.result]
        self.sizes[definition.symbol] = (
            result if definition.dimension is None else int(result.shape[definition.dimension])
        )

    def require(self, requirement: Requirement) -> None:
        value = evaluate_expression(requirement.expression, self.sizes)
        holds = {"nonnegative": value >= 0, "zero": value == 0, "nonzero": value != 0}
        if not holds[requirement.relation]:
            raise RuntimeError(requirement.message)

    def _settle(self, name: str) -> None:
        """Give a buffer that a call has made the layout that the program reads it by."""
        layout = self.buffers[name].layout
        size = tuple(evaluate_expression(n, self.sizes) for n in layout.size)
        stride = [evaluate_expression(s, self.sizes) for s in layout.stride]
        result = self.memory[name]
        self.memory[name] = settle(result, size, stride, layout.dtype, layout.device, copy=False)

    def kernel(self, kernel: Kernel) -> None:
        outer = self._grid(kernel.outer)
        iterations = self._count(kernel.outer)
        local: dict[str, torch.Tensor] = {}
        for buffer in kernel.local_buffers:
            count = evaluate_expression(buffer.size, self.sizes)
            local[buffer.name] = torch.empty((iterations, count), dtype=buffer.dtype)
        for stage in kernel.stages:
            if not stage.is_sequential:
                self._stage(kernel.outer, outer, stage, local)
                continue
            self._sequential(kernel.outer, outer, stage, local)

    def _sequential(
        self,
        outer_loops: Sequence[LoopVariable],
        outer: Mapping[sympy.Symbol, torch.Tensor],
        stage: Stage,
        local: Mapping[str, torch.Tensor],
    ) -> None:
        """A loop whose points begin each iteration together; those that are over keep their state."""
        once = replace(stage, inner=(), is_sequential=False)
        for number in range(self._count(stage.inner)) if stage.inner else itertools.count():
            for variable in stage.inner:
                self.sizes[variable.symbol] = number
            if stage.goes_on is None:
                self._stage(outer_loops, outer, once, local)
                continue
            goes_on = local[stage.goes_on].clone()
            if not goes_on.any():
                return
            before = {name: buffer.clone() for name, buffer in local.items()}
            self._stage(outer_loops, outer, once, local)
            for name, buffer in local.items():
                buffer.copy_(torch.where(goes_on, buffer, before[name]))

    def loop_node(self, node: LoopNode) -> None:
        stage = Stage(node.reduction_loops, node.body, bool(node.reduction_loops))
        self._stage(node.loops, self._grid(node.loops), stage, {})

    def _count(self, loops: Sequence[LoopVariable]) -> int:
        count = 1
        for variable in loops:
            count *= evaluate_expression(variable.size, self.sizes)
        return count

    def _grid(self, loops: Sequence[LoopVariable]) -> dict[sympy.Symbol, torch.Tensor]:
        """The value of each loop symbol at each iteration, in row-major order."""
        extents = [evaluate_expression(v.size, self.sizes) for v in loops]
        if not extents:
            return {}
        grids = torch.meshgrid(*(torch.arange(n) for n in extents), indexing="ij")
        return {v.symbol: g.reshape(-1) for v, g in zip(loops, grids, strict=True)}

    def _stage(
        self,
        outer_loops: Sequence[LoopVariable],
        outer: Mapping[sympy.Symbol, torch.Tensor],
        stage: Stage,
        local: Mapping[str, torch.Tensor],
    ) -> None:
        symbols: dict[sympy.Symbol, torch.Tensor | int] = dict(self.sizes)
        symbols.update({s: g[:, None] for s, g in outer.items()})
        symbols.update({s: g[None, :] for s, g in self._grid(stage.inner).items()})
        shape = (self._count(outer_loops), self._count(stage.inner))
        handler = TorchOps(self._flat, local, symbols, shape, stage.is_reduction)
        stage.body.replay(handler)
