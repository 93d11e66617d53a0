"""Operators whose form in Python, which torch runs where sizes are symbols, computes something else."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from ._torch import OpOverload, resized_shape, without_onednn, without_python_forms
from .recurrent_layers import call_by_layers, with_states_by_layer
from .unsupported import Unsupported

aten = torch.ops.aten

_RESIZING: dict[str, tuple[OpOverload | None, ...]] = {
    "nearest": (
        aten.upsample_nearest1d.default,
        aten.upsample_nearest2d.default,
        aten.upsample_nearest3d.default,
    ),
    "nearest-exact": (
        aten._upsample_nearest_exact1d.default,
        aten._upsample_nearest_exact2d.default,
        aten._upsample_nearest_exact3d.default,
    ),
    "linear": (aten.upsample_linear1d.default, None, None),
    "bilinear": (None, aten.upsample_bilinear2d.default, None),
    "bicubic": (None, aten.upsample_bicubic2d.default, None),
    "trilinear": (None, None, aten.upsample_trilinear3d.default),
}
"""What ``interpolate`` calls by its mode, for one, two and three dims.

Kernels may compute with the ratio of the sizes in place of a factor; torch's forms never do.
"""

_DIFFERENT = frozenset(
    {
        "dropout",  # the form draws numbers to drop everything
        "hardshrink",  # the form takes integers, as no kernel does
        "multi_margin_loss",  # the form has gradients where a margin is just met
        "multilabel_margin_loss",  # the form counts labels that stand behind the first -1
        "multilabel_margin_loss_forward",
        *(op.overloadpacket.__name__ for ops in _RESIZING.values() for op in ops if op is not None),
    }
)
"""By name of the function or the operator."""

_TAKES_NO_SYMBOLS = "vec"
"""An overload that is written for numbers in C++."""


def as_kernels_compute(function: Any) -> contextlib.AbstractContextManager[None]:
    """A context in which ``function`` is recorded as the operators that eager calls, or a call of one."""
    packet = getattr(function, "overloadpacket", function)
    if isinstance(function, OpOverload) and function._overloadname == _TAKES_NO_SYMBOLS:
        return contextlib.nullcontext()
    if getattr(packet, "__name__", None) in _DIFFERENT:
        return without_python_forms()
    return contextlib.nullcontext()


def _needs_gradients(arguments: Any) -> bool:
    if isinstance(arguments, (tuple, list)):
        return any(map(_needs_gradients, arguments))
    return isinstance(arguments, torch.Tensor) and arguments.requires_grad


def call_as_kernels_compute(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    """What ``interpolate`` gives by factors, or of integers, of symbolic sizes; NotImplemented for others.

    And what recurrent networks give with dropout between their layers, and ``lstm`` where it trains, step
    by step.
    """
    result = call_by_layers(function, args, kwargs, _called)
    if result is not NotImplemented:
        return result
    if function is torch.lstm:
        trains = torch.is_grad_enabled() and _needs_gradients(args)
        with without_onednn() if trains else contextlib.nullcontext():
            return with_states_by_layer(*function(*args, **kwargs))
    if function is F.scaled_dot_product_attention and 1.0 in (*args[4:5], kwargs.get("dropout_p")):
        with without_python_forms():  # their dropout draws numbers to drop everything
            return function(*args, **kwargs)
    if function in _POOLING:
        return _pooled(function, args, kwargs)
    if function not in (F.interpolate, F.upsample, F.upsample_nearest):
        return NotImplemented
    named = _signature(function).bind(*args, **kwargs)
    named.apply_defaults()
    given = named.arguments
    tensor, factors = given["input"], given["scale_factor"]
    sizes = tensor.shape[2:]
    is_known = all(isinstance(n, int) for n in sizes) and _are_known(factors)
    if (is_known or factors is None) and not _holds_integers(tensor):
        return NotImplemented
    if given.get("recompute_scale_factor") or given.get("antialias"):
        return NotImplemented
    operators = _RESIZING.get(given.get("mode", "nearest"))
    operator = operators[len(sizes) - 1] if operators is not None else None
    if operator is None:
        return NotImplemented
    corners = [] if "nearest" in given.get("mode", "nearest") else [bool(given["align_corners"])]
    if factors is None:
        size = given["size"]
        size = list(size) if isinstance(size, (tuple, list)) else [size] * len(sizes)
        with without_python_forms():
            return operator(tensor, size, *corners)
    if not isinstance(factors, (tuple, list)):
        factors = [factors] * len(sizes)
    if not _are_known(factors):
        raise Unsupported("factor that varies", f"{factors} of interpolate")
    factors = [float(factor) for factor in factors]
    with without_python_forms():
        return operator(tensor, resized_shape(tensor.shape, factors), *corners, *factors)


def _called(function: Callable[..., Any], *args: Any) -> Any:
    result = call_as_kernels_compute(function, args, {})
    return function(*args) if result is NotImplemented else result


def _are_known(factors: Any) -> bool:
    if isinstance(factors, (tuple, list)):
        return all(map(_are_known, factors))
    return factors is None or type(factors) in (int, float)


_GIVES_NO_VIEW = frozenset(
    "matmul __matmul__ __rmatmul__ matrix_power scaled_dot_product_attention".split()
)
"""By name of the function or the method: forms in Python that end with a view of what was computed."""


def as_no_view(name: str, result: Any) -> Any:
    """What a call gave, as the new tensor that eager's kernels give.

    A view that was made without gradients could not be written to where they are on.
    """
    if name not in _GIVES_NO_VIEW or not isinstance(result, torch.Tensor) or not result._is_view():
        return result
    return aten._unsafe_view(result, result.shape)


_POOLING = (torch.max_pool1d, F.max_pool1d)
"""Eager has a kernel without gradients, for floats; the one that gives indices too takes integers."""


def _pooled(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What ``max_pool1d`` gives: contiguous by the kernel that eager has without gradients on the CPU."""
    if _holds_integers(args[0]):
        raise Unsupported(
            "operands that the operator refuses", "max_pool1d of integers", "pool a float tensor"
        )
    result = function(*args, **kwargs)
    is_of_kernel = isinstance(result, torch.Tensor) and result.device.type == "cpu"
    if is_of_kernel and not (torch.is_grad_enabled() and _needs_gradients(args)):
        return result.contiguous()
    return result


def _holds_integers(tensor: Any) -> bool:
    return isinstance(tensor, torch.Tensor) and not tensor.is_floating_point()


_signature = functools.cache(inspect.signature)
