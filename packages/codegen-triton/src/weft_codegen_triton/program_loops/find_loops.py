"""Loops that data ends, of which one program of a GPU runs everything, instead of the host.

The host would wait for the device once an iteration, and launch each kernel.  A program that has all of an
iteration to itself needs neither, but works on one multiprocessor: faster where there is little to do.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, fields, replace

import sympy
from weft_loop_ir import (
    ExternCall,
    Kernel,
    Loop,
    ParallelKernels,
    Region,
    Schedule,
    Step,
    all_items,
    item_reads,
    item_writes,
)
from weft_loop_ir.bodies import Combining
from weft_loop_ir.contractions import Contraction

from weft_codegen_triton.gpu import Gpu
from weft_codegen_triton.kernel.blocks import power_of_two
from weft_codegen_triton.matmuls.find_matmuls import MatmulKernel, matmul_alone
from weft_codegen_triton.matmuls.tiles import FEW_ROWS, TileShape

LAUNCHES_PER_TEST = 2
"""Launches in about the time in which the host reads what a test gives."""
MAX_TRIPS_UNKNOWN = 64
"""What a loop inside a kernel counts that elements end."""
MAX_BUFFERS = 128
"""A launch hands over 4 KB at most."""
MAX_TILE = 1 << 13
MIN_TILE = 1 << 8


@dataclass(frozen=True)
class ProgramLoop(Loop):
    """A loop that one program runs: its blocks hold kernels, branches and loops, and no calls.

    ``tile``: how many elements of a kernel the program handles at once, a power of two.
    """

    tile: int = MAX_TILE


def put_loops_into_programs(schedule: Schedule, gpu: Gpu) -> Schedule:
    """``schedule`` with a :class:`ProgramLoop` for every loop that is faster so."""
    steps = tuple(_placed(step, schedule, gpu) for step in schedule.steps)
    return schedule if steps == schedule.steps else replace(schedule, steps=steps)


def _placed(step: Step, schedule: Schedule, gpu: Gpu) -> Step:
    """``step`` with what may be a program's in it, outer loops before inner ones."""
    if not isinstance(step, Region):
        return step
    if isinstance(step, Loop) and any(r.predicate is not None for r in _regions(step)):
        found = _as_program(step, schedule, gpu)
        if found is not None:
            return found
    blocks = (tuple(_placed(inner, schedule, gpu) for inner in block) for block in step.blocks)
    return step.with_blocks(*blocks)


def _regions(step: Region) -> Iterator[Region]:
    return (item for item in all_items([step]) if isinstance(item, Region))


def _as_program(loop: Loop, schedule: Schedule, gpu: Gpu) -> ProgramLoop | None:
    """The loop as a program's; None where something in it needs the host, or there is much to do."""
    counters = {r.count.symbol for r in _regions(loop) if isinstance(r, Loop) and r.count}
    blocks = [_block(block, counters, schedule, gpu) for block in loop.blocks]
    condition, body = blocks
    if condition is None or body is None:
        return None
    values = {f.name: getattr(loop, f.name) for f in fields(Loop)}
    found = ProgramLoop(**values | {"condition": condition, "body": body})
    launches = [item for item in all_items([found]) if isinstance(item, Kernel)]
    work = [_elements(kernel) for kernel in launches]
    tests = LAUNCHES_PER_TEST * sum(r.predicate is not None for r in _regions(found))
    if not sum(work) <= gpu.elements_a_launch * (len(launches) + tests):
        return None
    if len({*item_reads(found), *item_writes(found)}) > MAX_BUFFERS:
        return None
    return replace(found, tile=max(MIN_TILE, min(MAX_TILE, power_of_two(int(max(work))))))


def _block(
    block: Sequence[Step], counters: Set[sympy.Symbol], schedule: Schedule, gpu: Gpu
) -> tuple[Step, ...] | None:
    """A block with kernels for calls; None where there is no kernel for one of its steps."""
    steps: list[Step] = []
    for step in block:
        found: Step | None = None
        if isinstance(step, Region):
            first, second = (_block(b, counters, schedule, gpu) for b in step.blocks)
            if first is not None and second is not None:
                found = step.with_blocks(first, second)
        elif isinstance(step, ExternCall):
            found = _matmul(step, schedule, gpu)
        elif all(_takes_no_number(k, counters) for k in _kernels(step)):
            found = step
        if found is None:
            return None
        steps.append(found)
    return tuple(steps)


def _kernels(step: Kernel | ParallelKernels) -> tuple[Kernel, ...]:
    return step.kernels if isinstance(step, ParallelKernels) else (step,)


def _takes_no_number(kernel: Kernel, counters: Set[sympy.Symbol]) -> bool:
    """Whether ``kernel`` is no scan, and the host computes no number for it in each iteration anew."""
    if type(kernel) is not Kernel or kernel.holds(Combining):
        return False
    return not any(body.host_symbols & counters for body in kernel.bodies)


def _matmul(call: ExternCall, schedule: Schedule, gpu: Gpu) -> MatmulKernel | None:
    """The kernel of a small matmul; None for other calls."""
    matmul = matmul_alone(call, schedule, gpu) if call.out_variant is not None else None
    if matmul is None:
        return None
    contraction = matmul.contraction
    if not contraction.is_static or contraction.is_convolution or contraction.groups is not None:
        return None
    return replace(matmul, tile=_tile(contraction))


def _tile(contraction: Contraction) -> TileShape:
    """A tile of many columns, which one program takes one after another."""
    inner, columns = power_of_two(int(contraction.inner)), power_of_two(int(contraction.columns))
    if contraction.rows == 1:
        step = min(inner, 128)
        return TileShape(1, min(columns, MAX_TILE // step), step, 4, 1)
    rows = min(max(FEW_ROWS, power_of_two(int(contraction.rows))), 32)
    return TileShape(rows, min(max(16, columns), 64), min(max(16, inner), 32), 4, 1)


def _elements(kernel: Kernel) -> float:
    """How many elements the kernel's innermost loops handle; infinite where sizes vary."""
    if isinstance(kernel, MatmulKernel):
        contraction = kernel.contraction
        tiles = -(-int(contraction.rows) // kernel.tile.rows)
        return float(contraction.batch * tiles * contraction.inner * contraction.columns)
    points = math.prod(_number(loop.size) for loop in kernel.outer)
    of_point = 0.0
    for stage in kernel.stages:
        trips = math.prod(_number(loop.size) for loop in stage.inner)
        is_open = stage.goes_on is not None and not stage.inner
        of_point += MAX_TRIPS_UNKNOWN if is_open else trips
    return points * of_point


def _number(size: sympy.Expr) -> float:
    return float(size) if size.is_Integer else math.inf
