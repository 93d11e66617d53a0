"""Strides, sizes and dtypes of results where torch's meta functions promise others than eager gives, or none.

``torch.roll`` of a channels-last image is channels-last, ``copysign(x, y)`` of a transposed ``x`` and a row
``y`` is transposed.  A program may read strides (``is_contiguous``, ``as_strided``), so fakes have eager's.
Found on the CPU by ``tests/opinfo/layout_report.py``, on torch 2.11, 2.13 and 2.14.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ..._torch import (
    OpOverload,
    argument_names,
    checked_expand,
    native_multi_head_attention,
    suggested_format,
)
from ..._torch.fakes import FAKES_TAKE_SIZES_OF_DATA
from ..._torch.symbols import guard_or_false, has_unbacked_symbols
from .symbolic_views import (
    expanded,
    has_backed_symbols,
    has_symbols,
    have_symbols,
    permuted,
    squeezed,
    transposed,
    unbound,
    unsqueezed,
    viewed,
)

aten = torch.ops.aten
Given = Mapping[str, Any]
Layout = Callable[[Given, torch.Tensor], torch.Tensor | None]
"""A fake with the strides of a result, from the operands by name and the promised result; None: these."""


def has_eager_strides(operator: Any) -> bool:
    """Whether what torch's meta function promises for an operator may be relied on."""
    return operator not in _LAYOUTS


def with_eager_strides(
    operator: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any
) -> Any:
    """A fake result, or the first of several, with the strides that eager gives."""
    layout = _LAYOUTS[operator]
    several = isinstance(result, tuple)
    promised = result[0] if several else result
    if promised.device.type != "cpu" or (promised.dim() < 2 and not _is_expanded(promised)):
        return result
    given = dict(zip(argument_names(operator), args, strict=False)) | dict(kwargs)
    like = layout(given, promised)
    if like is None or like.shape != promised.shape or like.stride() == promised.stride():
        return result
    mended = promised.new_empty_strided(promised.shape, like.stride())
    return (mended, *result[1:]) if several else mended


def as_kernel_lies(target: Any, result: Any) -> Any:
    """What a function gave of fakes by operators that lie otherwise than the kernel that eager calls.

    ``max_pool1d`` has a kernel of its own on the CPU where no gradients are asked for.  Torch 2.11's steps
    of ``lstm`` where sizes are symbols leave a dim of size 1 in its states.  Those of ``matmul`` there give a
    view of what was computed, which could not be written to with gradients where it was made without.
    """
    name = target if isinstance(target, str) else getattr(target, "__name__", "")
    if name in _GIVES_NO_VIEW and isinstance(result, torch.Tensor) and result._is_view():
        return aten._unsafe_view(result, result.shape)
    if target is torch.nn.functional.one_hot:
        return torch.empty_like(result, memory_format=torch.contiguous_format)
    if target in _MAX_POOL_1D and isinstance(result, torch.Tensor):
        is_of_kernel = result.device.type == "cpu" and not result.requires_grad
        return result.contiguous() if is_of_kernel else result
    if target is torch.lstm:
        output, *states = result
        return (output, *(s.squeeze(1).clone() if s.dim() > 3 else s for s in states))
    return result


_MAX_POOL_1D = (torch.max_pool1d, torch.nn.functional.max_pool1d)
_GIVES_NO_VIEW = frozenset(
    "matmul __matmul__ __rmatmul__ matrix_power scaled_dot_product_attention".split()
)


def with_undefined(
    target: Any, args: Sequence[Any], keywords: Mapping[str, Any], result: Any
) -> Any:
    """What a function gave of fakes, with None for a tensor that eager's kernel leaves undefined.

    Attention leaves its weights so where they are not asked for.
    """
    if target is not native_multi_head_attention:
        return result
    asked = args[10] if len(args) > 10 else keywords.get("need_weights", True)
    return result if asked else (result[0], None)


def as_kernel_computes(operator: Any, args: Sequence[Any], result: Any) -> Any:
    """A fake result of the dtype that eager computes.

    Of a bool to the power of a bool a bool, of attention in float64 row statistics in float64, where torch
    2.11 promises float32, and on the CPU statistics in float32 of a norm of 16 bits whose parameters are,
    and norms of a float16 weight in float32; of a count int64, or that of weights, where torch 2.11 promises
    the operand's, and of cross-entropy with logits the target's, where it promises that of all operands.
    What ``unique`` gives beside values counts, too.
    """
    if operator in _UNIQUE:
        values, *numbers = result
        return (values, *(t.to(torch.int64) for t in numbers))
    if operator in _NORMS:
        return _with_wide_statistics(args, result)
    if operator is aten.binary_cross_entropy_with_logits.default:
        return result.to(args[1].dtype)
    if operator is aten.bincount.default:
        weights = args[1] if len(args) > 1 else None
        if weights is None:
            return result.to(torch.int64)
        return result.to(torch.float32 if weights.dtype == torch.float32 else torch.float64)
    if operator is aten._weight_norm_interface.default and result[0].device.type == "cpu":
        weight, norms = result
        return weight, norms.float() if norms.dtype == torch.float16 else norms
    if operator is aten._scaled_dot_product_flash_attention_for_cpu.default:
        output, statistics = result
        return (output, statistics.double()) if output.dtype == torch.float64 else result
    if operator is not aten.pow.Tensor_Scalar or type(args[1]) is not bool:
        return result
    return result.to(args[0].dtype) if args[0].dtype == torch.bool else result


def _with_wide_statistics(args: Sequence[Any], result: Any) -> Any:
    output, *statistics = result
    parameters = [value for value in args[1:] if isinstance(value, torch.Tensor)]
    is_wide = any(value.dtype == torch.float32 for value in parameters)
    if not is_wide or output.device.type != "cpu":
        return result
    halves = (torch.float16, torch.bfloat16)
    return output, *(t.float() if t.dtype in halves else t for t in statistics)


def _by_element(given: Given, promised: torch.Tensor) -> torch.Tensor:
    """As all that kernels compute by element: in the order of the operands, the first before others.

    An expanded operand of another dtype than the kernel computes in is converted first, and dense from there
    on.  Torch's rules compute 16 bits in float32, which kernels read as they lie: stand-ins are float32.
    """
    operands = [value for value in given.values() if isinstance(value, torch.Tensor)][:2]
    if len(operands) == 1:
        return torch.empty_like(operands[0])
    computed = torch.result_type(*operands)
    if promised.is_floating_point() and not computed.is_floating_point:
        computed = promised.dtype
    converted = (value.to(computed) for value in operands)
    first, second = (
        torch.empty_strided(value.shape, value.stride(), device=value.device) for value in converted
    )
    return torch.add(first, second)


def _by_element_of_16_bits(given: Given, promised: torch.Tensor) -> torch.Tensor | None:
    """An expanded first operand of 16 bits: torch's rule converts it to float32."""
    first = next((value for value in given.values() if isinstance(value, torch.Tensor)), promised)
    is_converted = first.dtype.itemsize == 2 and _is_expanded(first)
    return _by_element(given, promised) if is_converted else None


def _is_expanded(tensor: torch.Tensor) -> bool:
    return any(type(stride) is int and stride == 0 for stride in tensor.stride())


def _image(given: Given, promised: torch.Tensor) -> torch.Tensor:
    """Channels-last as the first operand is, contiguous else."""
    first = next(value for value in given.values() if isinstance(value, torch.Tensor))
    return torch.empty_like(promised, memory_format=suggested_format(first))


def _rolled(given: Given, promised: torch.Tensor) -> torch.Tensor | None:
    """Parts put behind one another, as an image; without dims all elements in a row.

    A part that is empty, where nothing moves, is no image.  Of what is no image itself that is not asked:
    data may say how far parts move.
    """
    dims = given.get("dims")
    if not dims:
        return None
    if suggested_format(given["self"]) is torch.contiguous_format:
        return _contiguous(given, promised)
    extents = promised.shape
    if any(
        extents[d] == 0 or s % extents[d] == 0 for s, d in zip(given["shifts"], dims, strict=True)
    ):
        return _contiguous(given, promised)
    return _image(given, promised)


def _padded(given: Given, promised: torch.Tensor) -> torch.Tensor | None:
    """Padding by symbols: a copy of what is left where nothing is added, an image or contiguous else.

    What lies in the order of its dims is contiguous either way, and no sign is asked for.
    """
    padded, amounts = given["self"], given["pad"]
    if not any(isinstance(n, torch.SymInt) for n in amounts) or padded.is_contiguous():
        return None
    if all(guard_or_false(n <= 0) for n in amounts):
        return torch.empty_like(padded.as_strided(promised.shape, padded.stride()))
    return _image(given, promised)


def _resized(given: Given, promised: torch.Tensor) -> torch.Tensor | None:
    """An image that torch's form of a kernel reads at other rows and columns: as the kernel's, an image."""
    indices = given["indices"]
    return (
        _image(given, promised) if len(indices) > 2 and indices[0] is indices[1] is None else None
    )


def _contiguous(given: Given, promised: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(promised, memory_format=torch.contiguous_format)


def _contiguous_if_complex(given: Given, promised: torch.Tensor) -> torch.Tensor | None:
    return _contiguous(given, promised) if given["self"].is_complex() else None


def _like_first(given: Given, promised: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(given["self"])


def _outer(given: Given, promised: torch.Tensor) -> torch.Tensor | None:
    """``addr`` with ``beta=0`` lies as it does with any other."""
    if given.get("beta", 1) != 0:
        return None
    return torch.addr(given["self"], given["vec1"], given["vec2"])


def _scaled(given: Given, promised: torch.Tensor) -> torch.Tensor | None:
    """``self * 2.0**other``, whose power is contiguous unless eager computes it in the dtype of ``self``.

    That is of floats of another dtype than the default, and by integers.
    """
    scaled, exponent = given["self"], given["other"]
    by_integers = not (exponent.is_floating_point() or exponent.is_complex())
    is_default = scaled.dtype == torch.get_default_dtype() and not by_integers
    if (scaled.is_floating_point() or scaled.is_complex()) and not is_default:
        return None
    return torch.mul(scaled, torch.empty_like(exponent, memory_format=torch.contiguous_format))


def _scattered(given: Given, promised: torch.Tensor) -> torch.Tensor | None:
    """A copy of what is written to; of what is expanded every element is apart."""
    written = given["self"]
    if not any(guard_or_false(stride == 0) for stride in written.stride()):
        return None
    return torch.empty_like(written)


def _transformed(given: Given, promised: torch.Tensor) -> torch.Tensor | None:
    """Fourier transforms by MKL: dims that are not transformed lie outside, each part in order of strides.

    The last dim of transforms between real and complex numbers is the innermost in any case.
    """
    source, (*dims, last) = given["self"], given["dim"]
    if not torch.backends.mkl.is_available():
        return _contiguous(given, promised)
    if source.is_complex() and promised.is_complex():
        dims, last = [*dims, last], None
    elif source.is_complex() and dims:
        source, dims = aten._fft_c2c.default(source, dims, 0, False), []
    others = [d for d in range(promised.dim()) if d not in (*dims, last)]
    ordered = [*_by_stride(source, others), *_by_stride(source, dims)]
    ordered += [] if last is None else [last]
    made = torch.empty([promised.shape[d] for d in ordered], device=promised.device)
    return made.permute([ordered.index(d) for d in range(promised.dim())])


def _by_stride(tensor: torch.Tensor, dims: Sequence[int]) -> list[int]:
    """Dims, the one of the largest stride first."""
    return sorted(dims, key=lambda d: tensor.stride(d), reverse=True)


def _stacked(given: Given, promised: torch.Tensor) -> torch.Tensor | None:
    """Slices along a dim that are put behind one another."""
    dim = given.get("dim")
    if dim is None:
        return None
    rows = promised.movedim(dim, 0)
    return torch.empty_like(rows, memory_format=torch.contiguous_format).movedim(0, dim)


_UNIQUE = frozenset(
    (
        aten._unique2.default,
        aten.unique_dim.default,
        aten.unique_consecutive.default,
        aten.unique_dim_consecutive.default,
    )
)

_NORMS = frozenset(
    (
        aten.native_batch_norm.default,
        aten._native_batch_norm_legit.default,
        aten._native_batch_norm_legit.no_stats,
        aten._native_batch_norm_legit_functional.default,
        aten._batch_norm_with_update.default,
        aten._batch_norm_with_update_functional.default,
        aten.native_group_norm.default,
        aten.native_layer_norm.default,
    )
)


_CONVERTING = (
    aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor, aten.atan2.default,
    aten.pow.Tensor_Tensor, aten.maximum.default, aten.minimum.default, aten.fmax.default,
    aten.fmin.default, aten.fmod.Tensor, aten.remainder.Tensor, aten.hypot.default, aten.eq.Tensor,
    aten.ne.Tensor, aten.lt.Tensor, aten.le.Tensor, aten.gt.Tensor, aten.ge.Tensor,
    aten.clamp.Tensor, aten.mse_loss.default,
)  # fmt: skip

_LAYOUTS: dict[OpOverload, Layout] = {
    **dict.fromkeys(_CONVERTING, _by_element_of_16_bits),
    aten.copysign.Tensor: _by_element,
    aten.complex.default: _by_element,
    aten.polar.default: _by_element,
    aten.logaddexp.default: _by_element,
    aten.logaddexp2.default: _by_element,
    aten.logical_and.default: _by_element,
    aten.logical_or.default: _by_element,
    aten.logical_xor.default: _by_element,
    aten.heaviside.default: _by_element,
    aten.div.Tensor_mode: _by_element,
    aten.floor_divide.default: _by_element,
    aten.xlogy.Tensor: _by_element,
    aten.special_xlog1py.default: _by_element,
    aten.native_dropout_backward.default: _by_element,
    aten.addr.default: _outer,
    aten.roll.default: _rolled,
    aten.constant_pad_nd.default: _padded,
    aten.native_batch_norm.default: _image,
    aten._native_batch_norm_legit.default: _image,
    aten._native_batch_norm_legit.no_stats: _image,
    aten._native_batch_norm_legit_no_training.default: _image,
    aten._native_batch_norm_legit_functional.default: _image,
    aten._batch_norm_with_update.default: _image,
    aten._batch_norm_with_update_functional.default: _image,
    aten.native_group_norm.default: _image,  # torch 2.14 promises contiguous ones
    aten.max_unpool2d.default: _image,
    aten.replication_pad2d.default: _image,
    aten.channel_shuffle.default: _image,
    aten.native_channel_shuffle.default: _image,
    aten.upsample_nearest1d.default: _contiguous,
    aten._unsafe_index.Tensor: _resized,  # where sizes are symbols
    aten._upsample_nearest_exact1d.default: _contiguous,
    aten.angle.default: _contiguous_if_complex,
    aten.pow.Scalar: _contiguous,
    aten.ldexp.Tensor: _scaled,
    aten.isin.Tensor_Tensor: _contiguous,
    aten.isin.Tensor_Scalar: _contiguous,
    aten.log_sigmoid_forward.default: _contiguous,
    aten.nll_loss2d_forward.default: _contiguous,
    aten.rrelu_with_noise.default: _contiguous,
    aten.rrelu_with_noise_functional.default: _contiguous,
    aten._standard_gamma.default: _contiguous,
    aten.normal.Tensor_Tensor: _contiguous,
    aten.normal.Tensor_float: _contiguous,
    aten.normal.float_Tensor: _contiguous,
    aten.index_fill.int_Scalar: _like_first,
    aten.index_fill.int_Tensor: _like_first,
    aten.select_scatter.default: _scattered,
    aten.slice_scatter.default: _scattered,
    aten.diagonal_scatter.default: _scattered,
    aten._fft_c2c.default: _transformed,
    aten._fft_r2c.default: _transformed,
    aten._fft_c2r.default: _transformed,
    aten.unique_dim.default: _stacked,
    aten.unique_dim_consecutive.default: _stacked,
    aten.unique_consecutive.default: _stacked,
}


# What operators give for sizes that are symbols, where torch's meta functions give less.
#
# For sizes that depend on data torch has answers of its own since 2.13; before, a write to rows whose number
# data gives would end the graph, and so would a power of such a number, and a slice of them would have a new
# symbol for its size.


Rule = Callable[..., torch.Tensor | list[torch.Tensor] | None]
"""Gives what an operator gives of its arguments, None where torch's own answer is as good."""


def _copy(tensor: torch.Tensor, source: Any, non_blocking: bool = False) -> torch.Tensor | None:
    if not isinstance(source, torch.Tensor):
        return None
    checked_expand(source.to(tensor, non_blocking), tensor.shape)
    return tensor


def _with_same_strides(tensor: torch.Tensor, *rest: Any, **others: Any) -> torch.Tensor | None:
    if any(guard_or_false(stride == 0) for stride in tensor.stride()):
        return None
    return tensor.new_empty_strided(tensor.shape, tensor.stride())


def _slice(
    tensor: torch.Tensor, dim: int = 0, start: Any = None, end: Any = None, step: Any = 1
) -> torch.Tensor | None:
    if not -tensor.dim() <= dim < tensor.dim() or not guard_or_false(step > 0):
        return None  # an error
    size: Any = tensor.shape[dim]
    if type(end) is int and end == sys.maxsize:
        end = None  # of `x[1:]`, whose size is no minimum of what bounds all
    first, last = _position(start, size, 0), _position(end, size, size)
    if first is None or last is None:
        return None
    if end is None and type(start) is int and start < 0:
        length = _position(-start, size, size)
    else:
        length = last - first if guard_or_false(last >= first) else torch.sym_max(last - first, 0)
    sizes: list[Any] = list(tensor.shape)
    strides: list[Any] = list(tensor.stride())
    offset = tensor.storage_offset() + first * strides[dim]
    sizes[dim], strides[dim] = (length + step - 1) // step, strides[dim] * step
    return tensor.as_strided(sizes, strides, offset)


def _position(given: Any, size: Any, otherwise: Any) -> Any:
    """The place from 0 to ``size`` that a slice's bound means; None where its sign isn't known."""
    if given is None:
        return otherwise
    if guard_or_false(given >= 0):
        return given if guard_or_false(given <= size) else torch.sym_min(given, size)
    if guard_or_false(given < 0):
        return torch.sym_max(given + size, 0)
    return None


def _counted(start: Any, end: Any, step: Any = 1, **others: Any) -> torch.Tensor | None:
    """``arange`` of whole numbers, the sign of whose step is decided.

    Since torch 2.15 the size that its meta function gives is an expression of both signs.
    """
    if any(type(number) not in (int, torch.SymInt) for number in (start, end, step)):
        return None
    if step == 0 or (end < start if step > 0 else end > start):
        return None  # an error
    others["dtype"] = others.get("dtype") or torch.int64
    sign = 1 if step > 0 else -1
    return torch.empty(((end - start + step - sign) // step,), **others)


def _power(base: Any, exponent: Any) -> torch.Tensor | None:
    """That of another number of its kind: before torch 2.13 each is asked whether it is 1, 2 or a half."""
    return torch.pow(_some_number(base), _some_number(exponent))


def _some_number(value: Any) -> Any:
    if isinstance(value, torch.SymFloat):
        return 3.5
    return 3 if isinstance(value, torch.SymInt) else value


def _gamma(concentration: torch.Tensor, generator: Any = None) -> torch.Tensor | None:
    """Draws that have no meta function before torch 2.13."""
    return torch.empty_like(concentration, memory_format=torch.contiguous_format)


def _has_symbolic_numbers(args: Sequence[Any]) -> bool:
    return any(isinstance(n, torch.SymInt | torch.SymFloat) for n in args)


def _has_symbols(args: Sequence[Any]) -> bool:
    """Whether numbers among the arguments are symbols, and none depends on data."""
    return any(isinstance(n, torch.SymInt) for n in args) and not _has_sizes_of_data(args)


def _has_sizes_of_data(args: Sequence[Any]) -> bool:
    return any(map(_depends_on_data, args))


def _depends_on_data(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return any(_depends_on_data(n) for n in (*value.shape, *value.stride()))
    return isinstance(value, torch.SymInt) and bool(has_unbacked_symbols(value))


_RULES: dict[OpOverload, tuple[Rule, Callable[[Sequence[Any]], bool]]] = {
    aten.arange.start_step: (_counted, _has_symbols),
    aten.view.default: (viewed, has_backed_symbols),
    aten._unsafe_view.default: (viewed, has_backed_symbols),
    aten.expand.default: (expanded, have_symbols),
    aten.permute.default: (permuted, has_symbols),
    aten.transpose.int: (transposed, has_symbols),
    aten.unbind.int: (unbound, has_symbols),
    aten.unsqueeze.default: (unsqueezed, has_symbols),
    aten.squeeze.default: (squeezed, _has_sizes_of_data),
    aten.squeeze.dim: (squeezed, _has_sizes_of_data),
    aten.squeeze.dims: (squeezed, _has_sizes_of_data),
}
"""Rules, each with what tells the arguments that it is for."""

if not FAKES_TAKE_SIZES_OF_DATA:
    _RULES |= {
        aten.copy_.default: (_copy, _has_sizes_of_data),
        aten.select_scatter.default: (_with_same_strides, _has_sizes_of_data),
        aten.slice_scatter.default: (_with_same_strides, _has_sizes_of_data),
        aten.slice.Tensor: (_slice, _has_sizes_of_data),
        aten.pow.Tensor_Scalar: (_power, _has_symbolic_numbers),
        aten.pow.Scalar: (_power, _has_symbolic_numbers),
        aten._standard_gamma.default: (_gamma, has_symbols),
    }


def rule_for(operator: Any, args: Sequence[Any]) -> Rule | None:
    """The rule that takes the place of torch's, None where torch's own does."""
    if operator not in _RULES:
        return None
    rule, is_for = _RULES[operator]
    return rule if is_for(args) else None
