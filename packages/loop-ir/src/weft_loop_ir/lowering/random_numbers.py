"""Tensors of random numbers that a seed determines: computed where they are used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sympy
import torch

from weft_loop_ir import random_numbers as random_numbers  # defines the operators
from weft_loop_ir.bodies import Value
from weft_loop_ir.expressions import contiguous_stride, dot
from weft_loop_ir.lowering.context import LoweringContext
from weft_loop_ir.lowering.registry import register_lowering
from weft_loop_ir.lowering.tensors import Index, TensorValue
from weft_loop_ir.recording import BodyRecorder

INSTRUCTIONS = 24
"""What a number costs, in a kernel's instructions; the ten rounds are a call where there is a library."""


def _numbers(operation: str) -> Callable[..., TensorValue]:
    def rule(context: LoweringContext, seeds: TensorValue, which: Any, size: Any) -> TensorValue:
        stride = contiguous_stride(context.meta_size())

        def function(ops: BodyRecorder, index: Index) -> Value:
            seed = seeds.load(ops, (sympy.Integer(which),))
            position = ops.index_expr(dot(index, stride, sympy.S.Zero), torch.int64)
            number: Value = getattr(ops, operation)(seed, position)
            return number

        return context.result(function, [context.realize(seeds)], INSTRUCTIONS, costly=True)

    return rule


register_lowering(torch.ops.weft.uniform_at.default)(_numbers("rand"))
register_lowering(torch.ops.weft.normal_at.default)(_numbers("randn"))
