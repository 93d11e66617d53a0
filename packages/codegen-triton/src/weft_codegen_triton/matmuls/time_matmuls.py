"""Times the forms that a contraction may run in: the library's call, and kernels of our own in several tiles.

All run on random values; memory is taken in turns from several sets, so that the second-level cache helps
none more than it would in a program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import sympy
import torch
from weft_loop_ir import Buffer, BufferView, ExternCall, Kernel, SizeFloat
from weft_loop_ir.bodies import Scalar
from weft_loop_ir.contractions import Contraction

from weft_codegen_triton.gpu import Gpu
from weft_codegen_triton.kernel.frame import RowLimits
from weft_codegen_triton.kernel.kernel_printer import Function, PrintedKernel, print_kernel
from weft_codegen_triton.matmuls.find_matmuls import MatmulKernel
from weft_codegen_triton.matmuls.precision import Precision
from weft_codegen_triton.matmuls.print_matmul import print_matmul
from weft_codegen_triton.runtime.autotuning import LAUNCHES, Clock, Run

UNCACHED = 3
"""Sets of memory as large as so many of a GPU's caches: none of them is in one when its turn comes."""
MAX_BYTES = 8 << 30
"""Of the memory that a problem touches, to be timed."""

Launcher = Callable[..., None]
Loaded = tuple[PrintedKernel, Launcher]
Sizes = Mapping[sympy.Symbol, int]


class KernelLoader(Protocol):
    """The device: compiles functions, gives their launchers, and the current stream."""

    @property
    def name(self) -> str:
        """By which choices are kept."""
        ...

    @property
    def gpu(self) -> Gpu: ...

    def load_each(self, functions: Mapping[str, Function]) -> dict[str, Launcher | None]:
        """The functions' launchers; None for those that fail to compile or do not fit the device."""
        ...

    def stream(self) -> int: ...


def can_be_timed(forms: Sequence[MatmulKernel]) -> bool:
    """Whether the kernels need nothing but memory and sizes."""
    steps = [step for form in forms for step in (form, *form.replaces)]
    if any(isinstance(step, Kernel) and step.holds(Scalar) for step in steps):
        return False
    return not any(isinstance(a, SizeFloat) for a in forms[0].call.leaves)


class StepTimer:
    """Runs steps of a schedule on random values of given sizes, by ``buffers``, and takes their time."""

    def __init__(
        self,
        steps: Iterable[Kernel | ExternCall],
        buffers: Mapping[str, Buffer],
        device: KernelLoader,
        sizes: Sizes,
        clock: Clock,
    ) -> None:
        """``steps`` are all that may be timed."""
        self._clock = clock
        self._device = device
        self._buffers = buffers
        self._sizes = sizes
        names: set[str] = set()
        for step in steps:
            if isinstance(step, Kernel):
                names.update((*step.reads, *step.writes))
            else:
                names.update(n for n in step.outputs if n is not None)
                names.update(view.buffer for view in step.views)
        self._names = sorted(names)

    @property
    def bytes(self) -> int:
        """Of all buffers together."""
        return sum(self._bytes(self._buffers[n]) for n in self._names)

    def _number(self, expression: Any) -> int:
        return int(sympy.sympify(expression).subs(self._sizes))

    def _bytes(self, buffer: Buffer) -> int:
        extents = [self._number(n) for n in buffer.layout.size]
        strides = [self._number(n) for n in buffer.layout.stride]
        last = sum((n - 1) * s for n, s in zip(extents, strides, strict=True))
        return (last + 1) * buffer.layout.dtype.itemsize

    def milliseconds(
        self, steps: Sequence[Kernel | ExternCall], launchers: Mapping[str, Loaded]
    ) -> float:
        """The median time of ``steps``; ``launchers`` has the kernels among them, by name."""
        uncached = UNCACHED * self._device.gpu.l2_bytes
        count = max(1, min(LAUNCHES, uncached // max(self.bytes, 1)))
        sets = [self._memory() for _ in range(count)]
        runs = [self._run(steps, memory, launchers) for memory in sets]
        return self._clock(runs, next(iter(sets[0].values())).device)

    def _memory(self) -> dict[str, torch.Tensor]:
        return {name: self._random(self._buffers[name]) for name in self._names}

    def _random(self, buffer: Buffer) -> torch.Tensor:
        layout = buffer.layout
        extents, strides = (
            [self._number(n) for n in numbers] for numbers in (layout.size, layout.stride)
        )
        tensor = torch.empty_strided(extents, strides, dtype=layout.dtype, device=layout.device)
        return tensor.normal_() if layout.dtype.is_floating_point else tensor.zero_()

    def _run(
        self,
        steps: Sequence[Kernel | ExternCall],
        memory: Mapping[str, torch.Tensor],
        launchers: Mapping[str, Loaded],
    ) -> Run:
        """What runs ``steps`` once."""
        runs = [
            self._call(step, memory)
            if isinstance(step, ExternCall)
            else self._launch(*launchers[step.name], memory)
            for step in steps
        ]

        def run() -> None:
            for one in runs:
                one()

        return run

    def _call(self, call: ExternCall, memory: Mapping[str, torch.Tensor]) -> Run:
        arguments, keywords = call.with_leaves(lambda a: self._argument(a, memory))
        operator: Callable[..., Any] = call.operator
        if call.out_variant is not None:
            operator = call.out_variant
            keywords[call.out_name] = memory[str(call.outputs[0])]

        def run() -> None:
            operator(*arguments, **keywords)

        return run

    def _argument(self, argument: Any, memory: Mapping[str, torch.Tensor]) -> Any:
        if isinstance(argument, BufferView):
            size, stride = (
                [self._number(n) for n in numbers] for numbers in (argument.size, argument.stride)
            )
            return memory[argument.buffer].as_strided(size, stride, self._number(argument.offset))
        if isinstance(argument, sympy.Expr):
            return self._number(argument)
        return argument

    def _launch(
        self, printed: PrintedKernel, launcher: Launcher, memory: Mapping[str, torch.Tensor]
    ) -> Run:
        blocks = zip(printed.counts, printed.blocks, strict=True)
        grid = [-(-self._number(count) // block) for count, block in blocks]
        columns, rows = (*grid, 1)[:2]
        device = next(iter(memory.values())).device
        scratch = [
            torch.empty(self._number(s.elements), dtype=s.dtype, device=device)
            for s in printed.scratch
        ]
        tensors = [*(memory[n] for n in printed.buffers), *scratch]
        arguments = [t.data_ptr() for t in tensors]
        arguments += [self._number(size) for size in printed.sizes]

        def run() -> None:
            assert len(tensors) <= len(arguments)  # keeps the memory
            launcher(self._device.stream(), columns, rows, *arguments)

        return run


class Problem(StepTimer):
    """A contraction and the loops around it: ``steps`` are what ``forms`` replace."""

    def __init__(
        self,
        forms: Sequence[MatmulKernel],
        buffers: Mapping[str, Buffer],
        device: KernelLoader,
        sizes: Sizes,
        clock: Clock,
    ) -> None:
        joined = {id(old): (old, new) for form in forms for old, new in form.joined}
        self.steps = [*_in_order(forms), *(old for old, _ in joined.values())]
        self._joined = {
            id(old): replace(new, name=f"{new.name}_of_tiles") for old, new in joined.values()
        }
        made = {buffer.name: buffer for form in forms for buffer in form.made}
        largest = {n: max(b, buffers[n], key=_elements) for n, b in made.items()}
        every = [*forms, *self.steps, *self._joined.values()]
        super().__init__(every, {**buffers, **largest}, device, sizes, clock)
        self._groups = {
            f.contraction.groups.buffer: f.contraction for f in forms if f.contraction.groups
        }

    @property
    def kernels(self) -> list[Kernel]:
        """Those among the steps, and what takes the place of some."""
        own = [step for step in self.steps if isinstance(step, Kernel)]
        return [*own, *self._joined.values()]

    def milliseconds_with(
        self, form: MatmulKernel | None, launchers: Mapping[str, Loaded]
    ) -> float:
        """The median time of the steps with ``form`` in place of those that it replaces.

        ``launchers`` has the kernels that are not the library's, by name.
        """
        steps: list[Kernel | ExternCall] = list(self.steps)
        if form is not None:
            last, gone = form.replaces[-1], {id(step) for step in form.replaces[:-1]}
            steps = [form if s is last else s for s in steps if id(s) not in gone]
            changed = {id(old): self._joined[id(old)] for old, _ in form.joined}
            steps = [changed.get(id(step), step) for step in steps]
        return self.milliseconds(steps, launchers)

    def _memory(self) -> dict[str, torch.Tensor]:
        tensors = super()._memory()
        for name, contraction in self._groups.items():
            tensors[name].copy_(self._ends(contraction, tensors[name]))
        return tensors

    def _ends(self, contraction: Contraction, like: torch.Tensor) -> torch.Tensor:
        """Groups of as many rows."""
        rows = self._number(contraction.rows)
        numbers = torch.arange(1, like.numel() + 1, dtype=like.dtype, device=like.device)
        return (numbers * rows // like.numel()).view(like.shape)


def _elements(buffer: Buffer) -> int:
    return int(sympy.prod(buffer.layout.size))


def print_step(
    kernel: Kernel, buffers: Mapping[str, Buffer], limits: RowLimits, precision: Precision
) -> PrintedKernel:
    """The function of a step, or of a form."""
    if isinstance(kernel, MatmulKernel):
        return print_matmul(kernel, buffers, precision)
    return print_kernel(kernel, buffers, limits)


def _in_order(forms: Sequence[MatmulKernel]) -> list[Kernel | ExternCall]:
    """The steps that ``forms`` replace: those before the library's call, it, and those after it."""
    call = forms[0].call
    before: dict[int, Kernel | ExternCall] = {}
    after: dict[int, Kernel | ExternCall] = {}
    for form in forms:
        position = next(k for k, step in enumerate(form.replaces) if step is call)
        before.update((id(step), step) for step in form.replaces[:position])
        after.update((id(step), step) for step in form.replaces[position + 1 :])
    return [*before.values(), call, *after.values()]
