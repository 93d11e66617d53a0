"""Puts contractions of a schedule into kernels of our own, where they are chosen to be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from weft_loop_ir import ExternCall, Schedule, ScheduleOptions, plan_memory

from weft_codegen_triton.gpu import REFERENCE, Gpu
from weft_codegen_triton.matmuls.find_matmuls import MatmulKernel, matmul_forms
from weft_codegen_triton.matmuls.parallel_matmuls import apart, in_one_launch, together


def fuse_matmuls(
    schedule: Schedule,
    choose: Callable[[Sequence[MatmulKernel]], MatmulKernel | None],
    options: ScheduleOptions | None = None,
    gpu: Gpu = REFERENCE,
) -> Schedule:
    """``schedule`` with kernels for those contractions for which ``choose`` picks one of several forms.

    The forms are given from the one that does most on; memory is planned anew, by ``options``.
    """
    steps, homes = apart(schedule.steps)
    changed = False
    for call in [s for s in schedule.steps if isinstance(s, ExternCall)]:
        forms = matmul_forms(call, steps, schedule, gpu)
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


def all_forms(schedule: Schedule, gpu: Gpu = REFERENCE) -> list[tuple[MatmulKernel, ...]]:
    """The forms of every call of ``schedule`` that has some, as if no other were chosen."""
    steps, _ = apart(schedule.steps)
    found = (matmul_forms(s, steps, schedule, gpu) for s in steps if isinstance(s, ExternCall))
    return [forms for forms in found if forms]
