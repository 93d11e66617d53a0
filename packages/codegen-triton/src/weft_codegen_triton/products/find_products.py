"""Which matrix products of a schedule may be computed in one kernel with the loops that read them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace

import sympy
import torch
from weft_loop_ir import (
    BufferKind,
    BufferView,
    ExternCall,
    Kernel,
    LoopVariable,
    Schedule,
    ScheduleOptions,
    item_reads,
    item_writes,
    plan_memory,
)

aten = torch.ops.aten

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
LEAST_EXTENT = 16
"""Of each of the three sizes of a product."""
MOST_ELEMENTS = 2**31 - 2**21
"""Of each matrix, so that 32-bit indices do."""


@dataclass(frozen=True)
class ProductKernel(Kernel):
    """The loops of a kernel on the result of ``product``, tile by tile as it is computed.

    ``rest`` is the kernel as it was; ``digits`` are its loops in the order of their steps in the result, the
    longest step first.
    """

    product: ExternCall
    rest: Kernel
    digits: tuple[LoopVariable, ...]

    @property
    def result(self) -> str:
        """The buffer that the product would have filled."""
        (name,) = self.product.outputs
        assert name is not None
        return name


def fuse_products(
    schedule: Schedule,
    accept: Callable[[ProductKernel], bool],
    options: ScheduleOptions | None = None,
) -> Schedule:
    """``schedule`` with those products fused that ``accept`` says are to be.

    Its memory is planned anew, by ``options``.
    """
    steps = list(schedule.steps)
    gone: set[int] = set()
    for first, second, product in _candidates(schedule):
        if accept(product):
            steps[second] = product
            gone.add(first)
    if not gone:
        return schedule
    kept = tuple(step for position, step in enumerate(steps) if position not in gone)
    return replace(schedule, steps=kept, memory=plan_memory(kept, schedule.buffers, options))


def _candidates(schedule: Schedule) -> Iterator[tuple[int, int, ProductKernel]]:
    """Products and the positions of their two steps; each kernel takes one product at most."""
    taken: set[int] = set()
    for first, call in enumerate(schedule.steps):
        if not isinstance(call, ExternCall) or not _is_plain(call, schedule):
            continue
        (name,) = call.outputs
        readers = [k for k, step in enumerate(schedule.steps) if name in item_reads(step)]
        writers = [k for k, step in enumerate(schedule.steps) if name in item_writes(step)]
        if len(readers) != 1 or writers != [first] or readers[0] in taken:
            continue
        second = readers[0]
        kernel = schedule.steps[second]
        operands = {a.buffer for a in call.arguments}
        between = {n for step in schedule.steps[first + 1 : second] for n in item_writes(step)}
        if type(kernel) is not Kernel or operands & {*between, *kernel.reads, *kernel.writes}:
            continue
        product = _joined(call, kernel, str(name), schedule)
        if product is not None:
            taken.add(second)
            yield first, second, product


def _is_plain(call: ExternCall, schedule: Schedule) -> bool:
    """Whether ``call`` multiplies two matrices, plus a row at most, into an intermediate of known size."""
    if call.operator not in (aten.mm.default, aten.addmm.default) or call.keywords:
        return False
    if call.holds or call.defines or call.out_variant is None:
        return False
    views = call.arguments
    (name,) = call.outputs
    if name is None or not all(isinstance(v, BufferView) for v in views):
        return False
    result = schedule.buffers[name]
    numbers = [n for v in views for n in (*v.size, *v.stride, v.offset)]
    if result.kind is not BufferKind.INTERMEDIATE or not all(n.is_Integer for n in numbers):
        return False
    if any(o.buffer == name for o in schedule.outputs if isinstance(o, BufferView)):
        return False
    (rows, inner), (_, columns) = views[-2].size, views[-1].size
    dtypes = {v.dtype for v in views} | {schedule.buffers[v.buffer].layout.dtype for v in views}
    layout = result.layout
    return (
        len(dtypes | {layout.dtype}) == 1
        and layout.dtype in DTYPES
        and layout.stride == (columns, 1)
        and layout.offset == 0
        and min(rows, inner, columns) >= LEAST_EXTENT
        and max(_span(v) for v in views) < MOST_ELEMENTS
        and rows * columns < MOST_ELEMENTS
        and (len(views) == 2 or views[0].size == (columns,))
    )


def _span(view: BufferView) -> int:
    last = sum((int(n) - 1) * int(s) for n, s in zip(view.size, view.stride, strict=True))
    return int(view.offset) + last


def _joined(
    call: ExternCall, kernel: Kernel, name: str, schedule: Schedule
) -> ProductKernel | None:
    """The two as one; None unless each iteration of a pointwise kernel reads one element of the product."""
    if len(kernel.stages) != 1 or kernel.stages[0].inner or kernel.local_buffers:
        return None
    body = kernel.stages[0].body
    layouts = [schedule.buffers[n].layout for n in (*kernel.reads, *kernel.writes)]
    if any(not n.is_Integer for layout in layouts for n in layout.size):
        return None
    if any(math.prod(int(n) for n in layout.size) >= MOST_ELEMENTS for layout in layouts):
        return None
    indices = {
        i.arguments[1]
        for i in body.instructions
        if i.operation == "load" and i.arguments[0] == name
    }
    accumulates = any(i.operation == "store" and len(i.arguments) > 3 for i in body.instructions)
    checks = any(i.operation in ("masked", "indirect") for i in body.instructions)
    if len(indices) != 1 or accumulates or checks:
        return None
    digits = _digits(indices.pop(), kernel, schedule.buffers[name].layout.size)
    if digits is None:
        return None
    values = {f.name: getattr(kernel, f.name) for f in fields(Kernel)}
    values["reads"] = (
        *(n for n in kernel.reads if n != name),
        *dict.fromkeys(a.buffer for a in call.arguments),
    )
    values["origins"] = (call.origin, *kernel.origins)
    return ProductKernel(**values, product=call, rest=kernel, digits=digits)


def _digits(
    index: sympy.Expr, kernel: Kernel, size: tuple[sympy.Expr, ...]
) -> tuple[LoopVariable, ...] | None:
    """The loops as the digits of a position in the product: each element is read once, and none left out."""
    loops = [loop for loop in kernel.outer if loop.size != 1]
    if not all(loop.size.is_Integer for loop in loops):
        return None
    steps = {loop: index.coeff(loop.symbol) for loop in loops}
    whole = sum((loop.symbol * step for loop, step in steps.items()), sympy.S.Zero)
    ones = {loop.symbol: 0 for loop in kernel.outer if loop.size == 1}
    if not all(s.is_Integer for s in steps.values()) or sympy.expand(index.subs(ones) - whole) != 0:
        return None
    expected = 1
    order = sorted(loops, key=lambda loop: int(steps[loop]))
    for loop in order:
        if steps[loop] != expected:
            return None
        expected *= int(loop.size)
    return tuple(reversed(order)) if expected == int(size[0] * size[1]) else None
