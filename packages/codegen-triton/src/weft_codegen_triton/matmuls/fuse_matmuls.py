"""Puts contractions of a schedule into kernels of our own, where they are chosen to be."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from weft_loop_ir import ExternCall, Kernel, ReplacedSteps, Schedule, ScheduleOptions, rows_apart
from weft_loop_ir.contractions import row_factor

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
    """``schedule`` with what makes a row before a norm apart from it, where matmuls of ours scale the row.

    So a matmul before the norm, and the sum of its result and others, are one kernel.
    """

    def accept(kernel: Kernel, around: ReplacedSteps) -> bool:
        is_scaled = row_factor(kernel, around.buffers) is not None
        return is_scaled and all(multiplies_row(name, around) for name in kernel.writes)

    return rows_apart(schedule, options, accept)


def all_forms(schedule: Schedule, gpu: Gpu) -> list[tuple[MatmulKernel, ...]]:
    """The forms of every call of ``schedule`` that has some, as if no other were chosen."""
    around = ReplacedSteps(schedule)
    calls = ((place, step) for place, step in around if isinstance(step, ExternCall))
    found = (matmul_forms(call, place, around, gpu) for place, call in calls)
    return [forms for forms in found if forms]
