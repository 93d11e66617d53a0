"""Operations that are cheaper in Triton than what they stand for, found before bodies are printed."""

from __future__ import annotations

from dataclasses import replace

import torch
from weft_loop_ir.bodies import operation_named
from weft_loop_ir.bodies.patterns import Rewrite, at_least, call, capture, number

F32 = torch.float32
X = capture()

DIVIDE_BY_LARGE = replace(operation_named("truediv"), name="divide_by_large")
"""A quotient whose divisor is no less than 1, or NaN: no care for subnormal numbers is needed."""
DIVISOR = call("add", at_least(1.0), call("exp", capture()))

EXP_OF_NEGATIVE = replace(operation_named("exp"), name="exp_of_negative")
GELU = replace(operation_named("erf"), name="gelu")
HALF_X = call("mul", X, number(0.5))
TWICE_THE_WEIGHT = call("add", call("erf", call("mul", X, number(0.7071067811865476))), number(1.0))

ALWAYS = (Rewrite(call("truediv", X, DIVISOR, dtype=F32), DIVIDE_BY_LARGE, (X, DIVISOR)),)
FOR_HALF = (
    *ALWAYS,
    Rewrite(call("exp", call("neg", X), dtype=F32), EXP_OF_NEGATIVE, (X,)),
    Rewrite(call("mul", HALF_X, TWICE_THE_WEIGHT, dtype=F32), GELU, (X,)),
)
"""Where results are stored in 16 bits: these forms are as precise as that shows."""
