"""A row's maximum and the sum of exponentials relative to it, found in one pass instead of two.

The sum is kept relative to the largest element so far, and scaled when that grows.
"""

from __future__ import annotations

from collections.abc import Mapping

from weft_loop_ir import Instruction, Kernel, LoopBody, Stage, Value

from weft_codegen_triton.kernel.recomputation import slice_of


def sums_of_exponentials(kernel: Kernel) -> Mapping[int, int]:
    """The stages of ``kernel`` that sum exponentials, each with the stage that can do it on its way.

    The latter finds nothing but the maximum of a row; the former nothing but the sum, over the same loops,
    of ``exp(element - maximum)``.
    """
    found: dict[int, int] = {}
    for position, stage in enumerate(kernel.stages):
        largest = _largest(stage, kernel)
        if largest is None:
            continue
        buffer, element = largest
        for later in range(position + 1, len(kernel.stages)):
            other = kernel.stages[later]
            if other.inner == stage.inner and _is_sum(other, buffer, element, kernel):
                found[later] = position
                break
    return found


def _only_reduction(stage: Stage, kind: str) -> tuple[Instruction, str] | None:
    """The one reduction of ``stage``, if it is a ``kind``, and the buffer that its result is stored in."""
    reductions = [
        (k, i) for k, i in enumerate(stage.body.instructions) if i.operation == "reduction"
    ]
    if len(reductions) != 1 or reductions[0][1].arguments[0] != kind:
        return None
    position, reduction = reductions[0]
    targets = [
        i.arguments[0]
        for i in stage.body.instructions
        if i.operation == "store" and i.arguments[2] == Value(position)
    ]
    return (reduction, targets[0]) if len(targets) == 1 else None


def _largest(stage: Stage, kernel: Kernel) -> tuple[str, LoopBody] | None:
    """The local scalar that ``stage`` stores a row's maximum in, and what computes an element."""
    found = _only_reduction(stage, "max")
    if found is None or not found[0].arguments[1].is_floating_point:
        return None
    reduction, name = found
    is_scalar = any(b.name == name and b.size == 1 for b in kernel.local_buffers)
    element = slice_of(stage.body, reduction.arguments[2])
    return (name, element) if is_scalar and element is not None else None


def _is_sum(stage: Stage, largest: str, element: LoopBody, kernel: Kernel) -> bool:
    """Whether ``stage`` sums exponentials of ``element - largest``, and else only fills local rows."""
    found = _only_reduction(stage, "sum")
    if found is None:
        return False
    instructions = stage.body.instructions
    exponential = instructions[found[0].arguments[2].index]
    if exponential.operation != "exp" or exponential.dtype is not found[0].arguments[1]:
        return False
    difference = instructions[exponential.arguments[0].index]
    if difference.operation != "sub":
        return False
    left, right = difference.arguments
    subtracted = instructions[right.index]
    if subtracted.operation != "load" or subtracted.arguments[0] != largest:
        return False
    local = {buffer.name for buffer in kernel.local_buffers}
    stores = {i.arguments[0] for i in instructions if i.operation == "store"}
    return stores <= local and slice_of(stage.body, left) == element
