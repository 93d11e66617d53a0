"""Independent matmuls that each leave most of the device idle, computed in one launch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from weft_loop_ir import ParallelKernels, Step, step_meets

from weft_codegen_triton.matmuls.find_matmuls import MatmulKernel

MAX_MEMBERS = 8


def in_one_launch(steps: Iterable[Step]) -> tuple[Step, ...]:
    """``steps`` with independent matmuls of few tiles, whose kernels may be merged, in one step."""
    found: list[Step] = []
    for step in steps:
        place = _place(step, found) if isinstance(step, MatmulKernel) else None
        if place is None or not isinstance(step, MatmulKernel):
            found.append(step)
            continue
        other = found[place]
        members = other.kernels if isinstance(other, ParallelKernels) else (other,)
        name = f"parallel_{members[0].name}"
        found[place] = ParallelKernels(name, (*members, step))
    return tuple(found)


def _place(matmul: MatmulKernel, steps: Sequence[Step]) -> int | None:
    """The last of ``steps`` that ``matmul`` may run beside; None if there is none."""
    if not _is_small(matmul):
        return None
    meets = step_meets(matmul)
    for position in range(len(steps) - 1, -1, -1):
        step = steps[position]
        if meets(step):
            return None
        members = step.kernels if isinstance(step, ParallelKernels) else (step,)
        if len(members) < MAX_MEMBERS and all(_fits(m, matmul) for m in members):
            return position
    return None


def _fits(step: Step, matmul: MatmulKernel) -> bool:
    if not isinstance(step, MatmulKernel) or not _is_small(step):
        return False
    mine, others = matmul.tile, step.tile
    return (mine.warps, mine.stages) == (others.warps, others.stages)


def _is_small(matmul: MatmulKernel) -> bool:
    """Whether the matmul has fewer tiles than a device works on at once, twice."""
    contraction, tile = matmul.contraction, matmul.tile
    if not contraction.is_static or contraction.groups is not None:
        return False
    rows = -(-int(contraction.rows) // tile.rows)
    columns = -(-int(contraction.columns) // tile.columns)
    gpu = matmul.gpu
    at_once = 8 if tile.rows == 1 else 1  # tiles of a multiprocessor
    many = at_once * gpu.many_tiles
    return int(contraction.batch) * rows * columns <= 2 * many
