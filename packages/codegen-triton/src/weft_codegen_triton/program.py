"""What the code generator returns: a program that runs its steps one by one, or replays a CUDA graph."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch

from weft_codegen_triton._torch import set_grad_enabled
from weft_codegen_triton.errors import IndicesTooLarge
from weft_codegen_triton.generated import GeneratedProgram
from weft_codegen_triton.gpu import Gpu
from weft_codegen_triton.runtime.launch_list import HostFunctions
from weft_codegen_triton.runtime.replays import Replays

NOT_RECORDED = "not asked for, not sound, or too short"


class Device(Protocol):
    """Where a program runs.

    ``turn`` is held for a call of any program there: recordings share memory.  ``asserts_later``: a call
    ends before what its kernels assert is known.
    """

    turn: threading.RLock
    asserts_later: bool

    @property
    def gpu(self) -> Gpu:
        """What kernels are made for."""
        ...

    def move(self, tensor: torch.Tensor) -> torch.Tensor:
        """``tensor``, copied there if it is elsewhere."""
        ...

    def guard(self) -> AbstractContextManager[Any]:
        """A context in which the device is current on this thread."""
        ...

    def stream(self) -> int:
        """The address of the current stream."""
        ...


class TritonProgram:
    """A compiled schedule: call it with the inputs that are not constants, in order.

    Safe to call from several threads at once; programs on a device take turns.  With ``record`` the second
    call on a stream (of a size, if the program ``is_dynamic``) records a CUDA graph that later calls replay,
    of all steps but the first, on the CPU, and the last.  A later call leaves results as they are: the
    tensors that ``compute`` gives for them are copied, unless :meth:`donate` donates them or
    :meth:`call_donated` shares them, in memory that is not written to again while anybody holds it.
    Inputs and constants without dimensions may be on the CPU.  ``generated`` is what the program was made
    of.  Calls whose sizes are too large for the indices of its kernels are run by another program, which
    ``load_wider`` gives.  Where ``may_fail`` is false a call raises nothing once its first kernel has begun.
    """

    def __init__(
        self,
        functions: HostFunctions,
        device: Device,
        generated: GeneratedProgram,
        *,
        record: bool,
        copied_bytes: int,
        load_wider: Callable[[], TritonProgram] | None = None,
    ) -> None:
        self.generated = generated
        self.source = generated.printed.source
        self.kernel_count = generated.kernel_count
        self.extern_count = generated.extern_count
        asserts = generated.checks_indices and not device.asserts_later
        self.may_fail = generated.calls_may_raise or asserts
        self._functions = functions
        self._constants = generated.constants
        self._device = device
        self._scalars = generated.scalars
        self._constant_scalars = generated.constant_scalars
        self._load_wider = load_wider
        self._moved: dict[int, tuple[Any, torch.Tensor]] = {}
        self._wider: TritonProgram | None = None
        self._replays = None
        if record:
            host, steps = generated.printed.host, generated.steps_before_tail
            counts = len(host.returned), len(host.donated)
            is_dynamic = generated.is_dynamic
            self._replays = Replays(
                functions.compute,
                steps,
                *counts,
                is_dynamic,
                copied_bytes,
                device.gpu,
                host.written,
            )

    @property
    def not_recorded(self) -> str | None:
        """Why calls are not replayed from a CUDA graph; None if they are, or may be yet."""
        return NOT_RECORDED if self._replays is None else self._replays.refusal

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        return self._without_gradients(list(inputs))

    def call_donated(self, inputs: list[Any]) -> tuple[Any, ...]:
        """The same where nobody else holds ``inputs``: each is freed when it has been read for the last time.

        The list is emptied in part.  Where the call is replayed from a recording they live to its end, and
        what another recording has donated is undefined then.
        """
        return self._without_gradients(inputs, inputs_donated=True)

    def donate(self, *inputs: Any) -> tuple[Any, ...]:
        """A call whose private results are donated, not copied: they may be in the memory of a recording.

        While anybody holds that, other calls run step by step.
        """
        return self._without_gradients(list(inputs), donates=True)

    def _without_gradients(
        self, inputs: list[Any], *, donates: bool = False, inputs_donated: bool = False
    ) -> tuple[Any, ...]:
        if not torch.is_grad_enabled():
            return self._run(inputs, donates, inputs_donated)
        set_grad_enabled(False)
        try:
            return self._run(inputs, donates, inputs_donated)
        finally:
            set_grad_enabled(True)

    def _wider_program(self) -> TritonProgram:
        """The program for larger sizes, compiled now if no call has had any."""
        if self._wider is None:
            assert self._load_wider is not None
            self._wider = self._load_wider()
        return self._wider

    def _run(self, inputs: list[Any], donates: bool, inputs_donated: bool) -> tuple[Any, ...]:
        is_replayable = donates or not self.generated.printed.host.donated
        with self._device.turn, self._device.guard():
            stream = self._device.stream()
            given = inputs
            prepared: tuple[torch.Tensor, ...] = ()
            if self._functions.prepare is not None:
                given = [] if self._load_wider is None else [*inputs]
                sent, prepared = self._functions.prepare(inputs, self._constants)
                inputs += sent
            self._move(inputs, self._scalars)
            constants: Sequence[torch.Tensor] = self._constants
            if self._constant_scalars:
                constants = list(constants)
                self._move(constants, self._constant_scalars, ~0)
            buffers: tuple[torch.Tensor, ...] | None
            try:
                if self._replays is not None and is_replayable:
                    buffers = self._replays.run(
                        inputs, constants, stream, inputs_donated=inputs_donated
                    )
                else:
                    buffers = self._functions.compute(inputs, constants, stream)
            except IndicesTooLarge:
                buffers = None  # the other program runs when nothing holds the inputs any more
            if buffers is None:
                return self._wider_program()._run(given, donates, inputs_donated)
            inputs += prepared
            return self._functions.finish(inputs, constants, stream, buffers)

    def _move(self, tensors: list[Any], scalars: tuple[int, ...], sign: int = 0) -> None:
        """Move those of ``tensors`` at the positions ``scalars`` to the device.

        A number that is what it was at the call before is there already: nothing writes to it, and where a
        recording reads it.  ``sign`` tells constants' positions from inputs'.
        """
        for position in scalars:
            tensor = tensors[position]
            if tensor.is_cpu:
                number = repr(tensor.item())  # which tells zeros apart, and NaNs not
                known = self._moved.get(position ^ sign)
                if known is None or known[0] != (number, tensor.dtype):
                    moved = self._device.move(tensor)
                    if moved is tensor:
                        continue  # the device is the CPU
                    known = self._moved[position ^ sign] = (number, tensor.dtype), moved
                tensors[position] = known[1]
