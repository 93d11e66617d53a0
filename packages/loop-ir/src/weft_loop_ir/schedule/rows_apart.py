"""Kernels that make rows, store them and reduce them, as two: what makes the rows may fuse then."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from weft_loop_ir.bodies import LOAD, Combining, Elementwise, Indirect, Random, Reduction, Value
from weft_loop_ir.bodies.edit import chosen, without_unused
from weft_loop_ir.ir import Buffer, Kernel, Schedule, Stage
from weft_loop_ir.schedule.kernel_names import kernel_name, renamed
from weft_loop_ir.schedule.options import ScheduleOptions
from weft_loop_ir.schedule.replaced_steps import ReplacedSteps


def rows_apart(
    schedule: Schedule,
    options: ScheduleOptions | None,
    accept: Callable[[Kernel, ReplacedSteps], bool],
) -> Schedule:
    """``schedule`` with what kernels store of rows before their sums in pointwise kernels of their own.

    Where ``accept`` is true of the kernel that is left, which loads the rows.
    """
    around = ReplacedSteps(schedule)
    for place, step in around:
        parts = _apart(step, around.buffers) if type(step) is Kernel else None
        if parts is not None and accept(parts[1], around):
            around.put([place], place, parts)
    return around.planned(options)


def _apart(kernel: Kernel, buffers: Mapping[str, Buffer]) -> tuple[Kernel, Kernel] | None:
    """A kernel of what ``kernel`` stores of its rows before their sums, and the rest, which loads that."""
    first, *others = kernel.stages
    stored = {s.value: s for s in first.body.stores() if s.buffer not in kernel.local_names}
    if not first.is_reduction or not stored or first.body.holds(Combining, Indirect, Random):
        return None
    if any(isinstance(first.body.at(v), Reduction) or s.mode for v, s in stored.items()):
        return None
    if any(first.body.at(v).dtype != buffers[s.buffer].layout.dtype for v, s in stored.items()):
        return None
    body = first.body
    if any(body.loads(store.buffer) for store in stored.values()):
        return None  # the rest would load what was there before
    stores = [s for s in body.stores() if s.buffer not in kernel.local_names]
    positions = {*body.made_of(*stored), *map(body.instructions.index, stores)}
    before = chosen(body.instructions, positions)
    after = [
        LOAD.instruction((stored[v].buffer, stored[v].index), i.dtype) if v in stored else i
        for v, i in ((Value(k), i) for k, i in enumerate(body.instructions))
    ]
    kept = [k for k, i in enumerate(after) if i not in stores]
    rest = Stage(first.inner, without_unused(chosen(after, kept)), is_reduction=True)
    loops = (*kernel.outer, *first.inner)
    words = kernel_name(i.operation.name for i in before.instructions if isinstance(i, Elementwise))
    name, origins = renamed(kernel.name, words), kernel.origins
    made = Kernel.of_stages(name, loops, [Stage((), before)], (), origins)
    local = kernel.local_buffers
    return made, Kernel.of_stages(kernel.name, kernel.outer, (rest, *others), local, origins)
