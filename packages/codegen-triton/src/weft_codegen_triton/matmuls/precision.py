"""Whether matmuls of float32 may round their operands to 19 bits ("tf32"), as torch's settings say.

The library obeys the settings of each call, so a program that has such matmuls in kernels of its own is
compiled once for each setting that it is called under.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from weft_loop_ir import Schedule, all_items
from weft_loop_ir.contractions import Contraction
from weft_loop_ir.process_lock import ProcessLock

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


@dataclass(frozen=True)
class Settings:
    """Which of torch's settings a program depends on."""

    matmuls: bool = False
    convolutions: bool = False

    @classmethod
    def of(cls, schedule: Schedule) -> Settings:
        """Those of the kernels of ours that multiply float32."""
        ours = [s.contraction for s in all_items(schedule.steps) if isinstance(s, MatmulKernel)]
        found = {c.is_convolution for c in ours if c.dtype is torch.float32}
        return cls(False in found, True in found)

    def __bool__(self) -> bool:
        return self.matmuls or self.convolutions

    def read(self, precision: Precision) -> Precision:
        """``precision`` as far as it matters."""
        return Precision(
            precision.matmuls if self.matmuls else "ieee",
            precision.convolutions if self.convolutions else "ieee",
        )

    def all(self) -> list[Precision]:
        """What there is to tell apart."""
        return [
            Precision(matmuls, convolutions)
            for matmuls in ("ieee", "tf32")[: 1 + self.matmuls]
            for convolutions in ("ieee", "tf32")[: 1 + self.convolutions]
        ]


@dataclass(frozen=True, eq=False)
class ByPrecision:
    """What was generated for each of the settings that a program depends on: plain data."""

    settings: Settings
    programs: Mapping[Precision, Any]

    @property
    def any(self) -> Any:
        """One of them: in what does not depend on the settings they are alike."""
        return next(iter(self.programs.values()))


class ProgramByPrecision:
    """A program for each setting: that of ``first`` at once, others when a call needs them."""

    def __init__(
        self,
        settings: Settings,
        first: TritonProgram,
        precision: Precision,
        generate: Callable[[Precision], Any],
        load: Callable[[Any], TritonProgram],
    ) -> None:
        """``first`` is for ``precision``; ``generate`` gives what ``load`` makes another's program of."""
        self._settings = settings
        self._first = first
        self._programs = {settings.read(precision): first}
        self._generate = generate
        self._load = load
        self._lock = ProcessLock()

    @classmethod
    def of(cls, kept: ByPrecision, load: Callable[[Any], TritonProgram]) -> ProgramByPrecision:
        """The program that had this as its ``generated``."""
        precision = kept.settings.read(Precision.current())
        first = load(kept.programs[precision])
        return cls(kept.settings, first, precision, kept.programs.__getitem__, load)

    @property
    def generated(self) -> ByPrecision:
        """That of the programs for all settings."""
        return ByPrecision(
            self._settings, {p: self._generated_for(p) for p in self._settings.all()}
        )

    def _generated_for(self, precision: Precision) -> Any:
        made = self._programs.get(precision)
        return self._generate(precision) if made is None else made.generated

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
        precision = self._settings.read(Precision.current())
        program = self._programs.get(precision)
        if program is None:
            with self._lock:
                program = self._programs.get(precision)
                if program is None:
                    program = self._load(self._generate(precision))
                    self._programs[precision] = program
        return program
