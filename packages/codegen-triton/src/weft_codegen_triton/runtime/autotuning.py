"""Choosing among variants of a kernel by timing them on the device, with the arguments of its first call."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import torch

from weft_codegen_triton.compilation.cache import put
from weft_codegen_triton.kernel.blocks import MOST_BLOCK_SCALE
from weft_codegen_triton.kernel.kernel_printer import Function

SCALES = (1, 2, MOST_BLOCK_SCALE, 0.5)
"""Of the blocks that may vary, the chosen one first."""
WARP_SCALES = (1, 2, 0.5)
MOST_ELEMENTS_PER_THREAD = 32
MOST_WARPS = 16
LAUNCHES = 5
"""Launches that are timed together, after one to warm up."""


class Launch(Protocol):
    """A loaded kernel: called with the stream, the grid's two extents, and the kernel's arguments."""

    def __call__(self, stream: int, columns: int, rows: int, *arguments: int) -> None: ...


def variants(function: Function) -> tuple[Function, ...]:
    """``function``, then the same with other blocks and warps; alone if it can't be run more than once."""
    if function.alternatives:
        return (function, *function.alternatives)
    found = dict.fromkeys([function])
    if function.is_repeatable:
        varied = function.loop_blocks or function.grid_blocks[-1:]
        for scale, warp_scale in itertools.product(SCALES, WARP_SCALES):
            constants = {
                name: max(1, int(block * scale)) if name in varied else block
                for name, block in function.constants
            }
            warps = max(1, int(function.warps * warp_scale))
            elements = 1
            for block in constants.values():
                elements *= block
            threads = 32 * warps
            if warps <= MOST_WARPS and threads <= elements <= threads * MOST_ELEMENTS_PER_THREAD:
                found[replace(function, constants=tuple(constants.items()), warps=warps)] = None
    return tuple(found)


class TunedKernel:
    """Launches the fastest of ``kernels``, which are the loaded ``functions``.

    The first launch decides, on its own arguments, unless ``path`` holds what was decided before on the
    device called ``device``.  The grid is given in blocks of the first function.
    """

    def __init__(
        self, kernels: Sequence[Launch], functions: Sequence[Function], path: Path, device: str
    ) -> None:
        self._kernels = tuple(kernels)
        self._blocks = [_grid_blocks(f) for f in functions]
        self._path = path
        self._device = device
        self._chosen = self._read()

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
        first, blocks = self._blocks[0], self._blocks[number]
        columns = -(-columns * first[0] // blocks[0])
        rows = -(-rows * first[1] // blocks[1])
        self._kernels[number](stream, columns, rows, *arguments)

    def _decide(self, stream: int, columns: int, rows: int, arguments: tuple[int, ...]) -> int:
        times = []
        for number in range(len(self._kernels)):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            self._launch(number, stream, columns, rows, arguments)
            start.record()
            for _ in range(LAUNCHES):
                self._launch(number, stream, columns, rows, arguments)
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end))
        chosen = times.index(min(times))
        put(self._path, json.dumps({"device": self._device, "chosen": chosen}).encode())
        return chosen

    def _read(self) -> int | None:
        try:
            known = json.loads(self._path.read_text())
        except (OSError, ValueError):
            return None
        chosen = known.get("chosen")
        is_valid = isinstance(chosen, int) and 0 <= chosen < len(self._kernels)
        return chosen if is_valid and known.get("device") == self._device else None


def _grid_blocks(function: Function) -> tuple[int, int]:
    """The blocks along the grid's two axes."""
    constants = dict(function.constants)
    blocks = [constants[name] for name in function.grid_blocks]
    return (*blocks, 1, 1)[:2]  # type: ignore[return-value]
