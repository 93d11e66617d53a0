"""A code generator for the CPU that generates no code: it evaluates the schedule with torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import weft_loop_ir
from weft_loop_ir import Schedule


class TorchProgram:
    """A schedule and its constants, run by the reference evaluator."""

    def __init__(self, schedule: Schedule, constants: Mapping[str, torch.Tensor]) -> None:
        self.source = weft_loop_ir.format_schedule(schedule)
        self.kernel_count = sum(isinstance(step, weft_loop_ir.Kernel) for step in schedule.steps)
        self.extern_count = len(schedule.steps) - self.kernel_count
        self._schedule = schedule
        self._constants = constants

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        remaining = iter(inputs)
        every = [
            self._constants[entry] if entry in self._constants else next(remaining)
            for entry in self._schedule.inputs
        ]
        return weft_loop_ir.evaluate(self._schedule, every)


class TorchCodegen(weft_loop_ir.Codegen):
    """Gives programs that evaluate their schedule."""

    device_type = "cpu"

    def compile(self, schedule: Schedule, constants: Mapping[str, torch.Tensor]) -> TorchProgram:
        print(f"torch_codegen: {len(schedule.steps)} steps")
        return TorchProgram(schedule, constants)
