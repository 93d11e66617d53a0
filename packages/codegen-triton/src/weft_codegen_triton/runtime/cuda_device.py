"""A GPU as the place where programs run."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch

from weft_codegen_triton._torch import current_device, current_stream
from weft_codegen_triton.compilation.binary import ENTRY, CompileJob, KernelBinary
from weft_codegen_triton.compilation.client import compile_server
from weft_codegen_triton.errors import LaunchError
from weft_codegen_triton.gpu import Gpu
from weft_codegen_triton.kernel.kernel_printer import Function
from weft_codegen_triton.options import TritonOptions
from weft_codegen_triton.runtime.autotuning import (
    Choice,
    TunedKernel,
    TunedLaunchList,
    max_variants,
    variants,
)
from weft_codegen_triton.runtime.cuda_driver import (
    gpu_of_device,
    load_kernel,
    make_context_current,
    native_launch_list,
)
from weft_codegen_triton.runtime.launch_list import Launches

NOTHING = contextlib.nullcontext()


class CudaDevice:
    """The GPU ``device``; None is the current one."""

    records = True
    asserts_later = True

    def __init__(self, device: torch.device | None, folder: Path, options: TritonOptions) -> None:
        index = None if device is None else device.index
        self.index = torch.cuda.current_device() if index is None else index
        self._chosen_gpu = options.gpu
        self.turn = _turn(self.index)
        self._folder = folder
        self._threads = threading.local()
        self._autotunes = options.autotune
        self._native_list = functools.partial(native_launch_list, as_graph=options.launch_graphs)
        self._server = compile_server(folder, options.compile_processes)

    @property
    def name(self) -> str:
        """What the device is called, by which choices are kept."""
        return torch.cuda.get_device_name(self.index)

    @functools.cached_property
    def gpu(self) -> Gpu:
        """What kernels are made for: the device, unless options say otherwise."""
        torch.cuda.init()  # before the driver is asked
        return self._chosen_gpu or gpu_of_device(self.index)

    def guard(self) -> AbstractContextManager[Any]:
        """A context in which the device is current on this thread, with its CUDA context."""
        if current_device() != self.index:
            return torch.cuda.device(self.index)
        if not hasattr(self._threads, "have_context"):
            make_context_current(self.index)
            self._threads.have_context = True
        return NOTHING

    def stream(self) -> int:
        """The address of the device's current stream."""
        return current_stream(self.index)

    def move(self, tensor: torch.Tensor) -> torch.Tensor:
        """``tensor``, copied to the GPU if it is on the CPU."""
        return tensor if tensor.is_cuda else tensor.to(torch.device("cuda", self.index))

    def load(self, functions: Mapping[str, Function]) -> dict[str, Callable[..., None]]:
        """Compile what is not in the cache, and load all, by name."""
        loaded = self._load_tuned(functions) if self._autotunes else {}
        jobs = {n: self._job(f) for n, f in functions.items() if n not in loaded}
        binaries = self._server.compile(jobs.values())
        with self.guard():
            for name, job in jobs.items():
                count = len(functions[name].parameters)
                loaded[name] = self._loaded(job, binaries[job.key()], count, name)
        return loaded

    def _loaded(
        self, job: CompileJob, binary: KernelBinary, count: int, name: str = ENTRY
    ) -> Callable[..., None]:
        """The kernel of ``job``, which is compiled again if the driver does not take what was kept."""
        try:
            return load_kernel(binary.called(name), count)
        except LaunchError:
            again = self._server.compile_again(job)
            if again == binary:
                raise
        return load_kernel(again.called(name), count)

    def _load_tuned(self, functions: Mapping[str, Function]) -> dict[str, Callable[..., None]]:
        """The functions that have variants, each with those that fit the device, or the one chosen before."""
        most = max_variants(len(functions))
        several = {n: found for n, f in functions.items() if len(found := variants(f, most)) > 1}
        jobs = {n: [self._job(f) for f in found] for n, found in several.items()}
        choices = {
            n: Choice(self._folder, [j.key() for j in js], self.name) for n, js in jobs.items()
        }
        chosen = {n: choice.read() for n, choice in choices.items()}
        wanted = {n: range(len(js)) if (k := chosen[n]) is None else [k] for n, js in jobs.items()}
        self._server.compile_each(jobs[n][k] for n, numbers in wanted.items() for k in numbers)
        tuned: dict[str, Callable[..., None]] = {}
        device = torch.device("cuda", self.index)
        for name, numbers in wanted.items():
            named = {str(k): several[name][k] for k in numbers}
            kernels = {
                int(k): kernel for k, kernel in self.load_each(named, name).items() if kernel
            }
            if 0 in kernels or chosen[name] in kernels:
                tuned[name] = TunedKernel(kernels, several[name], choices[name], device)
        return tuned

    def _job(self, function: Function) -> CompileJob:
        major, minor = torch.cuda.get_device_capability(self.index)
        return compile_job(function, 10 * major + minor)

    def load_each(
        self, functions: Mapping[str, Function], called: str | None = None
    ) -> dict[str, Callable[..., None] | None]:
        """The launchers of ``functions`` as they are, by name; None for one that does not fit the device.

        Profilers show them all as ``called``, where it is given.
        """
        jobs = {n: self._job(f) for n, f in functions.items()}
        binaries = self._server.compile_each(jobs.values())
        found: dict[str, Callable[..., None] | None] = dict.fromkeys(functions)
        with self.guard():
            for name, job in jobs.items():
                binary = binaries.get(job.key())
                if binary is not None:
                    with contextlib.suppress(
                        LaunchError
                    ):  # more shared memory than a block may have
                        found[name] = load_kernel(
                            binary.called(called or name), len(functions[name].parameters)
                        )
        return found

    def launch_list(self, launches: Launches) -> Callable[..., None]:
        """What makes ``launches``: in C, unless variants of a kernel are to be timed at its first launch."""
        if any(isinstance(launcher, TunedKernel) for launcher, _ in launches):
            return TunedLaunchList(launches, self._native_list)
        return self._native_list(launches)


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
        aligned=tuple(
            name
            for name, kind in function.parameters
            if kind.startswith("*") or name in function.aligned
        ),
        warps=function.warps,
        stages=function.stages,
        capability=capability,
        checks=function.checks_indices,
    )
