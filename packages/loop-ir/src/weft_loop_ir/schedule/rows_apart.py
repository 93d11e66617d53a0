"""Kernels that make rows, store them and reduce them, as two: what makes the rows may fuse then."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from weft_loop_ir.bodies import (
    LOAD,
    Combining,
    Elementwise,
    Indirect,
    LoopBody,
    Random,
    Reduction,
    Store,
    Value,
)
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
    body = first.body
    stores = [s for s in body.stores() if not isinstance(body.at(s.value), Reduction)]
    if not first.is_reduction or not stores or body.holds(Combining, Indirect, Random):
        return None
    if not all(_is_as_loaded(store, body, kernel, buffers) for store in stores):
        return None
    stored = {store.value: store for store in stores}
    before = chosen(
        body.instructions, {*body.made_of(*stored), *map(body.instructions.index, stores)}
    )
    numbered = enumerate(body.instructions)
    after = [
        LOAD.instruction((stored[v].buffer, stored[v].index), i.dtype) if v in stored else i
        for v, i in ((Value(position), i) for position, i in numbered)
    ]
    kept = [position for position, i in enumerate(after) if i not in stores]
    rest = Stage(first.inner, without_unused(chosen(after, kept)), is_reduction=True)
    loops = (*kernel.outer, *first.inner)
    words = kernel_name(i.operation.name for i in before.instructions if isinstance(i, Elementwise))
    name, origins = renamed(kernel.name, words), kernel.origins
    made = Kernel.of_stages(name, loops, [Stage((), before)], (), origins)
    local = kernel.local_buffers
    return made, Kernel.of_stages(kernel.name, kernel.outer, (rest, *others), local, origins)


def _is_as_loaded(
    store: Store, body: LoopBody, kernel: Kernel, buffers: Mapping[str, Buffer]
) -> bool:
    """Whether a load gives what ``store`` was given, and what was there before is not read."""
    if store.mode is not None or store.buffer in kernel.local_names or body.loads(store.buffer):
        return False
    return body.at(store.value).dtype == buffers[store.buffer].layout.dtype
