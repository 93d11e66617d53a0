"""What is measured on: a GPU, or, to try the harness where there is none, the processor."""

from __future__ import annotations

import itertools
import platform
import resource
import statistics
import time
from collections.abc import Callable
from typing import Any, Protocol

import torch

from benchmarks.gpu import call_times

CALLS = 20
"""Timed calls, after five to warm up."""


class Device(Protocol):
    """Times, counts and weighs calls; ``name`` is torch's."""

    name: str

    def describe(self) -> str:
        """The hardware's name."""
        ...

    def synchronize(self) -> None:
        """Wait for what was launched."""
        ...

    def times(self, call: Callable[[], Any]) -> list[float]:
        """Milliseconds of each of :data:`CALLS` calls."""
        ...

    def kernels(self, call: Callable[[], Any]) -> int:
        """Kernels, copies and fills that a call runs."""
        ...

    def held_bytes(self) -> int:
        """Bytes of the tensors that are alive."""
        ...

    def forget_peak(self) -> None:
        """Give back what is not in use, and let :meth:`peak_bytes` begin anew."""
        ...

    def peak_bytes(self) -> int:
        """The most bytes reserved at a time since then."""
        ...


class Gpu:
    """The current CUDA device."""

    name = "cuda"

    def describe(self) -> str:
        return torch.cuda.get_device_name()

    def synchronize(self) -> None:
        torch.cuda.synchronize()

    def times(self, call: Callable[[], Any]) -> list[float]:
        return call_times(call, CALLS)

    def kernels(self, call: Callable[[], Any]) -> int:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            call()
            torch.cuda.synchronize()
        return sum(e.device_type == torch.autograd.DeviceType.CUDA for e in profile.events())

    def held_bytes(self) -> int:
        return torch.cuda.memory_allocated()

    def forget_peak(self) -> None:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()

    def peak_bytes(self) -> int:
        return torch.cuda.max_memory_reserved()


class Processor:
    """The CPU: no kernels are counted, and the peak is that of the process since its start."""

    name = "cpu"

    def describe(self) -> str:
        return platform.machine()

    def synchronize(self) -> None:
        pass

    def times(self, call: Callable[[], Any]) -> list[float]:
        for _ in range(2):
            call()
        moments = [time.perf_counter()]
        for _ in range(CALLS):
            call()
            moments.append(time.perf_counter())
        return [(b - a) * 1e3 for a, b in itertools.pairwise(moments)]

    def kernels(self, call: Callable[[], Any]) -> int:
        return 0

    def held_bytes(self) -> int:
        return 0

    def forget_peak(self) -> None:
        pass

    def peak_bytes(self) -> int:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def median_and_spread(times: list[float]) -> tuple[float, float]:
    """Their median, and the quartiles' distance."""
    quartiles = statistics.quantiles(times)
    return statistics.median(times), quartiles[2] - quartiles[0]
