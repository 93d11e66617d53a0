"""Pooling of sizes that are symbols, before torch 2.13: how much a window leaves over is not asked.

There the meta functions divide a size by a stride and look whether a rest is left: a guard by which each rest
gets a graph of its own, though the number of windows is one quotient for all.  They are given an image in its
stead which that many windows cover whole, so that there is no rest, and everything else that they check is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ..._torch import OpOverload, argument_names, suggested_format
from ..._torch.fakes import POOLING_ASKS_FOR_RESTS
from .symbolic_views import has_symbols

aten = torch.ops.aten

_FORWARD = {
    aten.avg_pool2d.default: 2,
    aten.avg_pool3d.default: 3,
    aten.max_pool2d_with_indices.default: 2,
    aten.max_pool3d_with_indices.default: 3,
}
"""Over how many dims windows go."""

_BACKWARD = {
    aten.avg_pool2d_backward.default: 2,
    aten.avg_pool3d_backward.default: 3,
    aten.max_pool2d_with_indices_backward.default: 2,
    aten.max_pool3d_with_indices_backward.default: 3,
}

Arguments = tuple[Sequence[Any], Mapping[str, Any]]


def covers_windows(operator: Any, args: Sequence[Any]) -> bool:
    """Whether what an operator is given is to be made :func:`whole`."""
    if not POOLING_ASKS_FOR_RESTS:
        return False
    if operator in _FORWARD:
        return has_symbols(args)
    return operator in _BACKWARD and has_symbols(args[1:])


def whole(operator: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Arguments:
    """The arguments with an image that the windows cover; as they are where torch is to say what is wrong.

    They stay also where a single window lies in padding alone, of which the image would have no element.
    """
    names = argument_names(operator)
    given = dict(zip(names, args, strict=False)) | dict(kwargs)
    image, ceil = given["self"], given.get("ceil_mode", False)
    count = _FORWARD.get(operator) or _BACKWARD[operator]
    kernel = _numbers(given["kernel_size"], count)
    strides = _numbers(given.get("stride") or kernel, count)
    paddings = _numbers(given.get("padding", 0), count)
    dilations = _numbers(given.get("dilation", 1), count)
    if image.dim() not in (count + 1, count + 2) or min(*strides, *kernel, *dilations) < 1:
        return args, kwargs
    reaches = [d * (k - 1) + 1 for d, k in zip(dilations, kernel, strict=True)]
    sizes = list(image.shape[:-count])
    for size, reach, stride, padding in zip(
        image.shape[-count:], reaches, strides, paddings, strict=True
    ):
        windows = _windows(size, reach, stride, padding, ceil)
        covered = (windows - 1) * stride + reach - 2 * padding
        if windows < 1 or covered < 1:
            return args, kwargs
        sizes.append(covered)
    changed = {
        "self": torch.empty(
            sizes,
            dtype=image.dtype,
            device=image.device,
            memory_format=suggested_format(image),
        ),
        "ceil_mode": False,
    }
    changed_args = [changed.get(name, n) for name, n in zip(names, args, strict=False)]
    return changed_args, {name: changed.get(name, n) for name, n in kwargs.items()}


def of_image(operator: OpOverload, args: Sequence[Any], result: Any) -> Any:
    """What a pooling, or its backward, gives where it was given an image made :func:`whole`."""
    if operator in _FORWARD:
        return result
    image = args[1]
    return torch.empty(
        image.shape, dtype=image.dtype, device=image.device, memory_format=suggested_format(image)
    )


def _windows(size: Any, reach: int, stride: int, padding: int, ceil: bool) -> Any:
    """How many windows of ``reach`` elements there are over ``size`` elements."""
    windows = (size + 2 * padding - reach + (stride - 1 if ceil else 0)) // stride + 1
    if ceil and (windows - 1) * stride >= size + padding:
        return windows - 1  # the last would begin behind the image
    return windows


def _numbers(given: Any, count: int) -> list[int]:
    """A number a dim."""
    numbers = [given] if isinstance(given, int) else list(given)
    return numbers * count if len(numbers) == 1 else numbers
