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

from weft_loop_ir.evaluate_ops import TorchOps
from weft_loop_ir.host_interpreter import HostInterpreter
from weft_loop_ir.ir import FusedKernel, Kernel, LoopVariable, MemoryPlan, Schedule, Stage
from weft_loop_ir.loop_graph import LoopGraph, LoopNode
from weft_loop_ir.schedule.memory_plan import storage_elements


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
    return _Evaluator(program if use_arena else replace(program, memory=_NO_PLAN), inputs).run()


_NO_PLAN = MemoryPlan(sympy.S.Zero, {})
_SHARED = ("name", "inputs", "symbols", "buffers", "outputs", "fallbacks", "constants")
"""What a loop graph and a schedule have both."""


class _Evaluator(HostInterpreter):
    """Runs loop bodies one operation at a time, in memory that is filled with noise first."""

    def new_memory(self, bytes_: int) -> torch.Tensor:
        return torch.full((bytes_,), 0x7B, dtype=torch.uint8)

    def kernel(self, kernel: Kernel) -> None:
        if isinstance(kernel, FusedKernel):
            self._fused(kernel)
            return
        outer = self._grid(kernel.outer)
        iterations = self._count(kernel.outer)
        local: dict[str, torch.Tensor] = {}
        for buffer in kernel.local_buffers:
            count = self.value(buffer.size)
            local[buffer.name] = torch.empty((iterations, count), dtype=buffer.dtype)
        for stage in kernel.stages:
            if not stage.is_sequential:
                self._stage(kernel.outer, outer, stage, local)
                continue
            self._sequential(kernel.outer, outer, stage, local)

    def _fused(self, kernel: FusedKernel) -> None:
        """The loop nests that the kernel stands for, with memory between them."""
        expansion, before = kernel.expanded(self.buffers), dict(self.memory)
        for name, buffer in expansion.buffers.items():
            count = self.value(storage_elements(buffer))
            dtype = buffer.layout.dtype
            self.memory[name] = self.new_memory(count * dtype.itemsize).view(dtype)
        for nest in expansion.kernels:
            self.kernel(nest)
        self.memory = before

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
            count *= self.value(variable.size)
        return count

    def _grid(self, loops: Sequence[LoopVariable]) -> dict[sympy.Symbol, torch.Tensor]:
        """The value of each loop symbol at each iteration, in row-major order."""
        extents = [self.value(v.size) for v in loops]
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
        handler = TorchOps(self.flat, local, symbols, shape, stage.is_reduction)
        stage.body.replay(handler)
