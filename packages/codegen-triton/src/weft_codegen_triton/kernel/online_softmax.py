"""A row's maximum and the sum of exponentials relative to it, found in one pass instead of two.

The sum is kept relative to the largest element so far, and scaled when that grows.
"""

from __future__ import annotations

from collections.abc import Mapping

import sympy
from weft_loop_ir import Kernel, LoopBody, Stage
from weft_loop_ir.bodies import Load, Reduction, Store
from weft_loop_ir.bodies.edit import slice_of
from weft_loop_ir.bodies.patterns import call, capture, match


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
        store, element = largest
        for later in range(position + 1, len(kernel.stages)):
            other = kernel.stages[later]
            if other.inner == stage.inner and _is_sum(other, store, element, kernel):
                found[later] = position
                break
    return found


def filled_rows(stage: Stage) -> set[str]:
    """The buffers that ``stage`` stores elements of rows in, and not what is left of a whole one."""
    body = stage.body
    reduced = {id(reduction) for reduction in body.reductions()}
    return {s.buffer for s in body.stores() if id(body.at(s.value)) not in reduced}


def _only_reduction(stage: Stage, kind: str) -> tuple[Reduction, Store] | None:
    """The one reduction of ``stage``, if it is a ``kind``, and what stores its result."""
    reduction = stage.body.only(Reduction)
    if reduction is None or reduction.kind != kind:
        return None
    stores = [s for s in stage.body.stores() if stage.body.at(s.value) is reduction]
    return (reduction, stores[0]) if len(stores) == 1 else None


def _largest(stage: Stage, kernel: Kernel) -> tuple[Store, LoopBody] | None:
    """How ``stage`` stores a row's maximum, of its own or for others too, and what computes an element."""
    found = _only_reduction(stage, "max")
    if found is None or not found[0].accumulated.is_floating_point:
        return None
    reduction, store = found
    sizes = [b.size for b in kernel.local_buffers if b.name == store.buffer]
    writers = sum(store.buffer in other.body.writes for other in kernel.stages)
    element = slice_of(stage.body, reduction.value)
    is_number = sizes in ([], [1]) and writers == 1
    return (store, element) if is_number and element is not None else None


ELEMENT, LARGEST = capture(), capture()
EXPONENTIAL = call("exp", call("sub", ELEMENT, LARGEST))


def _is_sum(stage: Stage, largest: Store, element: LoopBody, kernel: Kernel) -> bool:
    """Whether ``stage`` sums exponentials of ``element - largest``, and else only fills local rows."""
    body, found = stage.body, _only_reduction(stage, "sum")
    parts = None if found is None else match(body.at, found[0].value, EXPONENTIAL)
    if found is None or parts is None or body.at(found[0].value).dtype is not found[0].accumulated:
        return False
    subtracted = body.at(parts[LARGEST])
    if not isinstance(subtracted, Load) or subtracted.buffer != largest.buffer:
        return False
    if sympy.expand(subtracted.index - largest.index) != 0:
        return False
    fills_local = kernel.local_names.issuperset(filled_rows(stage))
    return fills_local and slice_of(body, parts[ELEMENT]) == element
