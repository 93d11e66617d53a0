"""How schedules are made for a GPU."""

from __future__ import annotations

from weft_loop_ir import ScheduleOptions

from weft_codegen_triton.gpu import HOST_WAIT, Gpu
from weft_codegen_triton.kernel.look_back import max_rows, min_row

ELEMENT_BYTES = 4
"""Of an element that a branch computes: one of 16 bits is read and written."""

MAX_CROSSED = 1024
"""Of a row: a tile of longer ones has fewer than eight, of which less than a line of memory is made."""


def scheduling_for(gpu: Gpu) -> ScheduleOptions:
    """How loops are scheduled for ``gpu``, by how many programs it has work for."""
    many = gpu.many_tiles
    return ScheduleOptions(
        min_outer_iterations=many,
        max_serial_elements=many << 10,
        max_crossed_elements=MAX_CROSSED,
        max_local_bytes=1 << 24,
        split_reduction_parts=4 * many,
        split_rows=many,
        split_columns=many << 7,
        split_column_elements=1 << 11,
        split_column_programs=4 * gpu.multiprocessors,
        split_varying=True,
        split_scan_rows=max_rows(gpu),
        whole_scan_elements=min_row(gpu),
        parallel_kernels=32,
        parallel_bytes=1 << 21,
        moved_bytes=1 << 26,
        selected_elements=int(HOST_WAIT * gpu.bandwidth) // ELEMENT_BYTES,
        early_bytes=1 << 26,
        again_elements=gpu.l2_bytes // ELEMENT_BYTES,
        reuse_results=True,
        own_bytes=1 << 21,
        alignment=128,
    )
