"""What of a program can be recorded, and whether its calls may raise errors.

Some steps of a program are run anew at each call: before a recording is replayed, and after it.  The first
ones compute on the CPU and send what they give to the GPU, as an optimizer's counts of steps.  The last ones
make large results, or copy others to the CPU.  What a recording computes must be copied for the caller.
Steps that come after it write straight into memory of the caller's, and their launches cost nothing while the
recording runs.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection
from dataclasses import replace

import torch
from weft_loop_ir import (
    BufferView,
    ExternCall,
    Region,
    Schedule,
    Step,
    copied_results,
    devices_of,
    is_on_several_devices,
    item_reads,
    item_writes,
    raises_by_value,
)

from weft_codegen_triton.host.regions import every_step, is_repeatable

LARGE = 4 << 20
"""Bytes of a result whose copy costs more than a launch."""
MAX_STEPS = 8
BYTES_PER_STEP = 8 << 20
"""Of large results: copying so many takes as long as the host needs for one more step."""


def head_length(schedule: Schedule) -> int:
    """How many of the first steps read what is on the CPU only, beside a GPU where kernels run.

    One that reads nothing, as what makes a constant, gives something there.  None gives a size or number.
    """
    devices = devices_of(schedule)

    def is_elsewhere(step: Step) -> bool:
        if not isinstance(step, ExternCall) or step.defines:
            return False
        names = {*item_reads(step)} or {*item_writes(step)}
        used = {schedule.buffers[name].layout.device for name in names}
        return bool(used) and used.isdisjoint(devices)

    return sum(1 for _ in itertools.takewhile(is_elsewhere, schedule.steps))


def tail_length(schedule: Schedule, returned: Collection[str]) -> int:
    """How many of the last steps write the large ones of ``returned``, as far as the last steps do."""
    large = {name for name in returned if static_bytes(schedule, name) >= LARGE}
    first: dict[str, int] = {}
    for number, step in enumerate(schedule.steps):
        for name in item_writes(step):
            if name in large:
                first.setdefault(name, number)
    worth = sum(static_bytes(schedule, name) for name in large) // BYTES_PER_STEP
    most = min(max(MAX_STEPS, worth), _steps_after_regions(schedule))
    lengths = [len(schedule.steps) - number for number in first.values()]
    length = max((n for n in lengths if n <= most), default=0)
    if length:
        length += _is_made_for(schedule, len(schedule.steps) - length)
    return max(length, _copies_length(schedule)) if tail_takes_copies(schedule) else length


def tail_takes_copies(schedule: Schedule) -> bool:
    """Whether results that are copied to another device are made by the tail.

    The host waits for them, which a recording can't.
    """
    return _copies_length(schedule) <= min(MAX_STEPS, _steps_after_regions(schedule))


def _copies_length(schedule: Schedule) -> int:
    """How many of the last steps there are from the first on that copies a result."""
    copied = copied_results(schedule)
    places = [n for n, s in enumerate(schedule.steps) if not copied.isdisjoint(item_writes(s))]
    return len(schedule.steps) - min(places, default=len(schedule.steps))


def _steps_after_regions(schedule: Schedule) -> int:
    regions = (n for n, s in enumerate(schedule.steps, 1) if isinstance(s, Region))
    return len(schedule.steps) - max(regions, default=0)


def _is_made_for(schedule: Schedule, number: int) -> bool:
    """Whether the step before step ``number`` makes a large value for it, which a recording would hold."""
    if number == 0 or isinstance(schedule.steps[number - 1], Region):
        return False
    made = item_writes(schedule.steps[number - 1])
    read = item_reads(schedule.steps[number])
    return all(name in read for name in made) and any(
        static_bytes(schedule, n) >= LARGE for n in made
    )


def static_bytes(schedule: Schedule, name: str) -> int:
    """The size of a buffer; 0 where it varies, for such programs are seldom replayed."""
    layout = schedule.buffers[name].layout
    if not all(n.is_Integer for n in layout.size):
        return 0
    return math.prod(int(n) for n in layout.size) * layout.dtype.itemsize


NOT_RECORDABLE = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)
"""Operators with these tags read a result back to the host."""

INDEXING = ("index", "index_put", "_unsafe_index", "_unsafe_index_put")
"""Operators of aten that read a mask among their indices back to the host, which no tag says."""

COMMUNICATES = "_c10d_functional"
"""The namespace of collectives."""


def may_raise(call: ExternCall, asserts_later: bool) -> bool:
    """Whether ``call`` may raise an error that its operands' shapes don't tell, before it returns."""
    operator = call.operator
    if waits(call) or operator.namespace != "aten":
        return True
    return raises_by_value(call, asserts_later=asserts_later)


def waits(call: ExternCall) -> bool:
    """Whether ``call`` reads a result back to the host."""
    operator = call.operator
    if any(tag in operator.tags for tag in NOT_RECORDABLE):
        return True
    if operator.namespace != "aten" or operator.overloadpacket.__name__ not in INDEXING:
        return False
    _, indices, *_ = call.arguments
    masks = (torch.bool, torch.uint8)
    return any(isinstance(index, BufferView) and index.dtype in masks for index in indices)


def calls_of(schedule: Schedule) -> list[ExternCall]:
    """The calls of operators, those in regions included."""
    return [step for step in every_step(schedule.steps) if isinstance(step, ExternCall)]


def is_recordable(schedule: Schedule) -> bool:
    """Whether calls of one size do the same work, without waiting for the device or for other processes.

    What comes before the recording, on the CPU, may be anything.

    A float that is passed would be recorded as it is in one call.  A process that records a collective
    while another one runs it waits for ever.
    """
    if any(not symbol.symbol.is_integer for symbol in schedule.symbols):
        return False
    schedule = replace(schedule, steps=schedule.steps[head_length(schedule) :])
    if not is_repeatable(schedule) or not tail_takes_copies(schedule):
        return False
    if is_on_several_devices(schedule):
        return False
    return not any(
        call.defines or call.operator.namespace == COMMUNICATES or waits(call)
        for call in calls_of(schedule)
    )
