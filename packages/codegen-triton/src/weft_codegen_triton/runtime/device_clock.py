"""How long work takes on the device, without what the host needs to ask for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

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
