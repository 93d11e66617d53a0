"""The handler of ``ops`` of the reference evaluator."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import sympy
import torch

from weft_loop_ir import ops
from weft_loop_ir.bodies import COMBINED, LEFT, REDUCTIONS, RIGHT, CombineFunction
from weft_loop_ir.expressions import evaluate_index
from weft_loop_ir.host_interpreter import HostInterpreter
from weft_loop_ir.ir import FusedKernel, Kernel, LoopVariable, MemoryPlan, Schedule, Stage
from weft_loop_ir.loop_graph import LoopGraph, LoopNode
from weft_loop_ir.random_numbers import normal, uniform
from weft_loop_ir.schedule.memory_plan import storage_elements
from weft_loop_ir.size_float import SizeFloat

Tensor = torch.Tensor

DIRECT: dict[str, Callable[..., Tensor]] = {
    "truncdiv": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "floordiv": lambda a, b: torch.div(a, b, rounding_mode="floor"),
    "truediv": torch.true_divide,
    "remainder": torch.remainder,
    "left_shift": torch.bitwise_left_shift,
    "right_shift": torch.bitwise_right_shift,
    "rand": uniform,
    "randn": normal,
}
"""Operations whose torch function has another name, or arguments."""


_ATOMIC = {"atomic_mul": "prod", "atomic_max": "amax", "atomic_min": "amin"}


def _mean(grid: Tensor) -> Tensor:
    """The mean of each row as Welford's method gives it: that of equal numbers is that number."""
    first, mean = grid[:, :1], grid.mean(1, keepdim=True)
    return torch.where((grid == first).all(1, True), first, mean) if grid.shape[1] else mean


_REDUCE: dict[str, Callable[[Tensor, torch.dtype], Tensor]] = {
    "sum": lambda grid, dtype: grid.sum(1, keepdim=True, dtype=dtype),
    "prod": lambda grid, dtype: grid.prod(1, keepdim=True, dtype=dtype),
    "max": lambda grid, dtype: grid.amax(1, keepdim=True),
    "min": lambda grid, dtype: grid.amin(1, keepdim=True),
    "any": lambda grid, dtype: grid.any(1, keepdim=True),
    "all": lambda grid, dtype: grid.all(1, keepdim=True),
    "argmax": lambda grid, dtype: grid.argmax(1, keepdim=True),
    "argmin": lambda grid, dtype: grid.argmin(1, keepdim=True),
    "welford_mean": lambda grid, dtype: _mean(grid),
    "welford_m2": lambda grid, dtype: ((grid - _mean(grid)) ** 2).sum(1, True),
}
"""Reductions that torch refuses over no elements: eager has raised, or nothing reads the result."""


@dataclass(eq=False)
class TorchOps:
    """``ops`` on tensors that broadcast to ``shape`` = [outer iterations, inner iterations].

    ``memory`` gives a buffer's flat memory by name; ``local`` holds local buffers as [outer, size].
    """

    memory: Callable[[str], Tensor]
    local: Mapping[str, Tensor]
    symbols: dict[sympy.Symbol, Any]
    shape: tuple[int, int]
    is_reduction: bool
    mask: Tensor | None = None

    def __getattr__(self, name: str) -> Callable[..., Tensor]:
        if name in DIRECT:
            return DIRECT[name]
        if name in ops.ELEMENTWISE:
            function: Callable[..., Tensor] = getattr(torch, name)
            return function
        raise AttributeError(name)

    # -- memory ----------------------------------------------------------------------------------------

    def _index(self, expression: sympy.Expr) -> Tensor:
        return torch.as_tensor(evaluate_index(expression, self.symbols), dtype=torch.int64)

    def _guarded(self, index: Tensor) -> Tensor:
        """Where the mask doesn't hold, nothing is accessed: read element 0 instead."""
        if self.mask is None:
            return index
        return torch.where(self.mask, index, torch.zeros_like(index))

    def _rows(self, index: Tensor) -> tuple[Tensor, Tensor]:
        rows = torch.arange(self.shape[0])[:, None]
        first, second = torch.broadcast_tensors(rows, index)
        return first, second

    def load(self, buffer: str, index: sympy.Expr) -> Tensor:
        where = self._guarded(self._index(index))
        if buffer in self.local:
            rows, columns = self._rows(where)
            return self.local[buffer][rows, columns]
        flat = self.memory(buffer)
        if self.mask is not None and flat.numel() == 0:
            return flat.new_zeros(where.shape)
        if 0 in self.shape:
            return flat.new_zeros(torch.broadcast_shapes(where.shape, self.shape))
        if where.numel() and (int(where.min()) < 0 or int(where.max()) >= flat.numel()):
            raise IndexError(f"load from {buffer} at {index}: outside the buffer's memory")
        if flat.dtype in ops.FLOAT8:  # which take does not know
            return torch.take(flat.view(torch.uint8), where).view(flat.dtype)
        return torch.take(flat, where)  # a copy: flat[where] is a view where there is one index

    def store(self, buffer: str, index: sympy.Expr, value: Tensor, mode: str | None = None) -> None:
        where = self._index(index)
        if buffer in self.local:
            rows, columns = self._rows(where)
            self.local[buffer][rows, columns] = value.expand(rows.shape)
            return
        shape = torch.broadcast_shapes(where.shape, value.shape)
        reduced = value.shape == (self.shape[0], 1)
        full = (self.shape[0], 1) if self.is_reduction and reduced else self.shape
        if 0 in full:
            return
        shape = torch.broadcast_shapes(shape, full)
        where, value = where.expand(shape), value.expand(shape)
        flat = self.memory(buffer)
        if where.numel() and (int(where.min()) < 0 or int(where.max()) >= flat.numel()):
            raise IndexError(f"store to {buffer} at {index}: outside the buffer's memory")
        if mode in _ATOMIC:
            flat.scatter_reduce_(0, where.reshape(-1), value.reshape(-1), _ATOMIC[mode])
        else:
            flat.index_put_((where,), value, accumulate=mode == "atomic_add")

    # -- values ----------------------------------------------------------------------------------------

    def reduction(self, kind: str, dtype: torch.dtype, value: Tensor) -> Tensor:
        grid = value.expand(self.shape)
        if self.shape[1] == 0 and REDUCTIONS[kind].needs_elements:
            return grid.new_zeros((self.shape[0], 1), dtype=REDUCTIONS[kind].result(dtype))
        return _REDUCE[kind](grid, dtype)

    def scan(self, combine_function: CombineFunction, number: int, *values: Tensor) -> Tensor:
        grids = [value.expand(self.shape) for value in values]
        if 0 in self.shape:
            return grids[number].clone()
        columns = [grid.split(1, 1) for grid in grids]
        running = [column[0] for column in columns]
        results = [running[number]]
        for position in range(1, self.shape[1]):
            running = self._combined(combine_function, running, [c[position] for c in columns])
            results.append(running[number])
        return torch.cat(results, 1)

    def fold(self, combine_function: CombineFunction, number: int, *values: Tensor) -> Tensor:
        return self.scan(combine_function, number, *values)[:, -1:]

    def _combined(
        self, combine_function: CombineFunction, left: list[Tensor], right: list[Tensor]
    ) -> list[Tensor]:
        """What the function gives of values of shape [outer iterations, 1]."""
        memory = {f"{LEFT}{k}": value.reshape(-1) for k, value in enumerate(left)}
        memory |= {f"{RIGHT}{k}": value.reshape(-1) for k, value in enumerate(right)}
        memory |= {
            f"{COMBINED}{k}": torch.empty(self.shape[0], dtype=dtype)
            for k, dtype in enumerate(combine_function.dtypes)
        }
        handler = _AtRow(memory.__getitem__, {}, {}, (self.shape[0], 1), False)
        combine_function.body.replay(handler)
        return [memory[f"{COMBINED}{k}"][:, None] for k in range(len(left))]

    def constant(self, value: bool | int | float, dtype: torch.dtype) -> Tensor:
        return torch.full((1, 1), value, dtype=dtype)

    def index_expr(self, expression: sympy.Expr, dtype: torch.dtype) -> Tensor:
        index = self._index(expression)
        return index.reshape((1, 1) if index.dim() == 0 else index.shape).to(dtype)

    def scalar(self, number: SizeFloat, dtype: torch.dtype) -> Tensor:
        value = torch.full((1, 1), number.evaluate(self.symbols), dtype=torch.float64)
        return value.to(dtype)

    def to_dtype(self, value: Tensor, dtype: torch.dtype) -> Tensor:
        return value.to(dtype)

    def to_dtype_bitcast(self, value: Tensor, dtype: torch.dtype) -> Tensor:
        return value.contiguous().view(dtype)

    def where(self, condition: Tensor, value: Tensor, other: Tensor) -> Tensor:
        return torch.where(condition, value, other)

    def relu(self, value: Tensor) -> Tensor:
        return torch.relu(value)

    def indirect(self, value: Tensor, symbol: sympy.Symbol, size: sympy.Expr, check: bool) -> None:
        extent = self._index(size)
        index = value.to(torch.int64)
        index = torch.where(index < 0, index + extent, index)
        wrong = (index < 0) | (index >= extent)
        if self.mask is not None:
            wrong = wrong & self.mask
        if 0 not in self.shape and bool(wrong.any()) and check:
            first = value.to(torch.int64).expand(wrong.shape)[wrong][0]
            raise IndexError(
                f"index {int(first)} is out of bounds for dimension with size {int(extent)}"
            )
        self.symbols[symbol] = index

    def masked(self, mask: Tensor, body: Callable[[], Tensor], other: bool | int | float) -> Tensor:
        previous = self.mask
        self.mask = mask if previous is None else mask & previous
        value = body()
        self.mask = previous
        return torch.where(mask, value, torch.full((1, 1), other, dtype=value.dtype))


class _AtRow(TorchOps):
    """The function of a scan: each outer iteration's values are in a row of their own."""

    def _index(self, expression: sympy.Expr) -> Tensor:
        return torch.arange(self.shape[0])[:, None]


# -- programs ------------------------------------------------------------------------------------------


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
