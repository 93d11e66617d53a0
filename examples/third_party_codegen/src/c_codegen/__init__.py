"""A code generator for the CPU that prints plain C, a function a kernel: compiled by cc, called by ctypes."""

import ctypes
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import sympy
import torch
import weft_loop_ir
from weft_loop_ir import HostInterpreter, Kernel, MemoryPlan, Schedule

from c_codegen.kernels import KernelPrinter
from c_codegen.operations import HEADER

FLAGS = ("-O2", "-std=gnu11", "-fPIC", "-shared", "-fwrapv", "-fno-strict-aliasing", "-w")


class CProgram:
    """A compiled schedule: call it with the inputs that are not constants."""

    def __init__(self, schedule: Schedule, constants: Mapping[str, torch.Tensor]) -> None:
        # Without a plan of the arena, the interpreter gives each buffer memory of its own.
        self.schedule = replace(schedule, memory=MemoryPlan(sympy.S.Zero, {}))
        self.constants = constants
        steps = list(weft_loop_ir.all_items(schedule.steps))
        kernels = {step.name: step for step in steps if isinstance(step, Kernel)}
        self.printed = {n: KernelPrinter(k, schedule.buffers) for n, k in kernels.items()}
        self.source = "\n".join([HEADER, *(printed.source for printed in self.printed.values())])
        self.kernel_count = len(kernels)
        self.extern_count = sum(isinstance(step, weft_loop_ir.ExternCall) for step in steps)
        with tempfile.TemporaryDirectory() as folder:
            source, library = Path(folder) / "kernels.c", Path(folder) / "kernels.so"
            source.write_text(self.source)
            subprocess.run(["cc", *FLAGS, str(source), "-o", str(library), "-lm"], check=True)
            self.library = ctypes.CDLL(str(library))

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        given, bound = iter(inputs), self.constants
        every = [bound[n] if n in bound else next(given) for n in self.schedule.inputs]
        with torch.no_grad():
            call = Call(self.schedule, every)
            call.program = self
            return call.run()


class Call(HostInterpreter):
    """One call: the interpreter runs the steps, and kernels are functions of the library."""

    program: CProgram

    def kernel(self, kernel: Kernel) -> None:
        printed = self.program.printed[kernel.name]
        pointers = [self.memory[name].data_ptr() for name in printed.arguments]
        sizes = [int(self.value(symbol)) for symbol in printed.sizes]
        numbers = [number.evaluate(self.sizes) for number in printed.numbers]
        kinds = {ctypes.c_void_p: pointers, ctypes.c_int64: sizes, ctypes.c_double: numbers}
        arrays = [(kind * len(values))(*values) for kind, values in kinds.items()]
        outside = ctypes.c_bool(False)
        getattr(self.program.library, kernel.name)(*arrays, ctypes.byref(outside))
        if outside.value:
            raise IndexError(f"index out of range in {', '.join(kernel.origins)}")


class CCodegen(weft_loop_ir.Codegen):
    """Compiles schedules to C."""

    device_type = "cpu"
    writes_inputs = True
    checks_first = True  # an index out of range raises: before anything is written

    def compile(self, schedule: Schedule, constants: Mapping[str, torch.Tensor]) -> CProgram:
        return CProgram(schedule, constants)
