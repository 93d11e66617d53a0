"""Which matmuls and convolutions go to oneDNN instead of torch's BLAS.

torch multiplies float32 matrices with MKL, which runs its AVX2 code on processors that Intel did not
make.  oneDNN chooses by instruction set alone: on an AMD processor with AVX-512 it takes half of MKL's time
(512 x 384 by 384 x 1536 on two threads: 1.3 ms, MKL 2.8 ms), with weights in either order and without packing
them first.  It allocates its result, and a call costs about 8 µs more, so small matmuls stay where they are.
Without AVX-512 MKL's code is what such a processor does best (one thread of a Zen 3: oneDNN takes 0.9 to 1.3
of MKL's time over 13 sizes), so all stay there.  So do those whose left matrix lies transposed, as of a
weight's gradient: the operator copies that first (1024 x 128 transposed by 1024 x 128 on two threads: 0.5 ms,
MKL 0.21 ms).

On one thread torch runs convolutions with 1 x 1 windows as matmuls in MKL; oneDNN takes half of that time
too (512 channels of 28 x 28 to 128: 0.58 ms, MKL 1.03 ms, channels-last 0.46 ms).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import sympy
import torch
from weft_loop_ir import BufferView, ExternCall, Schedule, accepts, plan_memory
from weft_loop_ir.contractions import matmul_operands
from weft_loop_ir.guesses import LIBRARY_EXTENT, guessed

from weft_codegen_cpp import _torch
from weft_codegen_cpp.cpu import cpu_of, has_avx512
from weft_codegen_cpp.options import CppOptions

aten = torch.ops.aten

MATMUL_THRESHOLD = 1 << 20
"""Multiplications from which oneDNN's cost of a call is paid back."""

LINEAR = "mkldnn::_linear_pointwise"
CONVOLUTION = "mkldnn::_convolution_pointwise"


def with_linear_calls(schedule: Schedule, options: CppOptions) -> Schedule:
    """``schedule`` where each matmul that oneDNN is to run allocates its own result."""
    if not uses_onednn(options):
        return schedule
    steps = tuple(
        replace(step, out_variant=None)
        if isinstance(step, ExternCall) and _is_faster(step)
        else step
        for step in schedule.steps
    )
    if steps == schedule.steps:
        return schedule
    return replace(schedule, steps=steps, memory=plan_memory(steps, schedule.buffers))


def uses_onednn(options: CppOptions) -> bool:
    """Whether matmuls go to oneDNN; ``auto`` says so for processors on which MKL holds back."""
    if options.eager_numerics or not _torch.has_linear():
        return False
    if options.matmul_library == "auto":
        return has_avx512() and cpu_of(options).vendor not in (None, "GenuineIntel")
    return options.matmul_library == "onednn"


def _is_faster(call: ExternCall) -> bool:
    operands = linear_arguments(call)
    if operands is None or call.out_variant is None:
        return False
    x, weight, _ = operands
    is_copied = x.stride[1] != 1 and x.size[1] != 1
    return not is_copied and _products((*x.size, weight.size[0])) >= MATMUL_THRESHOLD


def linear_arguments(call: ExternCall) -> tuple[BufferView, BufferView, BufferView | None] | None:
    """``x [m, k]``, ``weight [n, k]`` and ``bias [n]`` of a call that is a linear layer; None else."""
    if call.operator not in (aten.mm.default, aten.addmm.default):
        return None
    if not all(isinstance(a, BufferView) and a.dtype == torch.float32 for a in call.arguments):
        return None
    if any(call.keywords.get(key, 1) != 1 for key in ("beta", "alpha")):
        return None
    x, right, bias = matmul_operands(call)
    if bias is not None and bias.size != (right.size[1],):
        return None
    weight = replace(right, size=right.size[::-1], stride=right.stride[::-1])
    return (x, weight, bias) if accepts(LINEAR, X=x, W=weight, B=bias) else None


def convolves_in_onednn(
    image: BufferView, weight: BufferView, bias: BufferView | None, options: CppOptions
) -> bool:
    """Whether a convolution, not transposed, is handed to oneDNN whatever torch would choose."""
    if not (_torch.has_packed_convolution() and uses_onednn(options)):
        return False
    if image.dtype != torch.float32 or not accepts(CONVOLUTION, X=image, W=weight, B=bias):
        return False
    extents = [*image.size[:1], *image.size[2:], *weight.size]
    return _products(extents) >= MATMUL_THRESHOLD


def _products(extents: Sequence[sympy.Expr]) -> int:
    """The product of ``extents``, in which one that varies counts as :data:`LIBRARY_EXTENT`."""
    return math.prod(guessed(extent, LIBRARY_EXTENT) for extent in extents)
