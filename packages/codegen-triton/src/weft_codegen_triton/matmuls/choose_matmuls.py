"""Which form a contraction runs in: what was found for it on this device before, else what is fastest now.

A choice is kept on disk by problem (the forms' texts, which hold sizes, strides and dtypes) and device.
Where sizes vary a kernel of our own is chosen only if it is faster for small and for large ones.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from weft_loop_ir import Buffer, Kernel

from weft_codegen_triton.compilation.cache import choice_path, keep_choice, read_choice
from weft_codegen_triton.kernel.frame import RowLimits
from weft_codegen_triton.matmuls.find_matmuls import MatmulKernel
from weft_codegen_triton.matmuls.precision import Precision
from weft_codegen_triton.matmuls.print_matmul import print_matmul
from weft_codegen_triton.matmuls.tiles import TileShape, static
from weft_codegen_triton.matmuls.time_matmuls import (
    MAX_BYTES,
    KernelLoader,
    Loaded,
    Problem,
    can_be_timed,
    print_step,
)
from weft_codegen_triton.matmuls.untimed_choice import choose_untimed
from weft_codegen_triton.runtime.autotuning import MIN_GAIN, Clock, milliseconds

REPRESENTATIVE = (16, 512)
"""What sizes that vary are, all alike, while forms are timed."""
MAX_CANDIDATES = 512
"""Kernels that are timed for a program, for what does most in it: half a minute of sixteen processors."""


@dataclass(frozen=True)
class Choice:
    """A form by its position and its tile, or neither for the library.

    ``library_ms`` and ``forms_ms`` are milliseconds of the steps with the library's call and with each form,
    for the largest sizes that were timed, None where that was not possible; ``failed`` counts kernels that
    could not be compiled or loaded.
    """

    form: int | None
    tile: tuple[int, ...] | None
    library_ms: float | None
    forms_ms: tuple[float | None, ...]
    failed: int


@dataclass
class _Trial:
    """A problem that is being timed; ``kernels`` are the loaded ones around the contraction, by name."""

    forms: Sequence[MatmulKernel]
    problem: Problem
    kernels: dict[str, Loaded]
    failed: int
    library: float | None = None
    times: dict[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.shaped = [*self.forms]
        """The forms in their best tiles, of those that have been tried."""
        self._groups = _by_tiles(self.forms)

    @property
    def group_count(self) -> int:
        """How many groups of forms there are that have the same tiles to choose from."""
        return len(self._groups)

    def _members(self, group: int) -> Sequence[int]:
        return self._groups[group] if group < len(self._groups) else ()

    def in_tiles(self, group: int) -> list[MatmulKernel]:
        """The first form of a group, in each of its tiles; none where the group is not there."""
        return [
            replace(self.forms[k], tile=tile)
            for k in self._members(group)[:1]
            for tile in self.forms[k].tiles
        ]

    def others_in_best_tile(
        self, group: int, tried: Sequence[MatmulKernel], times: Mapping[int, float]
    ) -> list[MatmulKernel]:
        """The other forms of a group in the tile in which the first, ``tried`` in all, has the least time."""
        members, best = self._members(group), min(times, key=times.__getitem__, default=0)
        for k in members:
            self.shaped[k] = replace(self.shaped[k], tile=tried[best].tile)
        if times:
            self.times[members[0]] = times[best]
        return [self.shaped[k] for k in members[1:]]

    def note_others(self, group: int, times: Mapping[int, float]) -> None:
        """Note the times of what :meth:`others_in_best_tile` gave."""
        members = self._members(group)
        self.times.update((members[k + 1], time) for k, time in times.items())


@dataclass(eq=False)
class MatmulChooser:
    """Chooses forms by their times on ``device``; ``folder`` holds what is known."""

    device: KernelLoader
    folder: Path
    buffers: Mapping[str, Buffer]
    limits: RowLimits
    precision: Precision
    clock: Clock = milliseconds
    candidates_left: int = field(default_factory=lambda: MAX_CANDIDATES, init=False)
    timed: set[Path] = field(default_factory=set, init=False)

    def prepare(self, problems: Iterable[Sequence[MatmulKernel]]) -> None:
        """Decide about those of a program's ``problems`` that do most, as far as there are candidates."""
        known: dict[Path, Sequence[MatmulKernel]] = {}
        work: Counter[Path] = Counter()
        for forms in filter(can_be_timed, problems):
            path = self._path(forms)
            known[path] = forms
            work[path] += math.prod(map(static, forms[0].contraction.sizes.values()))
        self.decide(known[path] for path, _ in work.most_common() if self._is_timed(known[path]))

    def __call__(self, forms: Sequence[MatmulKernel]) -> MatmulKernel | None:
        """The form of ``forms`` that is faster than the library's call; None if there is none.

        What is not timed is chosen as it is where nothing is.
        """
        if not can_be_timed(forms) or not self._is_timed(forms):
            return choose_untimed(forms)
        (choice,) = self.decide([forms])
        if choice.library_ms is None:
            return choose_untimed(forms)
        if choice.form is None or choice.tile is None:
            return None
        return replace(forms[choice.form], tile=TileShape.of(choice.tile))

    def decide(self, problems: Iterable[Sequence[MatmulKernel]]) -> list[Choice]:
        """What is chosen of the forms of each of ``problems``; kernels are compiled for all at once."""
        asked = [(self._path(forms), forms) for forms in problems]
        paths = dict(asked)
        known = {path: _read(path, forms) for path, forms in paths.items()}
        missing = [path for path, choice in known.items() if choice is None]
        for path, made in zip(missing, self._time([paths[p] for p in missing]), strict=True):
            keep_choice(path, vars(made))
            known[path] = made
        return [choice for path, _ in asked if (choice := known[path]) is not None]

    def _is_timed(self, forms: Sequence[MatmulKernel]) -> bool:
        """Whether ``forms`` are among what is timed of this program, known before or not."""
        path, count = self._path(forms), len(forms[0].tiles) + len(forms) - 1
        if path not in self.timed and count <= self.candidates_left:
            self.candidates_left -= count
            self.timed.add(path)
        return path in self.timed

    def _path(self, forms: Sequence[MatmulKernel]) -> Path:
        printed = [print_matmul(form, self.buffers, self.precision) for form in forms]
        text = [p.function.template for p in printed]
        text += [str(forms[0].call.operator), self.device.name, torch.__version__]
        text += [str(tile) for tile in forms[0].tiles]
        return choice_path(self.folder, text, "matmul")

    def _time(self, problems: Sequence[Sequence[MatmulKernel]]) -> list[Choice]:
        """Time all: first tiles for the form that does most, then the other forms in the best tile.

        Forms that have other tiles to choose from are among themselves.
        """
        trials = self._trials(problems, REPRESENTATIVE[-1])
        for group in range(max((trial.group_count for trial in trials), default=0)):
            tiled = [trial.in_tiles(group) for trial in trials]
            by_tile = self._times(trials, tiled)
            others = [
                trial.others_in_best_tile(group, tried, times)
                for trial, tried, times in zip(trials, tiled, by_tile, strict=True)
            ]
            for trial, times in zip(trials, self._times(trials, others), strict=True):
                trial.note_others(group, times)
        return [self._choice(trial) for trial in trials]

    def _choice(self, trial: _Trial) -> Choice:
        """What is fastest."""
        forms = trial.shaped
        all_ms = tuple(trial.times.get(position) for position in range(len(forms)))
        library = Choice(None, None, trial.library, all_ms, trial.failed)
        if trial.library is None or not trial.times:
            return library
        best = min(trial.times, key=lambda position: trial.times[position])
        is_faster = trial.times[best] < MIN_GAIN * trial.library
        if is_faster and not forms[0].contraction.is_static:
            is_faster = self._is_faster(trial.forms, forms[best], REPRESENTATIVE[0])
        if not is_faster:
            return library
        return replace(library, form=best, tile=forms[best].tile.numbers)

    def _trials(self, problems: Sequence[Sequence[MatmulKernel]], size: int) -> list[_Trial]:
        """``problems`` with what varies of size ``size``, the library's calls timed."""
        symbols = {s for b in self.buffers.values() for n in b.layout.size for s in n.free_symbols}
        sizes = dict.fromkeys(symbols, size)
        made = [Problem(forms, self.buffers, self.device, sizes, self.clock) for forms in problems]
        around = [problem.kernels for problem in made]
        trials = [
            _Trial(forms, problem, kernels, failed)
            for forms, problem, (kernels, failed) in zip(
                problems, made, self._load(around), strict=True
            )
        ]
        for trial in trials:
            if trial.problem.bytes <= MAX_BYTES and not trial.failed:
                trial.library = trial.problem.milliseconds_with(None, trial.kernels)
        return trials

    def _load(self, groups: Sequence[Sequence[Kernel]]) -> list[tuple[dict[str, Loaded], int]]:
        """Those kernels of each group that can be run, by name, and how many can't; compiled together."""
        printed = {
            (number, kernel.name): print_step(kernel, self.buffers, self.limits, self.precision)
            for number, kernels in enumerate(groups)
            for kernel in kernels
        }
        names = {key: f"{key[0]}_{key[1]}" for key in printed}
        functions = {names[key]: p.function for key, p in printed.items()}
        launchers = self.device.load_each(functions) if functions else {}
        found: list[tuple[dict[str, Loaded], int]] = []
        for number, kernels in enumerate(groups):
            loaded: dict[str, Loaded] = {}
            for kernel in kernels:
                launcher = launchers[names[number, kernel.name]]
                if launcher is not None:
                    loaded[kernel.name] = printed[number, kernel.name], launcher
            found.append((loaded, len(kernels) - len(loaded)))
        return found

    def _times(
        self, trials: Sequence[_Trial], groups: Sequence[Sequence[MatmulKernel]]
    ) -> list[dict[int, float]]:
        """Milliseconds of those forms of each group that can be run, by position."""
        named = [
            [replace(form, name=f"form{position}") for position, form in enumerate(forms)]
            if trial.library is not None
            else []
            for trial, forms in zip(trials, groups, strict=True)
        ]
        found = []
        for trial, forms, (loaded, failed) in zip(trials, named, self._load(named), strict=True):
            trial.failed += failed
            kernels = {**trial.kernels, **loaded}
            found.append(
                {
                    position: trial.problem.milliseconds_with(form, kernels)
                    for position, form in enumerate(forms)
                    if form.name in loaded
                }
            )
        return found

    def _is_faster(self, forms: Sequence[MatmulKernel], form: MatmulKernel, size: int) -> bool:
        """Whether ``form`` is faster than the library where sizes that vary are ``size``."""
        (trial,) = self._trials([forms], size)
        (times,) = self._times([trial], [[form]])
        return trial.library is not None and times.get(0, math.inf) < MIN_GAIN * trial.library


def _by_tiles(forms: Sequence[MatmulKernel]) -> list[Sequence[int]]:
    """The positions of ``forms``, those together that have the same tiles to choose from."""
    groups: dict[tuple[TileShape, ...], list[int]] = {}
    for position, form in enumerate(forms):
        groups.setdefault(form.tiles, []).append(position)
    return list(groups.values())


def _read(path: Path, forms: Sequence[MatmulKernel]) -> Choice | None:
    """What was chosen before; None if nothing was, or it is not about ``forms``."""
    try:
        known = Choice(**read_choice(path))
        known = replace(known, forms_ms=tuple(known.forms_ms))
        tile = None if known.tile is None else TileShape.of(known.tile)
    except (ValueError, TypeError):
        return None
    if known.form is None or tile is None:
        return known
    is_valid = 0 <= known.form < len(forms) and tile in forms[known.form].tiles
    return known if is_valid else None
