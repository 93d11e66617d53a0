"""The reference evaluator: runs a schedule or a loop graph with torch, one operation at a time.

Each operation is evaluated on the whole iteration grid at once: values are tensors of shape
``[outer iterations, inner iterations]``, either extent possibly 1.  It is slow and simple; code generators
and tests compare with it.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import sympy
import torch

from weft_loop_ir.data_symbols import (
    define,
    defined_symbols,
    layout_symbols,
    sized_within,
    symbols_within,
)
from weft_loop_ir.evaluate_index import evaluate_expression
from weft_loop_ir.evaluate_ops import TorchOps
from weft_loop_ir.ir import (
    Branch,
    Buffer,
    BufferView,
    Count,
    ExternCall,
    Kernel,
    Loop,
    LoopVariable,
    ParallelKernels,
    Schedule,
    Stage,
    SymbolInput,
)
from weft_loop_ir.library_results import settle
from weft_loop_ir.loop_graph import Item, LoopGraph, LoopNode, item_writes
from weft_loop_ir.schedule.memory_plan import allocated_by_extern, storage_elements
from weft_loop_ir.size_float import SizeFloat


def evaluate(
    program: Schedule | LoopGraph, inputs: Sequence[Any], *, use_arena: bool = False
) -> tuple[Any, ...]:
    """Run ``program`` on ``inputs``, all placeholders in order, constants included.

    ``use_arena`` places intermediates by the schedule's memory plan, in memory that is filled with noise
    first; otherwise each buffer has memory of its own, filled the same way.  Raises ``IndexError`` for an
    indirect index out of range, and whatever an extern operator raises.
    """
    return _Run(program, inputs, use_arena).run()


class _Run:
    def __init__(
        self, program: Schedule | LoopGraph, inputs: Sequence[Any], use_arena: bool
    ) -> None:
        self.program = program
        self.sizes: dict[sympy.Symbol, Any] = {}  # and floats that are passed
        self.memory: dict[str, torch.Tensor] = {}
        self.arena: torch.Tensor | None = None
        self._bind(inputs)
        if use_arena:
            if not isinstance(program, Schedule):
                raise ValueError("only a schedule has a memory plan")
            count = evaluate_expression(program.memory.arena_bytes, self.sizes)
            self.arena = torch.full((count,), 0x7B, dtype=torch.uint8)

    def _bind(self, inputs: Sequence[Any]) -> None:
        declared = self.program.inputs
        if len(inputs) != len(declared):
            raise ValueError(f"expected {len(declared)} inputs, got {len(inputs)}")
        for entry, value in zip(declared, inputs, strict=True):
            if isinstance(entry, SymbolInput):
                if isinstance(value, int | float):
                    self.sizes[entry.symbol] = value
            else:
                self.memory[entry] = value
        for symbol in self.program.symbols:
            if symbol.input is not None:
                tensor = self.memory[symbol.input]
                extents = tensor.stride() if symbol.is_stride else tensor.shape
                self.sizes[symbol.symbol] = int(extents[symbol.dimension])
        self.memory.update(self.program.constants)

    def run(self) -> tuple[Any, ...]:
        steps: Sequence[Item] = (
            self.program.steps if isinstance(self.program, Schedule) else self.program.nodes
        )
        external = allocated_by_extern(steps)
        self._varying = {symbol for step in steps for symbol in symbols_within(step)}
        late = defined_symbols(steps) | self._varying
        for name, buffer in self.program.buffers.items():
            known = not layout_symbols(buffer) & late
            if (
                name not in self.memory
                and name not in external
                and known
                and not self._reuses(name)
            ):
                self.memory[name] = self._allocate(buffer)
        self._external = external
        self._block(steps)
        return tuple(self._result(o) for o in self.program.outputs)

    def _block(self, items: Sequence[Item]) -> None:
        for item in items:
            self._allocate_late(item)
            if isinstance(item, ExternCall):
                self._extern(item)
            elif isinstance(item, Kernel):
                self._kernel(item)
            elif isinstance(item, ParallelKernels):
                self._block(item.kernels)
            elif isinstance(item, LoopNode):
                self._node(item)
            elif isinstance(item, Branch):
                holds = bool(self._view(item.predicate))
                self._block(item.true_block if holds else item.false_block)
            else:
                self._loop(item)

    def _loop(self, loop: Loop) -> None:
        count = loop.count
        if count is not None:
            self.sizes[count.symbol] = evaluate_expression(count.start, self.sizes)
        while count is None or count.stop is None or self._is_before(count):
            self._block(loop.condition)
            if loop.predicate is not None and not bool(self._view(loop.predicate)):
                return
            self._block(loop.body)
            if count is not None:
                self.sizes[count.symbol] += evaluate_expression(
                    sympy.sympify(count.step), self.sizes
                )

    def _is_before(self, count: Count) -> bool:
        assert count.stop is not None
        distance = evaluate_expression(count.stop, self.sizes) - self.sizes[count.symbol]
        return bool(distance > 0 if count.ascends else distance < 0)

    # -- memory ----------------------------------------------------------------------------------------

    def _allocate_late(self, item: Item) -> None:
        """Give memory to what ``item`` writes, of a size that was not known when the program began."""
        buffers = self.program.buffers
        later = self._external | sized_within(item, buffers)
        for name in item_writes(item):
            if name in later:
                continue
            buffer = buffers[name]
            varies = layout_symbols(buffer) & self._varying
            if name not in self.memory or (varies and not self._fits(buffer)):
                self.memory[name] = self._allocate(buffer)

    def _fits(self, buffer: Buffer) -> bool:
        """Whether a buffer's memory has the size that it has in this iteration."""
        size = [evaluate_expression(n, self.sizes) for n in buffer.layout.size]
        return list(self.memory[buffer.name].shape) == size

    def _reuses(self, name: str) -> str | None:
        """The buffer whose memory ``name`` takes over, in a run that follows the plan."""
        if self.arena is None or not isinstance(self.program, Schedule):
            return None
        return self.program.memory.reused.get(name)

    def _allocate(self, buffer: Buffer) -> torch.Tensor:
        layout = buffer.layout
        # Below zero for a matrix of no rows and columns whose number only data says.
        elements = max(evaluate_expression(storage_elements(buffer), self.sizes), 0)
        size = [evaluate_expression(s, self.sizes) for s in layout.size]
        stride = [evaluate_expression(s, self.sizes) for s in layout.stride]
        bytes_ = elements * layout.dtype.itemsize
        source = self._reuses(buffer.name)
        if source is not None:
            taken = self.memory[source]
            return taken.view(layout.dtype).as_strided(size, stride, taken.storage_offset())
        if (
            self.arena is not None
            and isinstance(self.program, Schedule)
            and buffer.name in self.program.memory.offsets
        ):
            offset = evaluate_expression(self.program.memory.offsets[buffer.name], self.sizes)
            flat = self.arena[offset : offset + bytes_].view(layout.dtype)
        else:
            flat = torch.full((bytes_,), 0x7B, dtype=torch.uint8).view(layout.dtype)
        return flat.as_strided(size, stride)

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

    def _extern(self, call: ExternCall) -> None:
        arguments = [self._argument(a) for a in call.arguments]
        keywords = {k: self._argument(a) for k, a in call.keywords.items()}
        name = call.outputs[0] if len(call.outputs) == 1 else None
        if call.out_variant is not None and name is not None:
            call.out_variant(*arguments, **keywords, out=self.memory[name])
            return
        results = call.operator(*arguments, **keywords)
        if not isinstance(results, list | tuple):
            results = (results,)
        made = [(n, r) for n, r in zip(call.outputs, results, strict=True) if n is not None]
        self.memory.update(made)
        define(call, results, self.sizes)
        for name, _ in made:
            self._settle(name)

    def _settle(self, name: str) -> None:
        """Give a buffer that a call has made the layout that the program reads it by."""
        layout = self.program.buffers[name].layout
        size = tuple(evaluate_expression(n, self.sizes) for n in layout.size)
        stride = [evaluate_expression(s, self.sizes) for s in layout.stride]
        result = self.memory[name]
        self.memory[name] = settle(result, size, stride, layout.dtype, layout.device, copy=False)

    def _kernel(self, kernel: Kernel) -> None:
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

    def _node(self, node: LoopNode) -> None:
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
