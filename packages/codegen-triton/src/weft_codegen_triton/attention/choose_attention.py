"""Whether attention is a kernel of our own: as was found on this device before, else by times taken now.

Timed are the steps that it would replace and the kernel in each of its tiles.  A choice is kept on disk by
problem (the functions' texts, which hold sizes, strides and dtypes) and device.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from weft_loop_ir import AttentionKernel, Buffer, Kernel
from weft_loop_ir.bodies import Scalar

from weft_codegen_triton.attention.print_attention import print_attention
from weft_codegen_triton.compilation.cache import choice_path, keep_choice, read_choice
from weft_codegen_triton.kernel.frame import RowLimits
from weft_codegen_triton.kernel.index_bounds import ALWAYS_WIDE
from weft_codegen_triton.kernel.kernel_printer import PrintedKernel, print_kernel
from weft_codegen_triton.matmuls.time_matmuls import MAX_BYTES, KernelLoader, Loaded, StepTimer
from weft_codegen_triton.runtime.autotuning import MIN_GAIN, Clock, grid_blocks, milliseconds


@dataclass(frozen=True)
class AttentionTimes:
    """Milliseconds of the steps apart and of the kernel by tiles; None for what could not be run."""

    apart_ms: float | None
    tiles_ms: tuple[float | None, ...]

    @property
    def prefers_kernel(self) -> bool | None:
        """Whether the kernel is clearly faster; None where nothing says so."""
        known = [time for time in self.tiles_ms if time is not None]
        if self.apart_ms is None or not known:
            return None
        return min(known) < MIN_GAIN * self.apart_ms


@dataclass(eq=False)
class AttentionChooser:
    """Chooses by times on ``device``; ``folder`` holds what is known."""

    device: KernelLoader
    folder: Path
    buffers: Mapping[str, Buffer]
    limits: RowLimits
    clock: Clock = milliseconds

    def __call__(self, attention: AttentionKernel) -> bool | None:
        """Whether the kernel of ``attention`` is faster than its steps; None where that can't be timed."""
        if not self._can_be_timed(attention):
            return None
        printed = print_attention(attention, self.buffers, ALWAYS_WIDE, self.device.gpu)
        tiles = [printed.function, *printed.function.alternatives]
        kernels = [
            replace(printed, function=replace(f, alternatives=()), blocks=grid_blocks(f))
            for f in tiles
        ]
        apart = print_kernel(_softmax(attention), self.buffers, self.limits)
        path = self._path([*kernels, apart])
        times = _read(path)
        if times is None or len(times.tiles_ms) != len(kernels):
            times = self._time(attention, kernels, apart)
            keep_choice(path, vars(times))
        return times.prefers_kernel

    def _can_be_timed(self, attention: AttentionKernel) -> bool:
        """Whether it needs nothing but memory, of known sizes."""
        kernel = _softmax(attention)
        if attention.score.holds(Scalar) or kernel.holds(Scalar):
            return False
        names = {*attention.reads, *attention.writes, *kernel.reads, *kernel.writes}
        layouts = [self.buffers[name].layout for name in names]
        return all(n.is_Integer for layout in layouts for n in (*layout.size, *layout.stride))

    def _path(self, printed: list[PrintedKernel]) -> Path:
        text = [f"{p.function.template} {p.function.constants} {p.function.warps}" for p in printed]
        text += [str(p.function.stages) for p in printed] + [self.device.name, torch.__version__]
        return choice_path(self.folder, text, "attention")

    def _time(
        self, attention: AttentionKernel, kernels: list[PrintedKernel], apart: PrintedKernel
    ) -> AttentionTimes:
        forms = [replace(attention, name=f"tile{number}") for number in range(len(kernels))]
        steps = attention.apart
        printed = {form.name: p for form, p in zip(forms, kernels, strict=True)}
        printed[_softmax(attention).name] = apart
        launchers = self.device.load_each({name: p.function for name, p in printed.items()})
        loaded: dict[str, Loaded] = {
            name: (printed[name], launcher)
            for name, launcher in launchers.items()
            if launcher is not None
        }
        timer = StepTimer([attention, *steps], self.buffers, self.device, {}, self.clock)
        fits = timer.bytes <= MAX_BYTES

        def time(*timed: Kernel) -> float | None:
            runs = fits and all(k.name in loaded for k in timed)
            around = timed if len(timed) == 1 and timed[0] in forms else steps
            return timer.milliseconds(around, loaded) if runs else None

        return AttentionTimes(time(_softmax(attention)), tuple(time(form) for form in forms))


def _softmax(attention: AttentionKernel) -> Kernel:
    """The kernel between two matmuls."""
    (kernel,) = (step for step in attention.apart if isinstance(step, Kernel))
    return kernel


def _read(path: Path) -> AttentionTimes | None:
    """What was found before; None if nothing was."""
    try:
        known = AttentionTimes(**read_choice(path))
    except TypeError:
        return None
    return replace(known, tiles_ms=tuple(known.tiles_ms))
