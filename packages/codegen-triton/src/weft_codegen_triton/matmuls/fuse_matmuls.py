"""Puts contractions of a schedule into kernels of our own, where they are chosen to be."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from weft_loop_ir import ExternCall, Kernel, ReplacedSteps, Schedule, ScheduleOptions
from weft_loop_ir.contractions import row_factor, stored_first

from weft_codegen_triton.gpu import Gpu
from weft_codegen_triton.matmuls.find_matmuls import MatmulKernel, matmul_forms
from weft_codegen_triton.matmuls.parallel_matmuls import in_one_launch
from weft_codegen_triton.matmuls.producers import multiplies_row


def fuse_matmuls(
    schedule: Schedule,
    choose: Callable[[Sequence[MatmulKernel]], MatmulKernel | None],
    options: ScheduleOptions,
    gpu: Gpu,
) -> Schedule:
    """``schedule`` with kernels for those contractions for which ``choose`` picks one of several forms.

    The forms are given from the one that does most on; memory is planned anew, by ``options``.
    """
    around = ReplacedSteps(_with_rows_apart(schedule, options))
    for place, call in around:
        forms = matmul_forms(call, place, around, gpu) if isinstance(call, ExternCall) else ()
        chosen = choose(forms) if forms else None
        if chosen is not None:
            gone = {id(step) for step in chosen.replaces}
            places = [k for k, step in around if id(step) in gone]
            around.put(places, places[-1], (chosen,))
    return around.planned(options, in_one_launch)


def _with_rows_apart(schedule: Schedule, options: ScheduleOptions) -> Schedule:
    """``schedule`` with what kernels store of a row before they scale it in kernels before these.

    Where matmuls of ours alone read the scaled row: they scale it, and the one before makes the row.
    """
    around = ReplacedSteps(schedule)
    for place, step in around:
        if type(step) is not Kernel or len(step.writes) < 2:
            continue
        parts = stored_first(step, around.buffers)
        if parts is None or row_factor(parts[1], around.buffers) is None:
            continue
        if all(multiplies_row(name, around) for name in parts[1].writes):
            around.put([place], place, parts)
    return around.planned(options)


def all_forms(schedule: Schedule, gpu: Gpu) -> list[tuple[MatmulKernel, ...]]:
    """The forms of every call of ``schedule`` that has some, as if no other were chosen."""
    around = ReplacedSteps(schedule)
    calls = ((place, step) for place, step in around if isinstance(step, ExternCall))
    found = (matmul_forms(call, place, around, gpu) for place, call in calls)
    return [forms for forms in found if forms]
