"""Schedules built by hand, with the recorder of loop-ir."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import sympy
import torch
from weft_loop_ir import (
    Buffer,
    BufferKind,
    BufferView,
    ExternCall,
    Kernel,
    Layout,
    LocalBuffer,
    LoopBody,
    LoopVariable,
    MemoryPlan,
    Schedule,
    Stage,
)
from weft_loop_ir.expressions import contiguous_stride, dot, loop_symbol
from weft_loop_ir.index_simplify import IndexRanges
from weft_loop_ir.recording import BodyRecorder

CPU = torch.device("cpu")


def exprs(values: Sequence[Any]) -> tuple[sympy.Expr, ...]:
    return tuple(sympy.sympify(v) for v in values)


def loops(prefix: str, sizes: Sequence[Any]) -> tuple[LoopVariable, ...]:
    return tuple(LoopVariable(loop_symbol(prefix, k), e) for k, e in enumerate(exprs(sizes)))


class Builder:
    """Collects buffers, kernels and extern calls into a Schedule."""

    def __init__(self) -> None:
        self.buffers: dict[str, Buffer] = {}
        self.inputs: list[Any] = []
        self.steps: list[Any] = []
        self.outputs: list[Any] = []
        self.offsets: dict[str, sympy.Expr] = {}
        self.arena: Any = 0
        self.symbols: list[Any] = []
        self.local_dtypes: dict[str, torch.dtype] = {}

    def buffer(
        self,
        name: str,
        kind: BufferKind,
        size: Sequence[Any],
        dtype: torch.dtype,
        stride: Sequence[Any] | None = None,
    ) -> str:
        sizes = exprs(size)
        strides = contiguous_stride(sizes) if stride is None else exprs(stride)
        self.buffers[name] = Buffer(name, kind, Layout(CPU, dtype, sizes, strides))
        if kind in (BufferKind.INPUT, BufferKind.CONSTANT):
            self.inputs.append(name)
        if kind is BufferKind.OUTPUT:
            self.outputs.append(BufferView(name, sizes, strides, sympy.S.Zero, dtype))
        return name

    def like(self, name: str, tensor: torch.Tensor, kind: BufferKind = BufferKind.INPUT) -> str:
        return self.buffer(name, kind, tensor.shape, tensor.dtype, tensor.stride())

    def intermediate(self, name: str, size: Sequence[int], dtype: torch.dtype) -> str:
        self.buffer(name, BufferKind.INTERMEDIATE, size, dtype)
        self.offsets[name] = sympy.Integer(self.arena)
        self.arena += (math.prod(size) * dtype.itemsize + 63) // 64 * 64
        return name

    def recorder(self) -> BodyRecorder:
        def dtype_of(name: str) -> torch.dtype:
            if name in self.local_dtypes:
                return self.local_dtypes[name]
            return self.buffers[name].layout.dtype

        return BodyRecorder(IndexRanges(()), dtype_of)

    def body(self, program: Callable[[BodyRecorder], None]) -> LoopBody:
        recorder = self.recorder()
        program(recorder)
        return recorder.body()

    def at(self, name: str, index: Sequence[Any]) -> sympy.Expr:
        return dot(exprs(index), self.buffers[name].layout.stride, sympy.S.Zero)

    def kernel(
        self,
        outer: Sequence[Any],
        stages: Sequence[tuple[Sequence[Any], Callable[[BodyRecorder], None]]],
        local: Mapping[str, tuple[torch.dtype, Any]] | None = None,
    ) -> None:
        local = local or {}
        self.local_dtypes.update({n: d for n, (d, _) in local.items()})
        made = []
        reads: dict[str, None] = {}
        writes: dict[str, None] = {}
        for inner, program in stages:
            body = self.body(program)
            reads |= dict.fromkeys(name for name in body.reads if name not in local)
            writes |= dict.fromkeys(name for name in body.writes if name not in local)
            made.append(Stage(loops("r", inner), body, bool(body.reductions())))
        number = len(self.steps)
        self.steps.append(
            Kernel(
                f"kernel{number}",
                loops("i", outer),
                tuple(made),
                tuple(LocalBuffer(n, d, sympy.sympify(s)) for n, (d, s) in local.items()),
                tuple(reads),
                tuple(writes),
                (f"test{number}",),
            )
        )

    def extern(
        self,
        operator: torch._ops.OpOverload,
        arguments: Sequence[Any],
        outputs: Sequence[str | None],
        keywords: Mapping[str, Any] | None = None,
        out_variant: torch._ops.OpOverload | None = None,
    ) -> None:
        number = len(self.steps)
        self.steps.append(
            ExternCall(
                f"extern{number}", operator, tuple(arguments), dict(keywords or {}), tuple(outputs),
                "test", f"node{number}", out_variant,
            )
        )  # fmt: skip

    def view(self, name: str) -> BufferView:
        layout = self.buffers[name].layout
        return BufferView(name, layout.size, layout.stride, sympy.S.Zero, layout.dtype)

    def schedule(self, name: str = "test") -> Schedule:
        return Schedule(
            name,
            tuple(self.inputs),
            tuple(self.symbols),
            self.buffers,
            tuple(self.steps),
            tuple(self.outputs),
            MemoryPlan(sympy.sympify(self.arena), self.offsets),
        )


def i(k: int) -> sympy.Symbol:
    return loop_symbol("i", k)


def r(k: int) -> sympy.Symbol:
    return loop_symbol("r", k)
