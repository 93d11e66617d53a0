"""A schedule while steps of it are replaced: who reads and writes what, and which steps are needed after."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from weft_loop_ir.ir import Buffer, BufferKind, BufferView, Kernel, ParallelKernels, Schedule, Step
from weft_loop_ir.loop_graph import item_reads, item_writes
from weft_loop_ir.schedule.memory_plan import plan_memory
from weft_loop_ir.schedule.options import ScheduleOptions


class ReplacedSteps:
    """``steps`` are those of ``schedule``, parallel kernels one by one; positions count them.

    Answers are about them as they were; what replaces steps shows in :meth:`planned`.
    """

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._buffers = schedule.buffers
        self.steps: list[Step] = []
        self._groups: list[ParallelKernels | None] = []
        for step in schedule.steps:
            group = step if isinstance(step, ParallelKernels) else None
            members = (step,) if group is None else group.kernels
            self.steps += members
            self._groups += [group] * len(members)
        self._left: list[tuple[Step, ...]] = [(step,) for step in self.steps]
        self._readers: dict[str, list[int]] = defaultdict(list)
        self._writers: dict[str, list[int]] = defaultdict(list)
        self._returned = {o.buffer for o in schedule.outputs if isinstance(o, BufferView)}
        for position, step in enumerate(self.steps):
            for name in item_reads(step):
                self._readers[name].append(position)
            for name in item_writes(step):
                self._writers[name].append(position)
        self._is_changed = False

    def buffer(self, name: str) -> Buffer:
        return self._buffers[name]

    def readers(self, name: str) -> list[int]:
        """The steps that read ``name``."""
        return self._readers[name]

    def written(self, name: str) -> list[int]:
        """The steps that write ``name``."""
        return self._writers[name]

    def is_own(self, name: str) -> bool:
        """Whether ``name`` is an intermediate, that only steps read."""
        kind = self._buffers[name].kind
        return kind is BufferKind.INTERMEDIATE and name not in self._returned

    def only_reader(self, name: str, writer: int) -> int | None:
        """The one step that reads an intermediate which the step at ``writer`` alone writes."""
        if not self.is_own(name) or self._writers[name] != [writer]:
            return None
        readers = self._readers[name]
        return readers[0] if len(readers) == 1 and readers[0] > writer else None

    def writer(self, name: str, reader: int) -> Kernel | None:
        """The kernel that makes an intermediate, if what it reads is the same at ``reader`` still."""
        if not self.is_own(name) or len(self._writers[name]) != 1:
            return None
        (position,) = self._writers[name]
        kernel = self.steps[position]
        if position >= reader or type(kernel) is not Kernel:
            return None
        return kernel if self.stay(kernel.reads, position, reader) else None

    def stay(self, names: Iterable[str], first: int, last: int) -> bool:
        """Whether no step from ``first`` to ``last`` writes ``names``."""
        between = range(first, last + 1)
        return not any(position in between for name in names for position in self._writers[name])

    def put(self, places: Sequence[int], place: int, steps: Sequence[Step]) -> None:
        """Put ``steps`` at ``place``, instead of those at ``places``."""
        for gone in (*places, place):
            self._left[gone] = ()
            self._groups[gone] = None
        self._left[place] = tuple(steps)
        self._is_changed = True

    def planned(self, options: ScheduleOptions | None) -> Schedule:
        """The schedule with what replaces steps, its memory planned anew by ``options`` if anything does."""
        if not self._is_changed:
            return self._schedule
        steps = self._steps_needed()
        memory = plan_memory(steps, self._buffers, options)
        return replace(self._schedule, steps=steps, memory=memory)

    def _steps_needed(self) -> tuple[Step, ...]:
        """The steps, without kernels that write nothing that is read any more."""
        needed: set[str] = set()
        kept: list[tuple[Step, ParallelKernels | None]] = []
        for steps, group in zip(reversed(self._left), reversed(self._groups), strict=True):
            for step in reversed(steps):
                if self._is_needed(step, needed):
                    kept.append((step, group))
                    needed.update(item_reads(step))
        return tuple(_regrouped(reversed(kept)))

    def _is_needed(self, step: Step, needed: set[str]) -> bool:
        if not isinstance(step, Kernel):
            return True
        return any(name in needed or not self.is_own(name) for name in step.writes)


def _regrouped(steps: Iterable[tuple[Step, ParallelKernels | None]]) -> Iterator[Step]:
    """The steps, with those of a group that are left side by side as one."""
    for group, members in itertools.groupby(steps, lambda pair: pair[1]):
        several = [step for step, _ in members]
        if group is None or len(several) == 1:
            yield from several
        else:
            kernels = tuple(step for step in several if isinstance(step, Kernel))
            yield ParallelKernels(group.name, kernels)
