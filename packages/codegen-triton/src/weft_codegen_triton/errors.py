"""What can go wrong in this package."""

from __future__ import annotations


class DeviceUnavailable(RuntimeError):
    """There is no Triton to compile with, or no GPU to run on."""


class CompileError(RuntimeError):
    """Triton failed to compile a kernel.  The message holds the kernel's source path and Triton's words."""


class LaunchError(RuntimeError):
    """The CUDA driver refused to load or to launch a kernel."""


class IndicesTooLarge(Exception):
    """A call's sizes need more bits than indices of kernels have; never raised to callers."""
