"""What is generated for a schedule: enough to make its program, in another process too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from weft_codegen_triton.host.printed_host import PrintedHost
from weft_codegen_triton.kernel.frame import kernel_text
from weft_codegen_triton.kernel.kernel_printer import KERNEL_IMPORTS, Function


@dataclass(frozen=True)
class PrintedProgram:
    """The generated code of a schedule.

    ``functions`` holds what is compiled, each once and by name.
    """

    functions: Mapping[str, Function]
    host: PrintedHost

    def functions_for(self, is_aligned: bool) -> Mapping[str, Function]:
        """The functions for calls whose sizes are multiples of 16 where that matters, or for any."""
        if not is_aligned:
            return self.functions
        return {name: f.for_aligned(self.host.aligned) for name, f in self.functions.items()}

    @property
    def source(self) -> str:
        """Kernels and host program as one readable text."""
        kernels = [kernel_text(f.template, name) for name, f in self.functions.items()]
        return "\n\n".join([KERNEL_IMPORTS, *kernels, self.host.source])


@dataclass(frozen=True, eq=False)
class GeneratedProgram:
    """A schedule's code with the tensors that it reads as constants, and what its calls have to know.

    ``wide`` is the code for calls whose sizes need 64 bits for indices that have 32 in ``printed``; None if
    none do.
    ``scalars`` and ``constant_scalars`` are the positions of inputs and constants without dimensions.
    ``is_recordable``: calls of one size do the same work, without waiting.  ``is_dynamic``: sizes vary.
    ``calls_may_raise``: an operator that is called may raise an error for some values.
    ``device`` is where its buffers are; None where it has none.
    """

    printed: PrintedProgram
    wide: PrintedProgram | None
    constants: tuple[torch.Tensor, ...]
    extern_count: int
    scalars: tuple[int, ...]
    constant_scalars: tuple[int, ...]
    is_recordable: bool
    is_dynamic: bool
    device: torch.device | None
    calls_may_raise: bool = True

    @property
    def checks_indices(self) -> bool:
        """Whether kernels assert that indices are in range, of which a GPU tells later."""
        return any(f.checks_indices for f in self.printed.functions.values())

    @property
    def for_larger_sizes(self) -> GeneratedProgram | None:
        """The program for calls that ``printed`` is not for; None where it is for all."""
        return None if self.wide is None else replace(self, printed=self.wide, wide=None)

    @property
    def kernel_count(self) -> int:
        """Kernels launched by a call."""
        return sum(map(len, self.printed.host.launches.values()))

    @property
    def steps_before_tail(self) -> int:
        """Kernels and calls of a program call that a recording would hold."""
        host = self.printed.host
        return self.kernel_count + self.extern_count - host.head_steps - host.tail_steps
