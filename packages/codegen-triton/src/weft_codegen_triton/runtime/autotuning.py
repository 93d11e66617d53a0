"""Choosing among variants of a kernel by timing them on the device, with the arguments of its first call."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import torch

from weft_codegen_triton.compilation.cache import choice_path, keep_choice, read_choice
from weft_codegen_triton.kernel.blocks import MAX_BLOCK_SCALE
from weft_codegen_triton.kernel.kernel_printer import Function
from weft_codegen_triton.runtime.launch_list import Launches, LaunchList

LAUNCHES = 20
"""Runs that are timed together."""
REPEATS = 5
BUSY_EXTENT = 8192
"""Of the matrices of a matmul that takes more than a millisecond, longer than the launches."""
MIN_GAIN = 0.97
"""The share of what is taken otherwise that something takes at most, to be chosen for its time."""

Run = Callable[[], None]
Clock = Callable[[Sequence[Run], torch.device], float]
"""Milliseconds of a run, given several of the same on memory of their own."""


def milliseconds(runs: Sequence[Run], device: torch.device) -> float:
    """The median time of a run on the device, ``runs`` in turn, after some that warm up.

    A large matmul comes first, so that the host has launched all that is timed before it begins.
    """
    operand = torch.empty(BUSY_EXTENT, BUSY_EXTENT, dtype=torch.float16, device=device).normal_()
    result = torch.empty_like(operand)
    for _ in range(3):
        runs[0]()
    times: list[float] = []
    for _ in range(REPEATS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.mm(operand, operand, out=result)
        start.record()
        for number in range(LAUNCHES):
            runs[number % len(runs)]()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / LAUNCHES)
    return sorted(times)[REPEATS // 2]


SCALES = (
    (1, 1),
    (2, 1),
    (1, 2),
    (MAX_BLOCK_SCALE, 2),
    (0.5, 1),
    (2, 2),
    (0.5, 0.5),
    (1, 0.5),
    (MAX_BLOCK_SCALE, 1),
)
"""Of the blocks that may vary and of the warps: the chosen ones first, then what gains most often."""
MAX_ELEMENTS_PER_THREAD = 32
MAX_WARPS = 16
MAX_KERNELS = 512
"""Of a program, variants included: half a minute of sixteen processors.  With many kernels each has few."""


class Launch(Protocol):
    """A loaded kernel: called with the stream, the grid's two extents, and the kernel's arguments."""

    def __call__(self, stream: int, columns: int, rows: int, *arguments: int) -> None: ...


def max_variants(functions: int) -> int:
    """How many variants each of so many functions of a program has at most."""
    return max(1, MAX_KERNELS // max(1, functions))


def variants(function: Function, most: int = len(SCALES)) -> tuple[Function, ...]:
    """``function``, then the same with other blocks and warps; alone if it can't be run more than once."""
    if function.alternatives:
        return (function, *function.alternatives)[:most]
    found = dict.fromkeys([function])
    if function.is_repeatable:
        varied = function.loop_blocks or function.grid_blocks[-1:]
        for scale, warp_scale in SCALES:
            constants = {
                name: max(1, int(block * scale)) if name in varied else block
                for name, block in function.constants
            }
            warps = max(1, int(function.warps * warp_scale))
            threads = 32 * warps
            elements = math.prod(constants.values())
            if warps <= MAX_WARPS and threads <= elements <= threads * MAX_ELEMENTS_PER_THREAD:
                found[replace(function, constants=tuple(constants.items()), warps=warps)] = None
    return tuple(found)[:most]


class Choice:
    """Which of several variants is launched on the device called ``device``, kept in ``folder``.

    ``keys`` tell the variants: a choice among others is not taken for one among these.
    """

    def __init__(self, folder: Path, keys: Sequence[str], device: str) -> None:
        self._path = choice_path(folder, keys, "tuned")
        self._count = len(keys)
        self._device = device

    def read(self) -> int | None:
        """The number of the variant that was chosen before; None if none was."""
        known = read_choice(self._path)
        chosen = known.get("chosen")
        is_valid = isinstance(chosen, int) and 0 <= chosen < self._count
        return chosen if is_valid and known.get("device") == self._device else None

    def write(self, chosen: int) -> None:
        """Keep what is chosen."""
        keep_choice(self._path, {"device": self._device, "chosen": chosen})


class TunedKernel:
    """Launches the fastest of ``kernels``, which are the loaded ones of ``functions``, both by number.

    The first launch decides, on its own arguments, unless there is but one.  The first variant stays unless
    another is clearly faster.  The grid is given in blocks of the first function, ``clock`` is asked for the
    times on ``device``.  ``choice`` keeps what is decided for other processes.
    """

    def __init__(
        self,
        kernels: Mapping[int, Launch],
        functions: Mapping[int, Function],
        choice: Choice | None,
        device: torch.device,
        clock: Clock = milliseconds,
    ) -> None:
        self._kernels = dict(kernels)
        self._blocks = {number: grid_blocks(f) for number, f in functions.items()}
        self._choice = choice
        self._device = device
        self._clock = clock
        self._chosen = next(iter(kernels)) if len(kernels) == 1 else None

    def __call__(self, stream: int, columns: int, rows: int, *arguments: int) -> None:
        chosen = self._chosen
        if chosen is None:
            chosen = 0
            if not torch.cuda.is_current_stream_capturing():
                chosen = self._chosen = self._decide(stream, columns, rows, arguments)
        self._launch(chosen, stream, columns, rows, arguments)

    def _launch(
        self, number: int, stream: int, columns: int, rows: int, arguments: tuple[int, ...]
    ) -> None:
        self._kernels[number](stream, *self._grid(number, columns, rows), *arguments)

    def _grid(self, number: int, columns: int, rows: int) -> tuple[int, int]:
        """The grid in blocks of variant ``number``."""
        first, blocks = self._blocks[0], self._blocks[number]
        return -(-columns * first[0] // blocks[0]), -(-rows * first[1] // blocks[1])

    def _decide(self, stream: int, columns: int, rows: int, arguments: tuple[int, ...]) -> int:
        def time(number: int) -> float:
            def run() -> None:
                self._launch(number, stream, columns, rows, arguments)

            return self._clock([run], self._device)

        times = {number: time(number) for number in self._kernels}
        chosen = min(times, key=lambda number: times[number])
        if times[chosen] >= MIN_GAIN * times[0]:
            chosen = 0
        if self._choice is not None:
            self._choice.write(chosen)
        return chosen

    @property
    def is_decided(self) -> bool:
        return self._chosen is not None

    def direct(
        self, terms: Sequence[tuple[int, int]]
    ) -> tuple[Launch, Sequence[tuple[int, int]]] | None:
        """The chosen kernel itself and the terms of its launch; None where its grid is yet to be computed."""
        if self._chosen is None:
            return None
        kernel = self._kernels[self._chosen]
        if self._blocks[self._chosen] == self._blocks[0]:
            return kernel, terms
        (column, columns), (row, rows), *arguments = terms
        if column or row:
            return None
        grid = self._grid(self._chosen, columns, rows)
        return kernel, [*((0, extent) for extent in grid), *arguments]


class TunedLaunchList:
    """Makes ``launches``, of which some are of tuned kernels; once all are decided, by ``native``.

    ``native`` gives a list of launches of loaded kernels.
    """

    def __init__(
        self, launches: Launches, native: Callable[[Launches], Callable[..., None]]
    ) -> None:
        self._launches = launches
        self._native = native
        self._run: Callable[..., None] = LaunchList(launches)
        self._is_settled = False
        self._settle()

    def __call__(self, stream: int, *values: int) -> None:
        self._run(stream, *values)
        if not self._is_settled:
            self._settle()

    def _settle(self) -> None:
        """Leave out the tuned kernels between the list and what they launch, once they have decided."""
        tuned = [kernel for kernel, _ in self._launches if isinstance(kernel, TunedKernel)]
        self._is_settled = all(kernel.is_decided for kernel in tuned)
        if self._is_settled:
            direct = [
                kernel.direct(terms) if isinstance(kernel, TunedKernel) else (kernel, terms)
                for kernel, terms in self._launches
            ]
            found = [launch for launch in direct if launch is not None]
            if len(found) == len(direct):
                self._run, self._launches = self._native(found), ()


def grid_blocks(function: Function) -> tuple[int, int]:
    """The blocks along the grid's two axes."""
    constants = dict(function.constants)
    blocks = [constants[name] for name in function.grid_blocks]
    return (*blocks, 1, 1)[:2]  # type: ignore[return-value]
