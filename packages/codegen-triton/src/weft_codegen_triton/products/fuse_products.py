"""Puts contractions of a schedule into kernels of our own, where they are chosen to be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from weft_loop_ir import ExternCall, Schedule, ScheduleOptions, plan_memory

from weft_codegen_triton.gpu import REFERENCE, Gpu
from weft_codegen_triton.products.find_products import ProductKernel, product_forms
from weft_codegen_triton.products.parallel_products import apart, in_one_launch, together


def fuse_products(
    schedule: Schedule,
    choose: Callable[[Sequence[ProductKernel]], ProductKernel | None],
    options: ScheduleOptions | None = None,
    gpu: Gpu = REFERENCE,
) -> Schedule:
    """``schedule`` with kernels for those contractions for which ``choose`` picks one of several forms.

    The forms are given from the one that does most on; memory is planned anew, by ``options``.
    """
    steps, homes = apart(schedule.steps)
    changed = False
    for call in [s for s in schedule.steps if isinstance(s, ExternCall)]:
        forms = product_forms(call, steps, schedule, gpu)
        chosen = choose(forms) if forms else None
        if chosen is not None:
            gone = {id(step) for step in chosen.replaces[:-1]}
            last = chosen.replaces[-1]
            steps = [chosen if s is last else s for s in steps if id(s) not in gone]
            if id(last) in homes:
                homes[id(chosen)] = homes[id(last)]
            changed = True
    if not changed:
        return schedule
    new = in_one_launch(together(steps, homes))
    return replace(schedule, steps=new, memory=plan_memory(new, schedule.buffers, options))


def all_forms(schedule: Schedule, gpu: Gpu = REFERENCE) -> list[tuple[ProductKernel, ...]]:
    """The forms of every call of ``schedule`` that has some, as if no other were chosen."""
    steps, _ = apart(schedule.steps)
    found = (product_forms(s, steps, schedule, gpu) for s in steps if isinstance(s, ExternCall))
    return [forms for forms in found if forms]
