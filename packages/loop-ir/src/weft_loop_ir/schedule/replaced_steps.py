"""A schedule while steps of it are replaced: who reads and writes what, and which steps are needed after."""

from __future__ import annotations

import itertools
from bisect import insort
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from weft_loop_ir.ir import Buffer, BufferKind, BufferView, Kernel, ParallelKernels, Schedule, Step
from weft_loop_ir.loop_graph import item_reads, item_writes
from weft_loop_ir.schedule.memory_plan import plan_memory
from weft_loop_ir.schedule.options import ScheduleOptions


class ReplacedSteps:
    """The steps of ``schedule`` by position, parallel kernels one by one.

    Where some are replaced, answers are about what is there then.
    """

    def __init__(self, schedule: Schedule) -> None:
        self.buffers = dict(schedule.buffers)
        self._schedule = schedule
        self._steps: list[tuple[Step, ...]] = []
        self._groups: list[ParallelKernels | None] = []
        self._readers: dict[str, list[int]] = defaultdict(list)
        self._writers: dict[str, list[int]] = defaultdict(list)
        self._returned = {o.buffer for o in schedule.outputs if isinstance(o, BufferView)}
        self._replaced: set[int] = set()
        for step in schedule.steps:
            group = step if isinstance(step, ParallelKernels) else None
            for member in (step,) if group is None else group.kernels:
                self._steps.append(())
                self._groups.append(group)
                self._set(len(self._steps) - 1, (member,))

    def __iter__(self) -> Iterator[tuple[int, Step]]:
        """The positions where one step is, and that."""
        for place, steps in enumerate(self._steps):
            if len(steps) == 1:
                yield place, steps[0]

    def step(self, place: int | None) -> Step | None:
        """The one step at ``place``; None without a place, and where there is none or are several."""
        steps = () if place is None else self._steps[place]
        return steps[0] if len(steps) == 1 else None

    def beside(self, place: int) -> Sequence[int]:
        """The positions of what runs in parallel with the step at ``place``, and that."""
        group = self._groups[place]
        if group is None:
            return [place]
        return [k for k, other in enumerate(self._groups) if other is group and self._steps[k]]

    def readers(self, name: str) -> Sequence[int]:
        """The positions where ``name`` is read."""
        return self._readers[name]

    def written(self, name: str) -> Sequence[int]:
        """The positions where ``name`` is written."""
        return self._writers[name]

    def is_own(self, name: str) -> bool:
        """Whether ``name`` is an intermediate, that only steps read."""
        kind = self.buffers[name].kind
        return kind is BufferKind.INTERMEDIATE and name not in self._returned

    def is_returned(self, name: str) -> bool:
        """Whether ``name`` is a result of the program, or a part of it is."""
        return name in self._returned

    def is_made_at(self, name: str, place: int) -> bool:
        """Whether ``name`` holds nothing but what the step at ``place`` writes."""
        return not self.buffers[name].kind.is_given and self._writers[name] == [place]

    def only_reader(self, name: str, writer: int) -> int | None:
        """The one step that reads an intermediate which the step at ``writer`` alone writes."""
        if not (self.is_own(name) and self.is_made_at(name, writer)):
            return None
        readers = self._readers[name]
        return readers[0] if len(readers) == 1 and readers[0] > writer else None

    def writer(self, name: str, reader: int) -> Kernel | None:
        """The kernel that makes an intermediate, if what it reads is the same at ``reader`` still."""
        if not self.is_own(name) or len(self._writers[name]) != 1:
            return None
        (place,) = self._writers[name]
        kernel = self.step(place)
        if place >= reader or type(kernel) is not Kernel:
            return None
        return kernel if self.stay(kernel.reads, place, reader) else None

    def stay(self, names: Iterable[str], first: int, last: int) -> bool:
        """Whether nothing writes ``names`` from position ``first`` to ``last``."""
        between = range(first, last + 1)
        return not any(place in between for name in names for place in self._writers[name])

    def put(self, places: Sequence[int], place: int, steps: Sequence[Step]) -> None:
        """Put ``steps`` at ``place``, instead of those at ``places``."""
        for gone in places:
            self._set(gone, ())
        self._set(place, tuple(steps))
        self._replaced.add(place)

    def add(self, buffer: Buffer) -> None:
        """Have another buffer, for what is put somewhere."""
        self.buffers[buffer.name] = buffer

    def change(self, place: int, kernel: Kernel) -> None:
        """Put ``kernel`` in the place of one that touches all its buffers, beside what that runs beside."""
        self._set(place, (kernel,))

    def _set(self, place: int, steps: tuple[Step, ...]) -> None:
        for step in self._steps[place]:
            for name in item_reads(step):
                self._readers[name].remove(place)
            for name in item_writes(step):
                self._writers[name].remove(place)
        self._steps[place] = steps
        for step in steps:
            for name in item_reads(step):
                insort(self._readers[name], place)
            for name in item_writes(step):
                insort(self._writers[name], place)

    def planned(
        self,
        options: ScheduleOptions | None,
        arrange: Callable[[Iterable[Step]], tuple[Step, ...]] = tuple,
    ) -> Schedule:
        """The schedule with what replaces steps, put in order by ``arrange``.

        Its memory is planned anew, by ``options``, if anything is replaced.
        """
        if not self._replaced:
            return self._schedule
        steps = arrange(self._grouped(self._needed()))
        memory = plan_memory(steps, self.buffers, options)
        return replace(self._schedule, buffers=self.buffers, steps=steps, memory=memory)

    def _needed(self) -> list[tuple[int, Step]]:
        """The steps and their positions, without kernels that write nothing that is read any more."""
        needed: set[str] = set()
        kept: list[tuple[int, Step]] = []
        for place in range(len(self._steps) - 1, -1, -1):
            for step in reversed(self._steps[place]):
                if self._is_needed(step, needed):
                    kept.append((place, step))
                    needed.update(item_reads(step))
        return kept[::-1]

    def _is_needed(self, step: Step, needed: set[str]) -> bool:
        if not isinstance(step, Kernel) or not step.writes:  # which checks something
            return True
        return any(name in needed or not self.is_own(name) for name in step.writes)

    def _grouped(self, steps: Iterable[tuple[int, Step]]) -> Iterator[Step]:
        """``steps`` with what is left of parallel kernels in one; what replaces some of them comes after.

        Where one that stays writes what comes after reads, it begins another group.
        """
        for group, run in itertools.groupby(steps, lambda pair: self._groups[pair[0]]):
            if group is None:
                yield from (step for _, step in run)
                continue
            members: list[Kernel] = []
            after: list[Step] = []
            for place, step in run:
                if place in self._replaced:
                    after.append(step)
                    continue
                assert isinstance(step, Kernel)
                if any(map(step_meets(step), after)):
                    yield from _parallel(group, members)
                    yield from after
                    members, after = [], []
                members.append(step)
            yield from _parallel(group, members)
            yield from after


def step_meets(step: Step) -> Callable[[Step], bool]:
    """Tells whether ``step`` and another one can't change places: one writes what the other touches."""
    reads, writes = {*item_reads(step)}, {*item_writes(step)}

    def meets(other: Step) -> bool:
        others = {*item_writes(other)}
        return not (others.isdisjoint(reads | writes) and writes.isdisjoint(item_reads(other)))

    return meets


def _parallel(group: ParallelKernels, members: Sequence[Kernel]) -> Sequence[Step]:
    return [ParallelKernels(group.name, tuple(members))] if len(members) > 1 else members
