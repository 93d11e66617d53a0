"""What a code generator is, to whoever writes one and to the pipeline that calls it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, Self

import torch
import torch.fx

from weft_loop_ir.ir import Schedule
from weft_loop_ir.lowering import LoweringOptions
from weft_loop_ir.schedule import ScheduleOptions
from weft_loop_ir.unsupported import Unsupported


class CompiledProgram(Protocol):
    """What a code generator returns: call it with the inputs that are not constants, in order.

    It may also have ``call_donated(inputs)``, the same for a list that nobody else needs: it takes tensors
    out of the list and drops each once it has been read for the last time.  And ``donate(*inputs)``, a call
    whose results in private buffers are donated: once nobody holds their memory, a later ``donate`` may
    overwrite it, and so may the ``call_donated`` that they are given to.
    """

    @property
    def source(self) -> str:
        """The generated code, readable."""

    @property
    def kernel_count(self) -> int: ...

    @property
    def extern_count(self) -> int: ...

    def __call__(self, *inputs: Any) -> tuple[Any, ...]: ...


@dataclass(frozen=True)
class Prerequisite:
    """Something that a code generator needs: what there is of it, and what to do where that won't do."""

    name: str
    found: str
    remedy: str | None = None


@dataclass(frozen=True)
class ExportedProgram:
    """What a file holds of a program, which is loaded where nothing can be compiled.

    ``generated`` is plain data, as that of a program is, and ``code`` all that is run, in pieces: a piece
    that programs of a file share (a kernel) is in it once.  ``needs`` says what it needs of a machine: by
    kind, names all of which :meth:`Codegen.target` has to give there.
    """

    generated: Any
    code: tuple[bytes, ...]
    needs: Mapping[str, Sequence[str]]


class Codegen(ABC):
    """A code generator for one device type: a subclass has ``device_type`` and :meth:`compile`.

    All else has defaults that suit a device of which nothing is known.  An installed package offers its code
    generator by an entry point of the group ``weft.codegen`` named after the device type; the class is made
    without arguments.
    """

    device_type: ClassVar[str]
    writes_inputs: ClassVar[bool] = False
    """Whether kernels may store to buffers of kind INPUT and CONSTANT (:func:`write_back`)."""
    checks_first: ClassVar[bool] = False
    """Whether programs raise for an index out of range, and so have to check before they write."""

    @property
    def schedule_options(self) -> ScheduleOptions:
        """What loops are fused, split and kept for the device."""
        return ScheduleOptions()

    @property
    def lowering_options(self) -> LoweringOptions:
        """Made anew for each graph: some of them are torch's settings at that moment."""
        return LoweringOptions()

    @abstractmethod
    def compile(self, schedule: Schedule, constants: Mapping[str, torch.Tensor]) -> CompiledProgram:
        """Compile ``schedule``; ``constants`` binds each buffer of kind CONSTANT by name.

        A constant's memory is read anew at each call (its owner may change it in place or swap its
        storage), so a program keeps the tensor and not its address.

        :raises Unsupported: for what it has no form for; any other error counts as a fault.
        """

    def begin(
        self, schedule: Schedule, constants: Mapping[str, torch.Tensor]
    ) -> Callable[[], CompiledProgram]:
        """As :meth:`compile`, but work may go on until the caller asks for the program, which it has to."""
        program = self.compile(schedule, constants)
        return lambda: program

    # -- what a user asks for ----------------------------------------------------------------------------

    def for_mode(self, mode: str) -> Self:
        """The code generator for a ``mode`` of torch.compile; by default the same for each."""
        return self

    def with_cache_limit(self, limit: int) -> Self:
        """One that keeps at most ``limit`` bytes on disk; by default nothing is kept."""
        return self

    def with_eager_numerics(self) -> Self:
        """One whose programs give eager's bits, of graphs that no ``rewrite`` has changed.

        Its :attr:`lowering_options` say so (``eager_numerics``), its kernels round each operation as it is
        written, and calls of libraries are eager's own.

        :raises Unsupported: it has none; by default.
        """
        name = type(self).__name__
        raise Unsupported("eager numerics", name, "Compile for the CPU, or with numerics='fast'.")

    def start(self) -> None:
        """Begin what takes a while, as a compiling process, beside the stages before; return at once."""

    def prerequisites(self) -> Sequence[Prerequisite]:
        """What it needs of the system, for ``weft doctor``."""
        return ()

    # -- changes to graphs before they are lowered -------------------------------------------------------

    def writes_attention(self, keys: int, *, trains_mask: bool) -> bool:
        """Whether attention in 16 bits over so many keys is to come as matmuls and a softmax.

        Otherwise it comes as a call of torch's library.  ``trains_mask``: it has a mask that gets gradients.
        """
        return False

    def rewrite_functional(
        self, graph_module: torch.fx.GraphModule, *, differentiated: bool
    ) -> None:
        """Change a functional ATen graph in place before gradients are recorded, if they will be."""

    def rewrite_joint(self, graph_module: torch.fx.GraphModule, *, output_count: int) -> None:
        """Change forward and backward together; forward's results are the first of the graph's."""

    def rewrite(self, graph_module: torch.fx.GraphModule) -> None:
        """Change a functional ATen graph in place before it is lowered."""

    def rewrite_frozen(
        self, graph_module: torch.fx.GraphModule, constants: Collection[torch.fx.Node]
    ) -> None:
        """In place of :meth:`rewrite` while :func:`freeze` computes ``constants`` once."""
        self.rewrite(graph_module)

    # -- programs kept for other processes ---------------------------------------------------------------

    def environment(self) -> str | None:
        """What generated code depends on besides the schedule; None: its programs are not kept.

        With a text, programs have an attribute ``generated`` that can be pickled, but for operators and
        constants, and of which :meth:`load` makes the program again.
        """
        return None

    def load(self, generated: Any) -> CompiledProgram:
        """The program that another one, maybe of another process, had as its ``generated``."""
        raise NotImplementedError(f"{type(self).__name__} has an environment(), but no load()")

    # -- programs saved in files -------------------------------------------------------------------------

    def export(self, generated: Any) -> ExportedProgram | None:
        """What :meth:`load_exported` makes a program of without a compiler; None where that can't be done."""
        return None

    def load_exported(self, generated: Any, code: Sequence[bytes]) -> CompiledProgram:
        """The program that :meth:`export` gave, on a machine that has what it needs; the code is run."""
        raise NotImplementedError(f"{type(self).__name__} has no load_exported()")

    def target(self) -> Mapping[str, Sequence[str]]:
        """What exported programs may need and this machine has: by kind, names."""
        return {}
