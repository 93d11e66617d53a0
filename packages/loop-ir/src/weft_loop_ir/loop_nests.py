"""Builds kernels nest by nest: what a fused kernel stands for, as ordinary loops over temporary buffers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import sympy
import torch

from weft_loop_ir.bodies import Value
from weft_loop_ir.expressions import contiguous_stride
from weft_loop_ir.ir import (
    Buffer,
    BufferKind,
    Expansion,
    Kernel,
    Layout,
    LocalBuffer,
    LoopVariable,
    Stage,
)
from weft_loop_ir.recording import BodyRecorder

Record = Callable[[BodyRecorder], None]


class LoopNests:
    """The kernels that stand for one called ``name``, on ``buffers`` and temporary ones."""

    def __init__(self, name: str, buffers: Mapping[str, Buffer]) -> None:
        self.name = name
        self.buffers = dict(buffers)
        self._temporary: dict[str, Buffer] = {}
        self._kernels: list[Kernel] = []

    def expansion(self) -> Expansion:
        return Expansion(self._temporary, tuple(self._kernels))

    def temporary(
        self, name: str, size: Sequence[sympy.Expr], dtype: torch.dtype = torch.float32
    ) -> str:
        """A dense buffer between kernels."""
        device = next(iter(self.buffers.values())).layout.device
        layout = Layout(device, dtype, tuple(size), contiguous_stride(tuple(size)))
        made = Buffer(name, BufferKind.INTERMEDIATE, layout)
        self.buffers[name] = self._temporary[name] = made
        return name

    def include(self, kernel: Kernel, temporary: Sequence[str] = ()) -> None:
        """Append a kernel as it is, whose results ``temporary`` only others read."""
        self._temporary |= {name: self.buffers[name] for name in temporary}
        self._kernels.append(kernel)

    def add(
        self,
        outer: Sequence[LoopVariable],
        *stages: tuple[Sequence[LoopVariable], Record],
        local: Sequence[LocalBuffer] = (),
    ) -> None:
        """Append a kernel; a stage is its inner loops and what records its body."""
        dtypes = {name: buffer.layout.dtype for name, buffer in self.buffers.items()}
        dtypes |= {buffer.name: buffer.dtype for buffer in local}
        made = []
        for inner, record in stages:
            ops = BodyRecorder.over((*outer, *inner), dtypes.__getitem__)
            record(ops)
            body = ops.body()
            made.append(Stage(tuple(inner), body, bool(body.reductions())))
        name = f"{self.name}_{len(self._kernels)}"
        self._kernels.append(Kernel.of_stages(name, outer, made, local))

    def contract(
        self,
        outer: Sequence[LoopVariable],
        summed: Sequence[LoopVariable],
        product: Callable[[BodyRecorder], Value],
        result: tuple[str, sympy.Expr],
        finish: Callable[[BodyRecorder, Value], Value] | None = None,
    ) -> None:
        """Sums over ``summed`` of what ``product`` records, in float32.

        With ``finish`` they go through a buffer of their own, and what it makes of them is the result.
        """
        name, index = result
        target = self.buffers[name].layout.dtype
        sums = name
        if finish is not None or target != torch.float32:
            sums, index = (
                self.temporary(f"{self.name}_sums{len(self._kernels)}", [v.size for v in outer]),
                dense(outer),
            )

        def add_up(ops: BodyRecorder) -> None:
            ops.store(sums, index, ops.reduction("sum", torch.float32, product(ops)))

        def convert(ops: BodyRecorder) -> None:
            value = ops.load(sums, index)
            value = value if finish is None else finish(ops, value)
            ops.store(name, result[1], ops.to_dtype(value, target))

        self.add(outer, (summed, add_up))
        if sums != name:
            self.add(outer, ((), convert))


def dense(loops: Sequence[LoopVariable]) -> sympy.Expr:
    """The row-major position in ``loops``."""
    position: sympy.Expr = sympy.S.Zero
    for variable in loops:
        position = position * variable.size + variable.symbol
    return sympy.expand(position)
