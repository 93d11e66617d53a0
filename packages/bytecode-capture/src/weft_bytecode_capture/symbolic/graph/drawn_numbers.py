"""Taking back what a graph drew from torch's random numbers, unless another thread may have drawn too.

The generator belongs to the whole process.  To put it back after another thread has drawn would give out that
thread's numbers a second time, which is worse than numbers other than eager's after an error.
"""

from __future__ import annotations

import sys
import threading
import time

import torch


class DrawnNumbers:
    """The state of the CPU's default generator, and which threads might draw from it from then on."""

    def __init__(self) -> None:
        self._times = _times_of_others()
        self._state = torch.get_rng_state()

    def take_back(self) -> None:
        """Put the generator back if no other thread has run since."""
        if self._times is not None and _times_of_others() == self._times:
            torch.set_rng_state(self._state)


def _times_of_others() -> dict[int, int] | None:
    """By identity, for how long each other Python thread has run, in ns; None where that cannot be known.

    Threads that never ran Python, as those of torch's parallel loops, draw no numbers.  One that begins and
    ends between two looks is not seen, but then the graph has started it, or a thread that has run.
    """
    clock = getattr(time, "pthread_getcpuclockid", None)
    if clock is None:
        return None
    # a thread that has a frame lives as long as this one holds the interpreter's lock
    others = sys._current_frames().keys() - {threading.get_ident()}
    return {identity: time.clock_gettime_ns(clock(identity)) for identity in others}
