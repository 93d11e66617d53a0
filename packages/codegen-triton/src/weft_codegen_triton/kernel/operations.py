"""The elementwise operations as Triton expressions, in tables.

And operations that are cheaper in Triton than what they stand for, found before bodies are printed.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from weft_loop_ir.bodies import operation_named
from weft_loop_ir.bodies.patterns import Rewrite, at_least, call, capture, number
from weft_loop_ir.unsupported import Unsupported

UNARY = {
    "logical_not": "{0} == 0",
    "reciprocal": "1.0 / {0}",
    "round": "math.rint({0})",
    "bitwise_not": "~{0}",
    **{
        name: f"tl.{name}({{0}})"
        for name in "exp exp2 log log2 sin cos rsqrt erf floor ceil abs".split()
    },
    **{name: f"weft.{name}({{0}})" for name in "sigmoid digamma sign".split()},
    **{
        name: f"math.{name}({{0}})"
        for name in (
            "trunc expm1 log10 log1p tan asin acos atan sinh cosh tanh asinh acosh atanh erfc erfinv lgamma"
        ).split()
    },
}
BINARY = {
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "mul": "{0} * {1}",
    "bitwise_and": "{0} & {1}",
    "bitwise_or": "{0} | {1}",
    "bitwise_xor": "{0} ^ {1}",
    "left_shift": "{0} << {1}",
    "right_shift": "{0} >> {1}",
    "eq": "{0} == {1}",
    "ne": "{0} != {1}",
    "lt": "{0} < {1}",
    "le": "{0} <= {1}",
    "gt": "{0} > {1}",
    "ge": "{0} >= {1}",
    "logical_and": "({0} != 0) & ({1} != 0)",
    "logical_or": "({0} != 0) | ({1} != 0)",
    "logical_xor": "({0} != 0) ^ ({1} != 0)",
    **{name: f"math.{name}({{0}}, {{1}})" for name in "atan2 hypot copysign nextafter".split()},
}
FLOAT = {
    "neg": "{0} * -1.0",  # Triton's minus takes from 0, which gives 0 the wrong sign
    "floordiv": "weft.float_floordiv({0}, {1})",
    "truncdiv": "math.trunc(weft.divide({0}, {1}))",
    "fmod": "math.fmod({0}, {1})",
    "remainder": "weft.float_remainder({0}, {1})",
    "pow": "math.pow({0}, {1})",
    "maximum": "weft.maximum({0}, {1})",
    "minimum": "weft.minimum({0}, {1})",
    "relu": "weft.maximum({0}, 0.0)",
    "isnan": "{0} != {0}",
    "isinf": 'tl.abs({0}) == float("inf")',
}
INTEGER = {
    "neg": "-{0}",
    "floordiv": "weft.floordiv({0}, {1})",
    "truncdiv": "{0} // {1}",
    "fmod": "{0} % {1}",
    "remainder": "weft.floormod({0}, {1})",
    "pow": "weft.integer_power({0}, {1})",
    "maximum": "tl.maximum({0}, {1})",
    "minimum": "tl.minimum({0}, {1})",
    "relu": "tl.maximum({0}, 0)",
    "isnan": "{0} != {0}",
    "isinf": "{0} != {0}",
    "signbit": "{0} < 0",
    "floor": "{0}",
    "ceil": "{0}",
    "trunc": "{0}",
    "round": "{0}",
}
BOOL = {
    "maximum": "{0} | {1}",
    "minimum": "{0} & {1}",
    "bitwise_not": "{0} == 0",
    "add": "{0} | {1}",
    "mul": "{0} & {1}",
}
HALF = {"erf": "weft.erf_for_half({0})", "exp": "weft.exp_for_half({0})"}
"""Forms on float32 where all that is stored has 16 bits: as precise as these show, in fewer instructions."""
PRECISE = {
    torch.float32: {"sqrt": "tl.sqrt_rn({0})", "signbit": "{0}.to(tl.int32, bitcast=True) < 0"},
    torch.float64: {"sqrt": "tl.sqrt({0})", "signbit": "{0}.to(tl.int64, bitcast=True) < 0"},
}


def template(operation: str, dtype: torch.dtype, for_half: bool = False) -> str:
    """The expression of ``operation`` on operands of ``dtype``, with holes for them.

    ``for_half``: results are stored in 16 bits.  Raises :class:`Unsupported` for an operation without one.
    """
    tables = (
        BOOL if dtype is torch.bool else {},
        HALF if for_half and dtype is torch.float32 else {},
        PRECISE.get(dtype, {}),
        FLOAT if dtype.is_floating_point else INTEGER,
        UNARY,
        BINARY,
    )
    for table in tables:
        if operation in table:
            return table[operation]
    raise Unsupported("no Triton form", f"for {operation} on {dtype}")


# -- short forms ---------------------------------------------------------------------------------------


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
