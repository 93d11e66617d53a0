"""Independent small kernels merged into one: its first programs do what the first one's did, and so on.

Kernels that are alike but for their memory, the updates of parameters of one size say, share their part of
the text: a program finds out whose it is and takes that one's addresses.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import sympy

from weft_codegen_triton.gpu import Gpu
from weft_codegen_triton.kernel.frame import NAME, definition, part_text, program_id
from weft_codegen_triton.kernel.kernel_printer import Function, PrintedKernel

MAX_PROGRAMS = 32
"""Programs for each multiprocessor of a kernel that fills a GPU for long enough without others."""
MAX_PARAMETERS = 256
"""Of a merged kernel: a launch hands over 4 KB at most."""
LITTLE = 64
"""Programs of kernels to which it doesn't matter how many warps each has."""


@dataclass(frozen=True)
class MergedKernels:
    """A kernel, and the positions of those that it stands for."""

    printed: PrintedKernel
    members: tuple[int, ...]


def merge_kernels(kernels: Sequence[PrintedKernel], gpu: Gpu) -> list[MergedKernels]:
    """``kernels``, none of which touches what another one writes, in fewer ones."""
    alone = [k for k, printed in enumerate(kernels) if not _may_merge(printed, gpu)]
    found = [MergedKernels(kernels[k], (k,)) for k in alone]
    alike: dict[tuple[int, int], list[int]] = {}
    for k, printed in enumerate(kernels):
        if k not in alone:
            function = printed.function
            alike.setdefault((function.warps, function.stages), []).append(k)
    for members in _with_little_ones_joined(alike, kernels):
        for batch in _batches(members, kernels):
            if len(batch) == 1:
                found.append(MergedKernels(kernels[batch[0]], (batch[0],)))
            else:
                ordered = _alike_together(batch, kernels)
                found.append(MergedKernels(_merged([kernels[k] for k in ordered]), tuple(ordered)))
    return found


def _with_little_ones_joined(
    alike: Mapping[tuple[int, int], list[int]], kernels: Sequence[PrintedKernel]
) -> Iterator[list[int]]:
    """The groups of kernels by warps and stages, those of few programs in the largest of as many stages."""
    programs = {key: sum(_programs(kernels[k]) for k in alike[key]) for key in alike}
    for stages in dict.fromkeys(stages for _, stages in alike):
        keys = sorted((k for k in alike if k[1] == stages), key=lambda k: -programs[k])
        little = [k for key in keys[1:] if programs[key] <= LITTLE for k in alike[key]]
        yield alike[keys[0]] + little
        yield from (alike[key] for key in keys[1:] if programs[key] > LITTLE)


def _may_merge(printed: PrintedKernel, gpu: Gpu) -> bool:
    """Whether the kernel has one axis of few programs, and no arguments but memory and floats."""
    is_static = all(count.is_Integer for count in printed.counts)
    if printed.scratch or printed.sizes or len(printed.counts) != 1 or not is_static:
        return False
    return 0 < _programs(printed) <= MAX_PROGRAMS * gpu.many_tiles


def _programs(printed: PrintedKernel) -> int:
    return -(-int(printed.counts[0]) // printed.blocks[0])


def _batches(members: Sequence[int], kernels: Sequence[PrintedKernel]) -> Iterator[list[int]]:
    """``members`` in parts that have no more parameters than a launch may."""
    batch: list[int] = []
    parameters = 0
    for member in members:
        count = len(kernels[member].function.parameters)
        if batch and parameters + count > MAX_PARAMETERS:
            yield batch
            batch, parameters = [], 0
        batch.append(member)
        parameters += count
    yield batch


def _alike_together(members: Sequence[int], kernels: Sequence[PrintedKernel]) -> list[int]:
    """``members`` with those of one function side by side."""
    first: dict[Function, int] = {}
    for member in members:
        first.setdefault(kernels[member].function, member)
    return sorted(members, key=lambda k: (first[kernels[k].function], k))


def _merged(kernels: Sequence[PrintedKernel]) -> PrintedKernel:
    """One kernel for ``kernels``, of which those that are alike follow each other."""
    memory: list[tuple[str, str]] = []
    numbers: list[tuple[str, str]] = []
    for k, printed in enumerate(kernels):
        count = len(printed.buffers)
        named = [(f"k{k}_{name}", kind) for name, kind in printed.function.parameters]
        memory += named[:count]
        numbers += named[count:]
    parts: list[str] = []
    lines = [f"    program = {program_id(0)}"]
    start = position = 0
    while position < len(kernels):
        function = kernels[position].function
        alike = position
        while alike < len(kernels) and kernels[alike].function == function:
            alike += 1
        name = f"{NAME}_part{len(parts)}"
        parts.append(part_text(function.template, name, ("program",)))
        programs = _programs(kernels[position])
        lines += _calls(name, function, range(position, alike), start, programs)
        start += programs * (alike - position)
        position = alike
    parameters = (*memory, *numbers)
    template = "\n".join([*parts, definition((name for name, _ in parameters), lines)])
    return PrintedKernel(
        Function(
            template,
            parameters,
            (),
            max(kernels, key=_programs).function.warps,
            any(p.function.checks_indices for p in kernels),
            (),
            (),
            all(p.function.is_repeatable for p in kernels),
            stages=kernels[0].function.stages,
        ),
        tuple(name for p in kernels for name in p.buffers),
        (),
        (),
        tuple(number for p in kernels for number in p.scalars),
        (sympy.Integer(start),),
        (1,),
    )


def _calls(
    name: str, function: Function, members: range, start: int, programs: int
) -> Iterator[str]:
    """The lines by which programs from ``start`` on run the part ``name``, ``programs`` for each member."""
    end = start + programs * len(members)
    names = [parameter for parameter, _ in function.parameters]
    constants = [str(value) for _, value in function.constants]
    own = f"program - {start}" if start else "program"
    yield f"    if (program >= {start}) & (program < {end}):"
    if len(members) == 1:
        arguments = [f"k{members[0]}_{n}" for n in names]
        yield f"        {name}({', '.join([own, *arguments, *constants])})"
        return
    group = f"g{members[0]}"
    yield f"        {group} = ({own}) // {programs}"
    for member in members:
        word = "if" if member == members[0] else "elif"
        is_last = member == members[-1]
        condition = "else" if is_last else f"{word} {group} == {member - members[0]}"
        yield f"        {condition}:"
        for n in names:
            yield f"            {group}_{n} = k{member}_{n}"
    arguments = [f"{group}_{n}" for n in names]
    yield f"        {name}({', '.join([f'({own}) % {programs}', *arguments, *constants])})"
