"""The device's mathematical functions, by libdevice's names, and ``reduce``.

On a GPU they are libdevice's and Triton's; under Triton's interpreter, which has no libdevice and reduces
element by element in Python, they are torch's functions and a reduction by halves.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language

UNARY = (
    "rint trunc expm1 log10 log1p tan asin acos atan sinh cosh tanh asinh acosh atanh erfc erfinv lgamma"
).split()
BINARY = "fmod pow atan2 hypot copysign nextafter".split()
RENAMED = {"rint": "round"}
"""Functions that torch has under another name."""


def _interpreted(name: str) -> Any:
    """torch's function on the interpreter's values, which hold NumPy arrays."""
    import torch
    import triton.language as tl
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
    import triton.language as tl
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


def _libdevice() -> Any:
    from triton.language.extra.cuda import libdevice

    return libdevice


for _name in (*UNARY, *BINARY):
    globals()[_name] = (
        _interpreted(_name) if triton.knobs.runtime.interpret else getattr(_libdevice(), _name)
    )
reduce: Any = _reduce_by_halves if triton.knobs.runtime.interpret else triton.language.reduce
