"""What kernels that do the same on other buffers have in common, known before they are printed.

The kernels of a model's layers are alike: one of them is printed, and the others are its calls.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import torch
from weft_loop_ir import Kernel, LoopBody
from weft_loop_ir.bodies import Access, Instruction, Scalar
from weft_loop_ir.bodies.instructions import Combining


def used_buffers(kernel: Kernel) -> tuple[str, ...]:
    """The buffers that the function of ``kernel`` is given, in order: all but its local ones."""
    used = dict.fromkeys((*kernel.reads, *kernel.writes))
    used |= dict.fromkeys(access.buffer for access in kernel.accesses())
    local = kernel.local_names
    return tuple(name for name in used if name not in local)


def kernel_form(kernel: Kernel, dtypes: Mapping[str, torch.dtype]) -> Hashable | None:
    """What is equal for kernels that are printed as one function; ``dtypes`` are those of buffers.

    None for a kernel with what has no such form: one of another class, scans, numbers of the host.
    """
    if type(kernel) is not Kernel or kernel.holds(Scalar, Combining):
        return None
    used = used_buffers(kernel)
    names = {name: k for k, name in enumerate((*used, *(b.name for b in kernel.local_buffers)))}
    stages = []
    for stage in kernel.stages:
        goes_on = None if stage.goes_on is None else names[stage.goes_on]
        kind = stage.is_reduction, stage.is_sequential, goes_on
        stages.append((stage.inner, _body_form(stage.body, names), kind))
    return (
        kernel.outer,
        tuple(stages),
        tuple((b.dtype, b.size) for b in kernel.local_buffers),
        tuple(dtypes[name] for name in used),
        tuple(names[name] for name in (*kernel.reads, *kernel.writes)),
        len(kernel.reads),
    )


def _body_form(body: LoopBody, names: Mapping[str, int]) -> Hashable:
    return tuple(_instruction_form(i, names) for i in body.instructions), body.result


def _instruction_form(instruction: Instruction, names: Mapping[str, int]) -> Hashable:
    if isinstance(instruction, Access):
        instruction = instruction.to(str(names[instruction.buffer]))
    arguments = tuple(_argument_form(a, names) for a in instruction.arguments)
    return instruction.operation.name, arguments, instruction.dtype


def _argument_form(argument: Any, names: Mapping[str, int]) -> Hashable:
    if isinstance(argument, LoopBody):
        return _body_form(argument, names)
    if isinstance(argument, bool | int | float):  # -0.0 and 0.0, and 1, 1.0 and True, are equal
        return type(argument), repr(argument)
    form: Hashable = argument
    return form
