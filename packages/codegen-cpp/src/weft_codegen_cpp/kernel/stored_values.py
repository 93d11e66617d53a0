"""Values that a stage both reduces and stores: a run of its reductions can read them where they lie.

What a repeated run computes anew may no longer be what it was, since a result may be stored in the memory
of an operand.
"""

from __future__ import annotations

from weft_loop_ir import Stage
from weft_loop_ir.bodies import Conversion, Indirect, LoopBody, Reduction, Store

from weft_codegen_cpp.kernel.body_printer import Scope
from weft_codegen_cpp.kernel.reductions import MOMENTS


def reduced_stores(stage: Stage, scope: Scope) -> list[Store]:
    """For each of the reductions, all of them moments, the store that keeps what it reduces; else none."""
    body, found = stage.body, []
    if stage.is_sequential or stage.goes_on is not None:
        return []
    stored = {store.value.index: store for store in body.stores() if _is_kept(store, stage, scope)}
    for reduction in body.reductions():
        store = _kept(body, reduction, stored)
        if store is None or reduction.kind not in MOMENTS:
            return []
        found.append(store)
    return found


def _is_kept(store: Store, stage: Stage, scope: Scope) -> bool:
    """Whether each iteration stores the value as it is at a place of its own, which is known without data."""
    memory, value = scope.memories[store.buffer], stage.body.at(store.value)
    symbols = store.index.free_symbols
    bound = {i.symbol for i in stage.body.instructions if isinstance(i, Indirect)}
    return (
        store.mode is None
        and not isinstance(value, Reduction)
        and value.dtype == memory.dtype
        and memory.dtype.is_floating_point
        and memory.dtype.itemsize <= 4
        and not memory.per_lane
        and (store.buffer, store.index) not in scope.tiles
        and {variable.symbol for variable in stage.inner} <= symbols
        and symbols.isdisjoint(bound)
    )


def _kept(body: LoopBody, reduction: Reduction, stored: dict[int, Store]) -> Store | None:
    """The store of what ``reduction`` reduces, widened or not."""
    value = reduction.value
    while value.index not in stored:
        instruction = body.at(value)
        if not isinstance(instruction, Conversion):
            return None
        dtype, source = instruction.dtype, body.at(instruction.value).dtype
        if dtype is None or source is None:
            return None
        if not source.is_floating_point or dtype.itemsize <= source.itemsize:
            return None
        value = instruction.value
    return stored[value.index]
