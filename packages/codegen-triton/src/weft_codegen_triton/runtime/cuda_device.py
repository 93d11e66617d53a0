"""A GPU as the place where programs run."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch

from weft_codegen_triton._torch import current_device, current_stream
from weft_codegen_triton.compilation.binary import CompileJob, KernelBinary
from weft_codegen_triton.compilation.client import compile_server
from weft_codegen_triton.errors import LaunchError
from weft_codegen_triton.kernel.kernel_printer import Function
from weft_codegen_triton.options import TritonOptions
from weft_codegen_triton.runtime.autotuning import TunedKernel, variants
from weft_codegen_triton.runtime.cuda_driver import load_kernel, native_launch_list
from weft_codegen_triton.runtime.launch_list import Launches, LaunchList

NOTHING = contextlib.nullcontext()

ENTRY = "kernel"
"""What every function is called in its module, so that kernels that are alike have one binary."""


class CudaDevice:
    """The GPU ``device``; None is the current one."""

    records = True

    def __init__(self, device: torch.device | None, folder: Path, options: TritonOptions) -> None:
        index = None if device is None else device.index
        self.index = torch.cuda.current_device() if index is None else index
        self.turn = _turn(self.index)
        self._folder = folder
        self._autotunes = options.autotune
        self._server = compile_server(folder, options.compile_processes)

    @property
    def name(self) -> str:
        """What the device is called, by which choices are kept."""
        return torch.cuda.get_device_name(self.index)

    def guard(self) -> AbstractContextManager[Any]:
        """A context in which the device is current on this thread."""
        if current_device() == self.index:
            return NOTHING
        return torch.cuda.device(self.index)

    def stream(self) -> int:
        """The address of the device's current stream."""
        return current_stream(self.index)

    def move(self, tensor: torch.Tensor) -> torch.Tensor:
        """``tensor``, copied to the GPU if it is on the CPU."""
        return tensor if tensor.is_cuda else tensor.to(torch.device("cuda", self.index))

    def load(self, functions: Mapping[str, Function]) -> dict[str, Callable[..., None]]:
        """Compile what is not in the cache, and load all, by name."""
        major, minor = torch.cuda.get_device_capability(self.index)
        wanted = {n: variants(f) if self._autotunes else (f,) for n, f in functions.items()}
        jobs = {n: [compile_job(v, 10 * major + minor) for v in vs] for n, vs in wanted.items()}
        binaries = self._server.compile(job for several in jobs.values() for job in several)
        with self.guard():
            torch.cuda.current_stream().query()  # makes the context current on this thread
            return {
                name: self._launcher(several, [binaries[job.key()] for job in jobs[name]])
                for name, several in wanted.items()
            }

    def load_each(self, functions: Mapping[str, Function]) -> dict[str, Callable[..., None] | None]:
        """The launchers of ``functions`` as they are, by name; None for one that does not fit the device."""
        major, minor = torch.cuda.get_device_capability(self.index)
        jobs = {n: compile_job(f, 10 * major + minor) for n, f in functions.items()}
        binaries = self._server.compile_each(jobs.values())
        found: dict[str, Callable[..., None] | None] = dict.fromkeys(functions)
        with self.guard():
            torch.cuda.current_stream().query()  # makes the context current on this thread
            for name, job in jobs.items():
                binary = binaries.get(job.key())
                if binary is not None:
                    with contextlib.suppress(
                        LaunchError
                    ):  # more shared memory than a block may have
                        found[name] = load_kernel(binary, len(functions[name].parameters))
        return found

    def launch_list(self, launches: Launches) -> Callable[..., None]:
        """What makes ``launches``: in C, unless variants of a kernel are to be timed at its first launch."""
        if any(isinstance(launcher, TunedKernel) for launcher, _ in launches):
            return LaunchList(launches)
        return native_launch_list(launches)

    def _launcher(
        self, functions: Sequence[Function], binaries: Sequence[KernelBinary]
    ) -> Callable[..., None]:
        """What launches the only one of ``functions``, or the fastest."""
        kernels = [load_kernel(binary, len(functions[0].parameters)) for binary in binaries]
        if len(kernels) == 1:
            return kernels[0]
        text = "".join(hashlib.sha256(binary.cubin).hexdigest() for binary in binaries)
        path = self._folder / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.tuned"
        return TunedKernel(kernels, functions, path, self.name)


@functools.cache
def _turn(device: int) -> threading.RLock:
    """The lock of all programs on a GPU."""
    return threading.RLock()


def compile_job(function: Function, capability: int) -> CompileJob:
    """What the compile server is told about ``function``, for ``capability`` (90 for 9.0)."""
    constants = dict(function.constants)
    return CompileJob(
        module=function.module(ENTRY),
        name=ENTRY,
        signature={**dict(function.parameters), **dict.fromkeys(constants, "constexpr")},
        constants=constants,
        aligned=tuple(name for name, kind in function.parameters if kind.startswith("*")),
        warps=function.warps,
        stages=function.stages,
        capability=capability,
        checks=function.checks_indices,
    )
