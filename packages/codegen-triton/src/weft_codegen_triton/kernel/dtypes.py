"""How dtypes and numbers are written in Triton."""

from __future__ import annotations

import math

import torch
from weft_loop_ir.ops import FLOAT8
from weft_loop_ir.unsupported import Unsupported

TRITON_DTYPES = {
    torch.bool: "tl.int1",
    torch.int8: "tl.int8",
    torch.int16: "tl.int16",
    torch.int32: "tl.int32",
    torch.int64: "tl.int64",
    torch.uint8: "tl.uint8",
    torch.uint16: "tl.uint16",
    torch.uint32: "tl.uint32",
    torch.uint64: "tl.uint64",
    torch.float16: "tl.float16",
    torch.bfloat16: "tl.bfloat16",
    torch.float32: "tl.float32",
    torch.float64: "tl.float64",
}

POINTER_TYPES = {
    torch.bool: "*i1",
    torch.uint8: "*u8",
    torch.uint16: "*u16",
    torch.uint32: "*u32",
    torch.uint64: "*u64",
    torch.int8: "*i8",
    torch.int16: "*i16",
    torch.int32: "*i32",
    torch.int64: "*i64",
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.float32: "*fp32",
    torch.float64: "*fp64",
}
"""How signatures write a pointer to each dtype."""

ATOMIC_ADD = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int32, torch.int64)
"""What the hardware adds atomically."""


def triton_dtype(dtype: torch.dtype) -> str:
    """The name of ``dtype`` in Triton; raises :class:`Unsupported` where it has none.

    Numbers of 8 bits are their bits there: Triton's own saturate, and old GPUs have none.
    """
    if dtype in FLOAT8:
        return TRITON_DTYPES[torch.uint8]
    if dtype not in TRITON_DTYPES:
        raise Unsupported("no Triton kernel handles a dtype", str(dtype))
    return TRITON_DTYPES[dtype]


def pointer_type(dtype: torch.dtype) -> str:
    """The type of a pointer to ``dtype``; raises :class:`Unsupported` where there is none."""
    triton_dtype(dtype)
    return POINTER_TYPES[torch.uint8 if dtype in FLOAT8 else dtype]


def literal(value: bool | int | float) -> str:
    """``value`` as an expression that Triton's compiler reads."""
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    return repr(value)


def wrapped(value: int, dtype: torch.dtype) -> int:
    """``value`` as the integer that its lowest bits are in ``dtype``: Triton takes no other constant."""
    least = torch.iinfo(dtype).min
    return (value - least) % (1 << 8 * dtype.itemsize) + least


def lowest(dtype: torch.dtype) -> str:
    """The identity of a maximum."""
    if dtype.is_floating_point:
        return 'float("-inf")'
    return "0" if dtype is torch.bool else str(torch.iinfo(dtype).min)


def highest(dtype: torch.dtype) -> str:
    """The identity of a minimum."""
    if dtype.is_floating_point:
        return 'float("inf")'
    return "1" if dtype is torch.bool else str(torch.iinfo(dtype).max)
