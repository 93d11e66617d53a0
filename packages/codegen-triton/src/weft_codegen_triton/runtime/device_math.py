"""The device's mathematical functions, by libdevice's names, ``reduce``, and single instructions.

On a GPU they are libdevice's, Triton's, and instructions that Triton's language has no name for; under
Triton's interpreter, which has neither libdevice nor instructions and reduces element by element in Python,
they are torch's functions, plain arithmetic and a reduction by halves.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from triton.language.target_info import cuda_capability_geq

UNARY = (
    "rint trunc expm1 log10 log1p tan asin acos atan sinh cosh tanh asinh acosh atanh erfc erfinv lgamma"
).split()
BINARY = "fmod pow atan2 hypot copysign nextafter".split()
INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)
RENAMED = {"rint": "round"}
"""Functions that torch has under another name."""


def _interpreted(name: str) -> Any:
    """torch's function on the interpreter's values, which hold NumPy arrays."""
    import torch
    from triton.runtime.interpreter import TensorHandle

    function = getattr(torch, RENAMED.get(name, name))

    def call(*operands: Any) -> Any:
        first = operands[0]
        arrays = [torch.from_numpy(o.handle.data.copy()) for o in operands]
        result = function(*arrays).numpy()
        scalar = first.dtype.scalar
        is_block = any(o.type.is_block() for o in operands)
        shape = [int(n) for n in result.shape]
        kind = tl.block_type(scalar, shape) if is_block else scalar
        return tl.tensor(TensorHandle(result, scalar), kind)

    return call


def _reduce_by_halves(operands: Any, axis: int, combine: Any) -> Any:
    """``tl.reduce`` over an extent that is a power of two, with ``combine`` applied to whole halves."""
    from triton.runtime.interpreter import TensorHandle

    several = isinstance(operands, tuple | tl.tuple)
    values = tuple(operands) if several else (operands,)
    dtypes = [v.dtype.scalar for v in values]

    def tensors(arrays: Any) -> list[Any]:
        return [
            tl.tensor(TensorHandle(a, d), tl.block_type(d, [int(n) for n in a.shape]))
            for a, d in zip(arrays, dtypes, strict=True)
        ]

    arrays = [v.handle.data.swapaxes(axis, -1) for v in values]
    while (extent := arrays[0].shape[-1]) > 1:
        low = tensors(a[..., : extent // 2] for a in arrays)
        high = tensors(a[..., extent // 2 :] for a in arrays)
        joined = combine.fn(*low, *high)
        arrays = [j.handle.data for j in (joined if several else (joined,))]
    results = tensors(a[..., 0] for a in arrays)
    return tuple(results) if several else results[0]


def _interpreted_single(block: Any) -> Any:
    """The only element of ``block``, as a number that bounds a loop: the interpreter's own are arrays."""
    from triton.runtime.interpreter import TensorHandle

    scalar = block.dtype.scalar
    return tl.tensor(TensorHandle(block.handle.data.reshape(()), scalar), scalar)


@triton.jit
def _compiled_single(block):  # type: ignore[no-untyped-def]  # Triton reads annotations as its own
    return tl.max(block)


@triton.jit
def _compiled_bound(number):  # type: ignore[no-untyped-def]
    return number


def _libdevice() -> Any:
    from triton.language.extra.cuda import libdevice

    return libdevice


for _name in (*UNARY, *BINARY):
    globals()[_name] = (
        _interpreted(_name) if triton.knobs.runtime.interpret else getattr(_libdevice(), _name)
    )
single: Any = _interpreted_single if triton.knobs.runtime.interpret else _compiled_single
bound: Any = _interpreted_single if triton.knobs.runtime.interpret else _compiled_bound
reduce: Any = _reduce_by_halves if triton.knobs.runtime.interpret else tl.reduce


@triton.jit
def reciprocal(a):  # type: ignore[no-untyped-def]
    """``1 / a`` in float32 within an ulp, for ``a`` whose reciprocal is neither too large nor too small."""
    if INTERPRETED:
        result = 1.0 / a
    else:
        result = tl.inline_asm_elementwise(
            "rcp.approx.ftz.f32 $0, $1;", "=r,r", [a], dtype=tl.float32, is_pure=True, pack=1
        )
    return result


@triton.jit
def bits_in(word, mask, others):  # type: ignore[no-untyped-def]
    """``(word & mask) ^ others`` of 32 bits, in one instruction."""
    if INTERPRETED:
        result = (word & mask) ^ others
    else:
        result = tl.inline_asm_elementwise(
            "lop3.b32 $0, $1, $2, $3, 0x6A;",
            "=r,r,r,r",
            [word, mask, others],
            dtype=tl.int32,
            is_pure=True,
            pack=1,
        )
    return result


@triton.jit
def bfloat16_of_bits(word, shift, width, signed, added, constant):  # type: ignore[no-untyped-def]
    """bfloat16 of ``width`` bits of 32 above the lowest ``shift``, and a number ``added``, where exact.

    Two are made at once: bits are put below 2**7 in both halves of a register, and ``constant``, the bits of
    what is to be added then, is added.  The eighth bit, which has no place there, makes 2**8 of another 2**7,
    which is taken away.
    """
    mask: tl.constexpr = (1 << width) - 1
    sign: tl.constexpr = (1 << (width - 1)) if signed else 0
    last: tl.constexpr = 0x43004300 if signed else 0x43804380
    if INTERPRETED or not cuda_capability_geq(8, 0):
        number = (((word >> shift) & mask) ^ sign) - sign
        result = (number.to(tl.float32) + added).to(tl.bfloat16)
    elif width < 8:
        half = (word >> (shift // 16 * 16)).to(tl.int16)
        result = tl.inline_asm_elementwise(
            """
            {
                .reg .b32 bits, one;
                mov.b32 one, 0x3F803F80;
                shr.u32 bits, $1, $2;
                lop3.b32 bits, bits, $4, $6, 0x6A;
                fma.rn.bf16x2 $0, bits, one, $8;
            }
            """,
            "=r,r,r,r,r,r,r,r,r,r",
            [half, shift % 16, mask * 0x10001, (0x4300 | sign) * 0x10001, constant],
            dtype=tl.bfloat16,
            is_pure=True,
            pack=2,
        )
    else:
        half = (word >> (shift // 16 * 16)).to(tl.int16)
        result = tl.inline_asm_elementwise(
            """
            {
                .reg .b32 bits, last, minus;
                mov.b32 minus, 0xBF80BF80;
                shr.u32 bits, $1, $2;
                lop3.b32 last, bits, 0x00800080, $4, 0x6A;
                lop3.b32 bits, bits, 0x007F007F, 0x43004300, 0xEA;
                fma.rn.bf16x2 $0, last, minus, bits;
            }
            """,
            "=r,r,r,r,r,r",
            [half, shift % 16, last],
            dtype=tl.bfloat16,
            is_pure=True,
            pack=2,
        )
        if constant != 0:
            result = tl.inline_asm_elementwise(
                "{ .reg .b32 one; mov.b32 one, 0x3F803F80; fma.rn.bf16x2 $0, $1, one, $2; }",
                "=r,r,r,r",
                [result, constant],
                dtype=tl.bfloat16,
                is_pure=True,
                pack=2,
            )
    return result


@triton.jit
def float16_of_bits(word, shift, width, signed, added, constant):  # type: ignore[no-untyped-def]
    """As :func:`bfloat16_of_bits`, in float16, with bits below 2**10."""
    mask: tl.constexpr = (1 << width) - 1
    sign: tl.constexpr = (1 << (width - 1)) if signed else 0
    if INTERPRETED:
        number = (((word >> shift) & mask) ^ sign) - sign
        result = (number.to(tl.float32) + added).to(tl.float16)
    else:
        half = (word >> (shift // 16 * 16)).to(tl.int16)
        result = tl.inline_asm_elementwise(
            """
            {
                .reg .b32 bits;
                shr.u32 bits, $1, $2;
                lop3.b32 bits, bits, $4, $6, 0x6A;
                add.rn.f16x2 $0, bits, $8;
            }
            """,
            "=r,r,r,r,r,r,r,r,r,r",
            [half, shift % 16, mask * 0x10001, (0x6400 | sign) * 0x10001, constant],
            dtype=tl.float16,
            is_pure=True,
            pack=2,
        )
    return result


@triton.jit
def share(a, b):  # type: ignore[no-untyped-def]
    """``a * b + 0.5`` in float32, from 0 to 1; 0 for NaN."""
    if INTERPRETED:
        result = tl.minimum(tl.maximum(a * b + 0.5, 0.0), 1.0)
    else:
        result = tl.inline_asm_elementwise(
            "fma.rn.sat.f32 $0, $1, $2, 0f3F000000;",
            "=r,r,r",
            [a, b],
            dtype=tl.float32,
            is_pure=True,
            pack=1,
        )
    return result


@triton.jit
def round_to_bfloat16(a):  # type: ignore[no-untyped-def]
    """float32 rounded to bfloat16, in float32 again: two at once, where one at once is slow."""
    if INTERPRETED or a.numel == 1:
        result = a.to(tl.bfloat16).to(tl.float32)
    elif cuda_capability_geq(8, 0):
        result = tl.inline_asm_elementwise(
            """
            {
                .reg .b32 pair;
                cvt.rn.bf16x2.f32 pair, $3, $2;
                shl.b32 $0, pair, 16;
                and.b32 $1, pair, 0xffff0000;
            }
            """,
            "=r,=r,r,r",
            [a],
            dtype=tl.float32,
            is_pure=True,
            pack=2,
        )
    else:
        result = a.to(tl.bfloat16).to(tl.float32)
    return result


@triton.jit
def round_to_float16(a):  # type: ignore[no-untyped-def]
    """float32 rounded to float16, in float32 again."""
    if INTERPRETED or a.numel == 1:
        result = a.to(tl.float16).to(tl.float32)
    elif cuda_capability_geq(8, 0):
        result = tl.inline_asm_elementwise(
            """
            {
                .reg .b32 pair;
                .reg .b16 low, high;
                cvt.rn.f16x2.f32 pair, $3, $2;
                mov.b32 {low, high}, pair;
                cvt.f32.f16 $0, low;
                cvt.f32.f16 $1, high;
            }
            """,
            "=r,=r,r,r",
            [a],
            dtype=tl.float32,
            is_pure=True,
            pack=2,
        )
    else:
        result = a.to(tl.float16).to(tl.float32)
    return result


@triton.jit
def float8_bits(a, digits, bias):  # type: ignore[no-untyped-def]
    """The bits but the sign of float32 rounded to ``digits`` binary places, ties to even, in 32 bits.

    Those of what is too large, or NaN, are any.
    """
    if INTERPRETED or not cuda_capability_geq(8, 9):
        bits = a.to(tl.int32, bitcast=True) & 0x7FFFFFFF
        shift: tl.constexpr = 23 - digits
        half: tl.constexpr = (1 << (shift - 1)) - 1
        rounded = (bits + half + ((bits >> shift) & 1) - ((127 - bias) << 23)) >> shift
        # an addition rounds at the place of denormals
        magic: tl.constexpr = (127 + shift - bias + 1) << 23
        added = tl.full([1], magic, tl.int32).to(tl.float32, bitcast=True)
        denormal = (bits.to(tl.float32, bitcast=True) + added).to(tl.int32, bitcast=True) - magic
        result = tl.where(bits < ((128 - bias) << 23), denormal, rounded)
    elif digits == 3:
        result = a.to(tl.float8e4nv).to(tl.uint8, bitcast=True).to(tl.int32) & 0x7F
    else:
        result = a.to(tl.float8e5).to(tl.uint8, bitcast=True).to(tl.int32) & 0x7F
    return result


@triton.jit
def float8_within(a, digits, bias):  # type: ignore[no-untyped-def]
    """The bits of float32 that is not too large, or NaN, of which an instruction has one."""
    if INTERPRETED or not cuda_capability_geq(8, 9):
        sign = (a.to(tl.int32, bitcast=True) >> 24) & 0x80
        magnitude = a.to(tl.int32, bitcast=True) & 0x7FFFFFFF
        bits = tl.where(magnitude > 0x7F800000, 0x7F, float8_bits(a, digits, bias))
        result = (bits | sign).to(tl.uint8)
    elif digits == 3:
        result = a.to(tl.float8e4nv).to(tl.uint8, bitcast=True)
    else:
        result = a.to(tl.float8e5).to(tl.uint8, bitcast=True)
    return result
