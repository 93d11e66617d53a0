"""Weights that never change, laid out once as oneDNN wants them.

Only constants that the graph itself holds (frozen ones) qualify.  A convolution with a packed weight gives
its result channels-last, so it is used where that is the layout asked for.
"""

from __future__ import annotations

import torch
from weft_loop_ir import BufferView, ExternCall, Schedule, accepts

from weft_codegen_cpp import _torch
from weft_codegen_cpp.host.extern_calls import ConvolutionCall, LinearCall
from weft_codegen_cpp.host.linear import CONVOLUTION


def packed_weight(call: ExternCall, native: LinearCall, schedule: Schedule) -> torch.Tensor | None:
    """The weight of ``call`` in oneDNN's layout; None if it is not a constant or nothing is gained."""
    image, weight = native.x, native.weight
    constant = schedule.constants.get(weight.buffer)
    if constant is None or not _packs(weight.dtype) or any(n == 0 for n in image.size):
        return None
    value = _window(constant, weight)
    if isinstance(native, ConvolutionCall):
        return _packed_convolution(call, native, value, schedule)
    rows = image.size[0]
    known = int(rows) if rows.is_Integer else None
    return _torch.packed_linear_weight(value.contiguous(), known)


def _packs(dtype: torch.dtype) -> bool:
    return dtype == torch.float32 or (dtype == torch.bfloat16 and _torch.packs_bfloat16())


def _window(constant: torch.Tensor, view: BufferView) -> torch.Tensor:
    size, stride = [int(n) for n in view.size], [int(n) for n in view.stride]
    return constant.as_strided(size, stride, constant.storage_offset() + int(view.offset))


def _packed_convolution(
    call: ExternCall, native: ConvolutionCall, weight: torch.Tensor, schedule: Schedule
) -> torch.Tensor | None:
    image = native.x
    (name,) = call.outputs
    if native.transposed or name is None or not _torch.has_packed_convolution():
        return None
    if not accepts(CONVOLUTION, X=image, W=native.weight, B=native.bias):
        return None
    result = schedule.buffers[name].layout
    if not (_is_channels_last(image.stride) and _is_channels_last(result.stride)):
        return None
    known = all(n.is_Integer for n in image.size)
    size = [int(n) for n in image.size] if known else None
    padding, stride, dilation = (
        [int(n) for n in extents] for extents in (native.padding, native.stride, native.dilation)
    )
    return _torch.packed_convolution_weight(
        weight, padding, stride, dilation, int(native.groups), size
    )


def _is_channels_last(stride: object) -> bool:
    """Whether the channels of an image lie side by side."""
    assert isinstance(stride, tuple)
    return len(stride) == 4 and bool(stride[1] == 1)
