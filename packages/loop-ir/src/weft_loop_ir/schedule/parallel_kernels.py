"""Independent kernels put into one step: the updates of many parameters, what follows several matmuls.

The steps are placed from the last to the first.  A kernel joins the step of kernels that is as near to the
end as its readers allow; calls and regions keep their order, and a kernel is moved past one of them only
where no more memory is held for it than before, or little.  One pass, with a binary search for each kernel.
What makes results of inputs alone, as the casts of weights that backward needs too, comes before all others.
"""

from __future__ import annotations

import bisect
import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from weft_loop_ir.ir import Buffer, BufferKind, ExternCall, Kernel, ParallelKernels, Step
from weft_loop_ir.loop_graph import item_reads, item_writes
from weft_loop_ir.schedule.options import ScheduleOptions

MOVABLE_BYTES = 1 << 14
"""A kernel that reads no more bytes of intermediates is moved even if it holds them longer."""

FIRST_BYTES = 1 << 25
"""What comes first touches no more bytes: more of them fill the machine where they are."""


def run_in_parallel(
    steps: Sequence[Step],
    buffers: Mapping[str, Buffer],
    bytes_of: Mapping[str, int],
    options: ScheduleOptions,
    numbers: Iterator[int],
) -> tuple[Step, ...]:
    """``steps`` with independent kernels in :class:`ParallelKernels`, named by ``numbers``."""
    if options.parallel_kernels < 2 or sum(isinstance(s, Kernel) for s in steps) < 2:
        return tuple(steps)
    placement = _Placement(options.parallel_kernels, options.moved_bytes)
    first = _first_kernels(steps, buffers, bytes_of) if options.moved_bytes else {}
    for step in reversed(steps):
        if isinstance(step, Kernel) and step.name in first:
            continue
        held = _intermediate_bytes(item_reads(step), buffers, bytes_of)
        made = _intermediate_bytes(item_writes(step), buffers, bytes_of)
        is_large = held + made > options.parallel_bytes
        if not isinstance(step, Kernel) or _is_relied_on(step) or is_large:
            placement.add_fixed(step)
        else:
            placement.add_kernel(step, 0 if held <= MOVABLE_BYTES else max(held - made, 0))
    for kernel in reversed(first.values()):
        placement.add_first(kernel)
    return tuple(_as_step(slot, numbers) for slot in reversed(placement.slots))


def _first_kernels(
    steps: Sequence[Step], buffers: Mapping[str, Buffer], bytes_of: Mapping[str, int]
) -> dict[str, Kernel]:
    """By name the kernels that alone make results, of inputs that no step writes to.

    Those that come after what they may rely on stay there.
    """
    written = Counter(name for step in steps for name in {*item_writes(step)})

    def is_given(name: str) -> bool:
        return name not in written and buffers[name].kind.is_given

    return {
        step.name: step
        for step in itertools.takewhile(lambda step: not _is_relied_on(step), steps)
        if isinstance(step, Kernel)
        and step.reads
        and all(map(is_given, step.reads))
        and all(buffers[n].kind is BufferKind.OUTPUT and written[n] == 1 for n in step.writes)
        and sum(bytes_of[name] for name in {*step.reads, *step.writes}) <= FIRST_BYTES
    }


def _is_relied_on(step: Step) -> bool:
    """Whether what follows relies on a check or a size of ``step``, and need not read a buffer of it."""
    if isinstance(step, Kernel):
        return not step.writes
    return isinstance(step, ExternCall) and bool(step.defines)


def _intermediate_bytes(
    names: Sequence[str], buffers: Mapping[str, Buffer], bytes_of: Mapping[str, int]
) -> int:
    return sum(bytes_of[n] for n in names if buffers[n].kind is BufferKind.INTERMEDIATE)


def _as_step(slot: list[Step], numbers: Iterator[int]) -> Step:
    if len(slot) == 1:
        return slot[0]
    kernels = tuple(k for k in reversed(slot) if isinstance(k, Kernel))
    return ParallelKernels(f"parallel{next(numbers)}", kernels)


@dataclass
class _Placement:
    """Steps by slot, the last of the program first."""

    capacity: int
    movable: int  # bytes that may be held longer, in all
    slots: list[list[Step]] = field(default_factory=list)
    open: list[int] = field(default_factory=list)  # slots of kernels with room, ascending
    frontier: int = -1  # the slot of the call or region placed last
    readers: dict[str, int] = field(default_factory=dict)  # buffer -> the largest slot of a reader
    writers: dict[str, int] = field(default_factory=dict)

    def add_fixed(self, step: Step) -> None:
        self.frontier = len(self.slots)
        self._put(step, self.frontier)

    def add_kernel(self, kernel: Kernel, held_longer: int) -> None:
        """Put ``kernel`` into the first slot with room that is behind everything that must follow it.

        ``held_longer``: bytes that it reads and nothing else may, so that moving it keeps them.
        """
        behind = [self.writers.get(name, -1) for name in (*kernel.reads, *kernel.writes)]
        behind += [self.readers.get(name, -1) for name in kernel.writes]
        after = max(behind, default=-1)
        if held_longer > self.movable:
            after = max(after, self.frontier)
        position = bisect.bisect_right(self.open, after)
        if position == len(self.open):
            self.open.append(len(self.slots))
        slot = self.open[position]
        if slot < self.frontier:
            self.movable -= held_longer
        self._put(kernel, slot)
        if len(self.slots[slot]) == self.capacity:
            del self.open[position]

    def add_first(self, kernel: Kernel) -> None:
        """Put ``kernel``, which no step that is left may come before, into the last slot with room."""
        readers = max((self.readers.get(name, -1) for name in kernel.writes), default=-1)
        last = len(self.slots) - 1
        if not self.open or self.open[-1] != last or last <= max(readers, self.frontier):
            self.open.append(len(self.slots))
        slot = self.open[-1]
        self._put(kernel, slot)
        if len(self.slots[slot]) == self.capacity:
            self.open.pop()

    def _put(self, step: Step, slot: int) -> None:
        if slot == len(self.slots):
            self.slots.append([])
        self.slots[slot].append(step)
        for name in item_reads(step):
            self.readers[name] = max(slot, self.readers.get(name, -1))
        for name in item_writes(step):
            self.writers[name] = max(slot, self.writers.get(name, -1))
