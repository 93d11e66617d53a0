"""Products whose weights may be loaded before the kernel before them is done.

A weight is an input or a constant of the program that no step writes.  What ran before the program may have
written it: the first kernel of a program waits for that, and later ones begin after it has.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from weft_loop_ir import BufferKind, Kernel, ParallelKernels, Schedule, Step, item_writes

from weft_codegen_triton.host.regions import every_step
from weft_codegen_triton.products.find_products import ProductKernel

GIVEN = (BufferKind.INPUT, BufferKind.CONSTANT)


def first_steps(schedule: Schedule) -> frozenset[str]:
    """The names of the steps up to the first kernel that runs in every call, with those inside them."""
    names: set[str] = set()
    for step in schedule.steps:
        names.update(inner.name for inner in every_step([step]))
        if _surely_runs(step):
            break
    return frozenset(names)


def load_early(schedule: Schedule) -> Schedule:
    """``schedule`` with those of its products that may do so loading early."""
    written = {name for step in schedule.steps for name in item_writes(step)}
    weights = {n for n, b in schedule.buffers.items() if b.kind in GIVEN and n not in written}
    firsts = first_steps(schedule)
    steps = (s if s.name in firsts else _loading(s, weights) for s in schedule.steps)
    return replace(schedule, steps=tuple(steps))


def _loading(step: Step, weights: Collection[str]) -> Step:
    if isinstance(step, ParallelKernels):
        members = tuple(_loading(kernel, weights) for kernel in step.kernels)
        return replace(step, kernels=tuple(m for m in members if isinstance(m, Kernel)))
    if not isinstance(step, ProductKernel):
        return step
    right = step.contraction.right
    is_weight = right.producer is None and right.buffer in weights
    return replace(step, loads_early=True) if is_weight else step


def _surely_runs(step: Step) -> bool:
    """Whether the step is a kernel that has something to do in every call."""
    kernels = step.kernels if isinstance(step, ParallelKernels) else (step,)
    return any(
        isinstance(kernel, Kernel)
        and all(loop.size.is_positive for loop in kernel.outer)
        and bool(kernel.writes)
        for kernel in kernels
    )
