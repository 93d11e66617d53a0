"""What a host program notes of its own time: when each step has ended."""

from __future__ import annotations

from collections.abc import Sequence

from weft_loop_ir import ExternCall, Kernel, ParallelKernels, Step

STAMP = "stamps[{}] = nanoseconds();"

_SOURCE = """#include <time.h>
static thread_local i64 stamps[%d];
static i64 nanoseconds() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return i64(now.tv_sec) * 1000000000 + now.tv_nsec;
}
extern "C" const i64* weft_stamps() { return stamps; }
extern "C" const char* weft_steps() { return "%s"; }
"""


def print_timeline(steps: Sequence[Step]) -> str:
    """The functions that :data:`STAMP` and a program's ``timeline`` call."""
    return _SOURCE % (len(steps) + 1, "\\n".join(map(_name, steps)))


def _name(step: Step) -> str:
    if isinstance(step, ParallelKernels):
        return " + ".join(kernel.name for kernel in step.kernels)
    if isinstance(step, ExternCall):
        return str(step.operator)
    return step.name if isinstance(step, Kernel) else type(step).__name__.lower()
