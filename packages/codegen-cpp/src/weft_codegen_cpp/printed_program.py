"""The C++ of a schedule: its kernels, each that is like another once, and its host program."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import replace

import sympy
import torch
from weft_loop_ir import BufferKind, Kernel, ParallelKernels, Schedule, Unsupported, all_items

from weft_codegen_cpp.cpu import cpu_of
from weft_codegen_cpp.errors import CodegenError
from weft_codegen_cpp.host.host_printer import PrintedHost, print_host
from weft_codegen_cpp.host.linear import with_linear_calls
from weft_codegen_cpp.kernel.kernel_forms import (
    kernel_form,
    used_buffers,
    with_common_extents,
    with_common_offsets,
)
from weft_codegen_cpp.kernel.kernel_printer import PrintedKernel, print_kernel
from weft_codegen_cpp.options import CppOptions
from weft_codegen_cpp.translation_unit import KernelSource, TranslationUnit

INLINED = 16
INLINED_IN_ALL = 192
"""Functions as large as ``exp`` in a kernel, and in all kernels of a program, up to which they are inlined.

The compiler takes 10 ms for each, half of one for a call.  What calls cost, measured on one thread: 3 percent
of a chain of 40 operators, 6 to 9 of gelu, softmax and an LSTM's cell, 20 of sums of columns of tanh.
"""


def print_program(
    schedule: Schedule, constants: Mapping[str, torch.Tensor], options: CppOptions
) -> tuple[TranslationUnit, PrintedHost]:
    """The translation unit of ``schedule``, and its host program apart."""
    bound = {**schedule.constants, **constants}
    for name, buffer in schedule.buffers.items():
        if buffer.kind is BufferKind.CONSTANT and name not in bound:
            raise CodegenError(f"the constant {name} is not bound to a tensor")
        if buffer.layout.device.type != "cpu":
            raise Unsupported("not on the CPU", f"buffer {name}, on {buffer.layout.device}")
    schedule = with_linear_calls(schedule, options)
    kernels, kernels_printed = _print_kernels(schedule, options)
    host = print_host(schedule, kernels, bound, options)
    unit = TranslationUnit(
        schedule.name, kernels_printed, host.source, host.headers, host.table_length
    )
    return unit, host


def _print_kernels(
    schedule: Schedule, options: CppOptions
) -> tuple[dict[str, PrintedKernel], tuple[KernelSource, ...]]:
    """The printed kernel of each step, and one function for all that are alike."""
    kernels: dict[str, PrintedKernel] = {}
    alike: dict[tuple[tuple[str, ...], ...], list[Kernel]] = {}
    known: dict[Hashable, PrintedKernel] = {}
    dtypes = {name: buffer.layout.dtype for name, buffer in schedule.buffers.items()}

    def printed(kernel: Kernel, out_of_line: bool) -> PrintedKernel:
        return print_kernel(
            kernel,
            schedule.buffers,
            cpu_of(options),
            shares_memory=_shares_memory(kernel, schedule),
            out_of_line=out_of_line,
        )

    def printed_once(kernel: Kernel) -> PrintedKernel:
        form = kernel_form(kernel, dtypes)
        if form is None:
            return printed(kernel, out_of_line=False)
        key = form, _shares_memory(kernel, schedule)
        if key not in known:
            known[key] = printed(kernel, out_of_line=False)
        return replace(known[key], name=kernel.name, buffers=used_buffers(kernel))

    for kernel, values in _kernels(schedule, dtypes):
        one = printed_once(kernel)
        users = alike.setdefault((one.fields, one.body), [])
        users.append(kernel)
        kernels[kernel.name] = replace(one, name=users[0].name, values=values)
    counts = [kernels[users[0].name].large_functions for users in alike.values()]
    are_many = sum(count for count in counts if count <= INLINED) > INLINED_IN_ALL
    sources = []
    for count, users in zip(counts, alike.values(), strict=True):
        one = kernels[users[0].name]
        if count > INLINED or (are_many and count):
            one = printed(users[0], out_of_line=True)
        comment = [f"// {s.name}: {', '.join(s.origins) or 'no origin'}\n" for s in users]
        sources.append(KernelSource("".join(comment), one.declaration, one.definition))
    return kernels, tuple(sources)


def _kernels(
    schedule: Schedule, dtypes: Mapping[str, torch.dtype]
) -> Iterator[tuple[Kernel, Mapping[sympy.Symbol, int]]]:
    """Every kernel, with the values of symbols that stand for what the schedule knows."""
    seen: set[str] = set()
    alone = [step for step in schedule.steps if isinstance(step, Kernel)]
    begun = with_common_offsets(alone, dtypes)
    for step in all_items(schedule.steps):
        if isinstance(step, ParallelKernels):
            yield from with_common_extents(step.kernels)
            seen.update(kernel.name for kernel in step.kernels)
        elif isinstance(step, Kernel) and step.name not in seen:
            yield begun.get(step.name, (step, {}))


def _shares_memory(kernel: Kernel, schedule: Schedule) -> bool:
    """Whether the memory plan puts a buffer that ``kernel`` writes where one lies that it reads."""
    offsets = schedule.memory.offsets
    written = {offsets[name] for name in kernel.writes if name in offsets}
    return any(offsets.get(name) in written for name in kernel.reads if name not in kernel.writes)
