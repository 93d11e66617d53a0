"""What a processor can do, and the thresholds that follow from it."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

from weft_codegen_cpp.options import CppOptions

CACHE_LINE = 64
"""Bytes that come from memory at once."""


@dataclass(frozen=True)
class Cpu:
    """A processor by the numbers that kernels depend on.

    ``lanes``: how many values, of whatever type, a vector holds.  ``cache_bytes``: what a core's nearest
    cache has for data.  ``vendor``: who made it, as it calls itself (``GenuineIntel``, ``AuthenticAMD``);
    None if unknown.
    """

    lanes: int
    cache_bytes: int = 32 << 10
    vendor: str | None = None

    @property
    def near_bytes(self) -> int:
        """What stays in the nearest cache beside all else: a power of two, at most half of it."""
        return 1 << (self.cache_bytes // 2).bit_length() - 1

    @property
    def operations_a_nanosecond(self) -> float:
        """Floating point operations of a matmul on one thread: what decides how many threads are used."""
        return 5.0 * self.lanes


def cpu_of(options: CppOptions) -> Cpu:
    """The processor that programs with ``options`` are for."""
    flags, lanes = cpu_flags(), options.lanes
    if lanes is None and options.architecture not in (None, "native"):
        lanes = 16 if options.architecture == "x86-64-v4" else 8
    if lanes is None:
        lanes = 16 if has_avx512() else 8 if "avx2" in flags else 4
    return Cpu(lanes, _cache_bytes(), _told("vendor_id"))


_AVX512 = frozenset(("avx512f", "avx512bw", "avx512dq", "avx512vl"))


def has_avx512() -> bool:
    """Whether this processor has the parts of AVX-512 that kernels are compiled for."""
    return cpu_flags() >= _AVX512


@functools.cache
def cpu_flags() -> frozenset[str]:
    """The CPU's features as the operating system names them."""
    return frozenset((_told("flags") or _told("Features") or "").split())


@functools.cache
def _told(wanted: str) -> str | None:
    """What the operating system says of the CPU under the name ``wanted``; None if nothing."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() == wanted:
                return value.strip()
    except OSError:
        return None
    return None


@functools.cache
def _cache_bytes() -> int:
    """Of the nearest cache for data; that of most processors where the operating system says nothing."""
    try:
        said = Path("/sys/devices/system/cpu/cpu0/cache/index0/size").read_text().strip()
        return int(said.removesuffix("K")) << 10 or Cpu.cache_bytes
    except (OSError, ValueError):
        return Cpu.cache_bytes
