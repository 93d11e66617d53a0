"""Loads the kernels of a program: those for sizes that are multiples of 16, and those for others.

That for the sizes that the graph was made for is loaded at once, the other when a call has such sizes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from weft_loop_ir import call_library, lies_in, quotient, settle

from weft_codegen_triton.errors import IndicesTooLarge
from weft_codegen_triton.generated import PrintedProgram
from weft_codegen_triton.host.expressions import bits_of_float
from weft_codegen_triton.host.printed_host import ALIGNED
from weft_codegen_triton.kernel.kernel_printer import Function
from weft_codegen_triton.runtime.cuda_device import CudaDevice
from weft_codegen_triton.runtime.cuda_graph import beside_recordings
from weft_codegen_triton.runtime.interpreter import InterpretedDevice
from weft_codegen_triton.runtime.launch_list import HostFunctions
from weft_codegen_triton.runtime.memory import copy_memory, empty_result, reserve

Load = Callable[[Mapping[str, Function]], dict[str, Callable[..., None]]]
"""Gives the launchers of functions, by name."""


@dataclass(eq=False)
class LaunchLoader:
    """Puts the callables that make the launches of ``printed`` into the ``namespace`` of its host program.

    Loads each function once, so that kernels are shared that are the same for all sizes.
    """

    printed: PrintedProgram
    device: CudaDevice | InterpretedDevice
    namespace: dict[str, Any]
    load_functions: Load
    loaded: dict[tuple[str, tuple[str, ...]], Callable[..., None]] = field(default_factory=dict)

    def load(self) -> None:
        """Bind the names of all launches: a kind that is not loaded yet is when one of them is called."""
        host = self.printed.host
        begins_aligned = bool(host.aligned) and host.begins_aligned
        self._bind(begins_aligned)
        if not host.aligned:
            return
        for name in host.launches:
            self.namespace[_called(name, not begins_aligned)] = self._deferred(
                name, not begins_aligned
            )

    def _bind(self, is_aligned: bool) -> None:
        """Compile and load the functions of a kind, and bind the names of its launches."""
        host = self.printed.host
        functions = self.printed.functions_for(is_aligned)
        wanted = {n: f for n, f in functions.items() if _key(n, f) not in self.loaded}
        for name, launcher in self.load_functions(wanted).items():
            self.loaded[_key(name, functions[name])] = launcher
        for name, launches in host.launches.items():
            self.namespace[_called(name, is_aligned)] = self.device.launch_list(
                [
                    (self.loaded[_key(launch.function, functions[launch.function])], launch.terms)
                    for launch in launches
                ]
            )

    def _deferred(self, name: str, is_aligned: bool) -> Callable[..., None]:
        def launch(stream: int, *values: int) -> None:
            self._bind(is_aligned)
            self.namespace[_called(name, is_aligned)](stream, *values)

        return launch


def _key(name: str, function: Function) -> tuple[str, tuple[str, ...]]:
    return name, function.aligned


def _called(name: str, is_aligned: bool) -> str:
    """What the host program calls the list of launches ``name``."""
    return f"{name}{ALIGNED}" if is_aligned else name


def host_functions(
    printed: PrintedProgram,
    device: CudaDevice | InterpretedDevice,
    load_functions: Load | None = None,
) -> HostFunctions:
    """The functions of the host program's module, with the kernels that they launch on ``device``."""
    host = printed.host
    modules = (torch, itertools, math)
    made = (torch.empty, torch.empty_strided, torch.zeros, torch.as_strided, empty_result)
    ours = (
        bits_of_float,
        quotient,
        call_library,
        lies_in,
        settle,
        copy_memory,
        reserve,
        beside_recordings,
    )
    named: Any = (*modules, *made, *ours, IndicesTooLarge)
    namespace = {it.__name__: it for it in named} | {"uint8": torch.uint8, **host.objects}
    LaunchLoader(printed, device, namespace, load_functions or device.load).load()
    exec(compile(host.source, "<weft host program>", "exec"), namespace)
    return HostFunctions(namespace.get("prepare"), namespace["compute"], namespace["finish"])
