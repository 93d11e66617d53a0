"""Whether matmuls of float32 may round their operands to 19 bits ("tf32"), as torch's settings say.

The library obeys the settings of each call, so a program that has such matmuls in kernels of its own is
compiled once for each setting that it is called under.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from weft_loop_ir import Schedule, all_items
from weft_loop_ir.process_lock import ProcessLock

from weft_codegen_triton.matmuls.contraction import Contraction
from weft_codegen_triton.matmuls.find_matmuls import MatmulKernel
from weft_codegen_triton.program import TritonProgram


@dataclass(frozen=True)
class Precision:
    """``"ieee"`` or ``"tf32"``, by the names that Triton has for them."""

    matmuls: str = "ieee"
    convolutions: str = "tf32"

    @classmethod
    def current(cls) -> Precision:
        """What torch's settings say now (``torch.backends.cuda.matmul``, ``torch.backends.cudnn``)."""
        matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
        if not hasattr(matmul, "fp32_precision"):  # before torch 2.9
            return cls(_name(matmul.allow_tf32), _name(cudnn.allow_tf32))
        conv: Any = cudnn.conv  # type: ignore[attr-defined]
        return cls(_name(matmul.fp32_precision == "tf32"), _name(conv.fp32_precision == "tf32"))

    def of(self, contraction: Contraction) -> str:
        """That of a contraction."""
        if contraction.dtype is not torch.float32:
            return "ieee"
        return self.convolutions if contraction.is_convolution else self.matmuls


def _name(allows_tf32: bool) -> str:
    return "tf32" if allows_tf32 else "ieee"


def depends_on_precision(schedule: Schedule) -> bool:
    """Whether a kernel of ours multiplies float32."""
    return any(
        isinstance(step, MatmulKernel) and step.contraction.dtype is torch.float32
        for step in all_items(schedule.steps)
    )


class ProgramByPrecision:
    """A program for each setting: that of ``first`` at once, others when a call needs them."""

    def __init__(
        self,
        first: TritonProgram,
        precision: Precision,
        compile_for: Callable[[Precision], TritonProgram],
    ) -> None:
        self._first = first
        self._programs = {precision: first}
        self._compile = compile_for
        self._lock = ProcessLock()

    @property
    def source(self) -> str:
        """The generated code for the first setting, as the counts are."""
        return self._first.source

    @property
    def kernel_count(self) -> int:
        """Kernels launched by a call."""
        return self._first.kernel_count

    @property
    def extern_count(self) -> int:
        """Operators called by a call."""
        return self._first.extern_count

    @property
    def may_fail(self) -> bool:
        """As :attr:`TritonProgram.may_fail`."""
        return self._first.may_fail

    @property
    def not_recorded(self) -> str | None:
        """As :attr:`TritonProgram.not_recorded`."""
        return self._first.not_recorded

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        return self._program()(*inputs)

    def call_donated(self, inputs: list[Any]) -> tuple[Any, ...]:
        """As :meth:`TritonProgram.call_donated`."""
        return self._program().call_donated(inputs)

    def donate(self, *inputs: Any) -> tuple[Any, ...]:
        """As :meth:`TritonProgram.donate`."""
        return self._program().donate(*inputs)

    def _program(self) -> TritonProgram:
        """The program for the current settings."""
        precision = Precision.current()
        program = self._programs.get(precision)
        if program is None:
            with self._lock:
                program = self._programs.get(precision)
                if program is None:
                    program = self._programs[precision] = self._compile(precision)
        return program
