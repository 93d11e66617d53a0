"""Values that kernels can make of what they read anyway, instead of reading them from memory too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

from weft_loop_ir.bodies import LoopBody, Value
from weft_loop_ir.bodies.edit import chosen, slice_of, without_unused
from weft_loop_ir.bodies.instructions import Elementwise, Instruction, Load, Store
from weft_loop_ir.guesses import LARGE, guessed
from weft_loop_ir.ir import Buffer, BufferKind, Kernel, Stage
from weft_loop_ir.loop_graph import item_reads, item_writes
from weft_loop_ir.schedule.memory_plan import storage_elements

MAX_OPERATIONS = 8
"""To make an element: about the time in which a GPU writes and reads 16 bits, or less."""


def compute_again(
    steps: Sequence[Any], buffers: Mapping[str, Buffer], kept: Set[str], least: int
) -> list[Any]:
    """``steps`` without stores, of ``least`` elements or more, that all readers make of what they read.

    ``kept`` are the buffers that something outside touches.
    """
    found = list(steps)
    for place, step in enumerate(steps):
        for name in step.writes if type(step) is Kernel and len(step.writes) > 1 else ():
            buffer = buffers[name]
            is_large = guessed(storage_elements(buffer), LARGE) >= least
            if buffer.kind is BufferKind.INTERMEDIATE and name not in kept and is_large:
                _spare(found, place, buffer)
    return found


@dataclass(frozen=True)
class _Formula:
    """How what ``store`` is given is made of elements at its own index, and of numbers, in ``read``."""

    store: Store
    body: LoopBody
    read: frozenset[str]


def _spare(steps: list[Any], place: int, buffer: Buffer) -> None:
    """Have the readers of ``buffer``, which the kernel at ``place`` stores, make it if they can."""
    name, kernel = buffer.name, steps[place]
    writers = [k for k, step in enumerate(steps) if name in item_writes(step)]
    readers = [k for k, step in enumerate(steps) if name in item_reads(step)]
    formula = _formula(kernel, buffer)
    if formula is None or writers != [place] or not readers or readers[0] <= place:
        return
    if any(not formula.read.isdisjoint(item_writes(step)) for step in steps[place:]):
        return
    changed = [_reader(steps[k], name, formula) for k in readers]
    if None not in changed:
        stages = [replace(s, body=_without(s.body, formula.store)) for s in kernel.stages]
        for k, step in zip((place, *readers), (_with(kernel, stages), *changed), strict=True):
            steps[k] = step


def _formula(kernel: Kernel, buffer: Buffer) -> _Formula | None:
    places = [(s, a) for s in kernel.stages for a in s.body.accesses() if a.buffer == buffer.name]
    if len(places) != 1 or buffer.name in kernel.local_names:
        return None
    ((stage, store),) = places
    if not isinstance(store, Store) or store.mode is not None or stage.is_sequential:
        return None
    made = slice_of(stage.body, store.value) if store in stage.body.instructions else None
    if made is None or stage.body.at(store.value).dtype != buffer.layout.dtype:
        return None
    loads = [i for i in made.instructions if isinstance(i, Load)]
    others = [i for i in made.instructions if not isinstance(i, Load)]
    elements = [i for i in loads if i.free_symbols]
    if not elements or any(i.index != store.index for i in elements):
        return None
    if any(i.free_symbols or i.bodies for i in others):
        return None
    read = frozenset(i.buffer for i in loads)
    is_long = sum(isinstance(i, Elementwise) for i in others) > MAX_OPERATIONS
    return None if is_long or read & kernel.local_names else _Formula(store, made, read)


def _reader(step: Any, name: str, formula: _Formula) -> Kernel | None:
    """``step`` where it makes what it loads of ``name``; None where it does not load all that this takes."""
    if type(step) is not Kernel:
        return None
    needed = {i.buffer for i in formula.body.instructions if isinstance(i, Load) and i.free_symbols}
    stages = []
    for stage in step.stages:
        accesses = stage.body.accesses()
        loads = [i for i in stage.body.instructions if isinstance(i, Load) and i.buffer == name]
        if len(loads) != sum(a.buffer == name for a in accesses):
            return None  # in a nested body
        loaded = {(a.buffer, a.index) for a in accesses if isinstance(a, Load)}
        if any((other, load.index) not in loaded for load in loads for other in needed):
            return None
        body = _made_in(stage.body, name, formula) if loads else stage.body
        stages.append(replace(stage, body=body))
    return _with(step, stages)


def _made_in(body: LoopBody, name: str, formula: _Formula) -> LoopBody:
    """``body`` with what ``formula`` makes in the place of each load of ``name``."""
    instructions: list[Instruction] = []
    moved: dict[int, Value] = {}

    def add(instruction: Instruction, operands: Mapping[int, Value]) -> Value:
        instructions.append(instruction.moved(operands))
        return Value(len(instructions) - 1)

    for position, instruction in enumerate(body.instructions):
        if not isinstance(instruction, Load) or instruction.buffer != name:
            moved[position] = add(instruction, moved)
            continue
        own: dict[int, Value] = {}
        for k, part in enumerate(formula.body.instructions):
            is_element = isinstance(part, Load) and part.free_symbols
            own[k] = add(part.at(instruction.index) if is_element else part, own)  # type: ignore[attr-defined]
        assert formula.body.result is not None
        moved[position] = own[formula.body.result.index]
    result = None if body.result is None else moved[body.result.index]
    return LoopBody(tuple(instructions), result)


def _without(body: LoopBody, store: Store) -> LoopBody:
    kept = [position for position, i in enumerate(body.instructions) if i != store]
    return without_unused(chosen(body.instructions, kept, body.result))


def _with(kernel: Kernel, stages: Sequence[Stage]) -> Kernel:
    return Kernel.of_stages(kernel.name, kernel.outer, stages, kernel.local_buffers, kernel.origins)
