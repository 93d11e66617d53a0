"""A GPU as the place where programs run."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from weft_codegen_triton._torch import current_device, current_stream
from weft_codegen_triton.compilation.binary import ENTRY, CompileJob
from weft_codegen_triton.compilation.client import CompileServer, compile_server
from weft_codegen_triton.errors import LaunchError
from weft_codegen_triton.exported import Compiled
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
        self._processes = options.compile_processes
        self._threads = threading.local()
        self._autotunes = options.autotune
        self._native_list = functools.partial(native_launch_list, as_graph=options.launch_graphs)

    @functools.cached_property
    def _server(self) -> CompileServer:
        """Looked for when a kernel is compiled: programs of files need none."""
        return compile_server(self._folder, self._processes)

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
        several = self._several(functions)
        compiled = self._compiled(functions, several)
        return {n: self._load(n, f, compiled[n], several.get(n)) for n, f in functions.items()}

    def _load(
        self, name: str, function: Function, compiled: Compiled, variants: _Variants | None
    ) -> Callable[..., None]:
        """What launches ``function``: compiled again if the device takes nothing of what is compiled."""
        try:
            choice = None if variants is None else variants.choice
            return self.load_variants(name, function, compiled, choice)
        except LaunchError:
            again = {0: (function, self._server.compile_again(self._job(function)))}
            if compiled.get(0) == again[0]:
                raise
        return self.load_variants(name, function, again)

    def _several(self, functions: Mapping[str, Function]) -> dict[str, _Variants]:
        """The variants of the functions that have some."""
        most = max_variants(len(functions)) if self._autotunes else 1
        several = {n: found for n, f in functions.items() if len(found := variants(f, most)) > 1}
        return {
            name: _Variants(
                dict(enumerate(found)),
                Choice(self._folder, [self._job(f).key() for f in found], self.name),
            )
            for name, found in several.items()
        }

    def compile_variants(self, functions: Mapping[str, Function]) -> dict[str, Compiled]:
        """What :meth:`load` would load of each function, compiled."""
        return self._compiled(functions, self._several(functions))

    def _compiled(
        self, functions: Mapping[str, Function], several: Mapping[str, _Variants]
    ) -> dict[str, Compiled]:
        """``functions``, those of ``several`` in all variants that may be launched and can be compiled."""
        wanted = {n: several[n].wanted() if n in several else {0: f} for n, f in functions.items()}
        jobs = {n: {k: self._job(f) for k, f in found.items()} for n, found in wanted.items()}
        binaries = self._server.compile(jobs[n][0] for n in functions if n not in several)
        binaries |= self._server.compile_each(job for n in several for job in jobs[n].values())
        return {
            name: {
                k: (wanted[name][k], binaries[job.key()])
                for k, job in found.items()
                if job.key() in binaries
            }
            for name, found in jobs.items()
        }

    def load_variants(
        self, name: str, function: Function, compiled: Compiled, choice: Choice | None = None
    ) -> Callable[..., None]:
        """The launcher of what :meth:`compile_variants` gave for ``function``; ``choice`` keeps a choice."""
        kernels: dict[int, Callable[..., None]] = {}
        with self.guard():
            for number, (variant, binary) in compiled.items():
                with contextlib.nullcontext() if len(compiled) == 1 else _unless_too_large():
                    kernels[number] = load_kernel(binary.called(name), len(variant.parameters))
        if len(compiled) != 1 and 0 not in kernels:
            raise LaunchError(f"{name}: it does not fit this GPU")
        if list(compiled) == [0]:
            return kernels[0]
        functions = {0: function, **{k: variant for k, (variant, _) in compiled.items()}}
        return TunedKernel(kernels, functions, choice, torch.device("cuda", self.index))

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
                    with _unless_too_large():
                        found[name] = load_kernel(
                            binary.called(called or name), len(functions[name].parameters)
                        )
        return found

    def launch_list(self, launches: Launches) -> Callable[..., None]:
        """What makes ``launches``: in C, unless variants of a kernel are to be timed at its first launch."""
        if any(isinstance(launcher, TunedKernel) for launcher, _ in launches):
            return TunedLaunchList(launches, self._native_list)
        return self._native_list(launches)


@dataclass(frozen=True)
class _Variants:
    """The variants of a function by number, and which was chosen before."""

    functions: Mapping[int, Function]
    choice: Choice

    def wanted(self) -> Mapping[int, Function]:
        """The chosen one; all where none is."""
        chosen = self.choice.read()
        return self.functions if chosen is None else {chosen: self.functions[chosen]}


def _unless_too_large() -> AbstractContextManager[Any]:
    """A context in which a kernel may fail to load: it wants more shared memory than a block may have."""
    return contextlib.suppress(LaunchError)


@functools.cache
def _turn(device: int) -> threading.RLock:
    """The lock of all programs on a GPU."""
    return threading.RLock()


def compile_job(function: Function, capability: int) -> CompileJob:
    """What the compile server is told about ``function``, for ``capability`` (90 for 9.0)."""
    constants = dict(function.constants)
    module, rolled = (function.module(ENTRY, unrolls=unrolls) for unrolls in (True, False))
    return CompileJob(
        module=module,
        rolled=None if rolled == module else rolled,
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
