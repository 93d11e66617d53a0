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
            _put(chosen, around)
    return around.planned(options, in_one_launch)


def _put(matmul: MatmulKernel, around: ReplacedSteps) -> None:
    """Put ``matmul`` where the last is of what makes the rows that it reduces, if it reduces any."""
    places = {id(step): place for place, step in around}
    reduced = [places[id(reduction.replaced)] for reduction in matmul.reductions]
    gone = [places[id(step)] for step in matmul.replaces]
    for buffer in matmul.made:
        around.add(buffer)
    for old, new in matmul.joined:
        around.change(places[id(old)], new)
    around.put(gone, max(k for k in gone if k not in reduced), (matmul,))


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
