"""The default decompositions: torch's core ATen rules, less what later stages do better whole."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Container, Iterator, Mapping
from typing import Any

import torch
from weft_functionalize import known_equal

from ._torch import (
    COMMUNICATES,
    OpOverload,
    core_aten_decompositions,
    core_decomposition,
    is_data_dependent,
)
from .unsupported import Unsupported

aten = torch.ops.aten

DecompositionTable = Mapping[OpOverload, Callable[..., Any]]

# Operator packets that stay as they are, by the reason.
_KEPT: dict[str, tuple[str, ...]] = {
    "lowered to one kernel, with the better numerics of the fused form": (
        "_softmax",
        "_log_softmax",
        "_safe_softmax",
        "native_layer_norm",
        "native_group_norm",
        "_native_batch_norm_legit_no_training",
        "logsumexp",
        "linalg_vector_norm",
        "std",
        "std_mean",
        "var",
        "var_mean",
        "mean",
        "sum",
        "all",
        "any",
        "max",
        "min",
        "prod",
    ),
    "lowered as one pointwise expression": (
        "gelu",
        "silu",
        "mish",
        "hardtanh",
        "hardsigmoid",
        "hardswish",
        "relu6",
        "leaky_relu",
        "elu",
        "softplus",
        "sigmoid",
        "rsub",
        "masked_fill",
        "where",
        "clamp_min",
        "clamp_max",
        "square",
        "frac",
        "sgn",
    ),
    "an index expression": (
        "_reshape_alias",
        "_unsafe_view",
        "detach",
        "diagonal",
        "expand",
        "flip",
        "permute",
        "select",
        "slice",
        "split",
        "split_with_sizes",
        "squeeze",
        "stack",
        "t",
        "transpose",
        "unbind",
        "unfold",
        "unsqueeze",
        "view",
    ),
    "a window of loads": (
        "_adaptive_avg_pool2d",
        "adaptive_avg_pool2d",
        "avg_pool2d",
        "col2im",
        "max_pool2d_with_indices",
        "unfold_backward",
        "upsample_bilinear2d",
        "upsample_linear1d",
        "upsample_nearest1d",
        "upsample_nearest2d",
        "upsample_nearest3d",
        "_upsample_nearest_exact1d",
        "_upsample_nearest_exact2d",
        "_upsample_nearest_exact3d",
    ),
    "filled without reading": (
        "arange",
        "empty_like",
        "fill",
        "full",
        "full_like",
        "new_empty",
        "new_full",
        "new_ones",
        "new_zeros",
        "ones",
        "ones_like",
        "zeros",
        "zeros_like",
    ),
    "a library call": (
        "_scaled_dot_product_flash_attention_for_cpu",
        "addmm",
        "baddbmm",
        "bmm",
        "convolution",
        "mm",
    ),
    "a number": ("sym_numel", "sym_size", "sym_storage_offset", "sym_stride"),
    "random: the values must be eager's": ("bernoulli", "rrelu_with_noise"),
    "a gather, not arithmetic on padded copies": ("embedding", "gather", "index", "index_select"),
    "values are checked by its kernel": ("binary_cross_entropy", "max_unpool2d", "max_unpool3d"),
    "torch's rule counts what stands behind the first -1": ("multilabel_margin_loss_forward",),
}


def _inference_batch_norm(
    input: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> Any:
    """``native_batch_norm`` with running statistics that it only reads."""
    if training or running_mean is None or running_var is None:
        return NotImplemented
    return aten._native_batch_norm_legit_no_training.default(
        input, weight, bias, running_mean, running_var, momentum, eps
    )


def _native_batch_norm_backward(
    gradient: torch.Tensor,
    input: torch.Tensor,
    weight: torch.Tensor | None,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    save_mean: torch.Tensor | None,
    save_invstd: torch.Tensor | None,
    train: bool,
    eps: float,
    output_mask: list[bool],
) -> Any:
    """By the normalised input: torch's rule squares ``save_invstd``, and float32 does not hold its square.

    Eager's kernel has such products in float64.
    """
    narrow = input.dtype in (torch.bfloat16, torch.float16)
    compute = torch.float32 if narrow else input.dtype
    mean, scale = (save_mean, save_invstd) if train else (running_mean, running_var)
    if mean is None or scale is None or input.dim() < 2:
        return NotImplemented
    channels = [1, -1] + [1] * (input.dim() - 2)
    dims = [dim for dim in range(input.dim()) if dim != 1]
    mean, scale = (t.to(compute).reshape(channels) for t in (mean, scale))
    scale = scale if train else torch.rsqrt(scale + eps)
    wide = gradient.to(compute)
    normalised = (input.to(compute) - mean) * scale
    total = wide.sum(dims, keepdim=True)
    product = (wide * normalised).sum(dims, keepdim=True)
    if weight is not None:
        scale = scale * weight.to(compute).reshape(channels)
    if train:
        count = input.numel() // input.shape[1]
        wide = wide - normalised * (product / count) - total / count
    kept = input.dtype if weight is None else weight.dtype
    gradients = (
        t.reshape(-1).to(kept) if wanted else None
        for t, wanted in zip((product, total), output_mask[1:], strict=True)
    )
    return (wide * scale).to(input.dtype), *gradients


def _batch_norm_backward(*arguments: Any) -> Any:
    """``batch_norm_backward``, whose last argument is memory that only other kernels keep."""
    return _native_batch_norm_backward(*arguments[:-1])


def _inference_dropout(input: torch.Tensor, p: float, train: bool | None) -> Any:
    """``native_dropout`` that drops nothing."""
    if train is not False:
        return NotImplemented
    return input, torch.ones_like(input, dtype=torch.bool)


def _nll_loss_backward(
    grad_output: torch.Tensor,
    input: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None,
    reduction: int,
    ignore_index: int,
    total_weight: torch.Tensor,
) -> Any:
    """``nll_loss_backward`` of a batch as one pointwise expression: no scatter into zeros."""
    if input.dim() != 2:
        return NotImplemented
    classes = torch.arange(input.shape[1], device=input.device)
    column = target.unsqueeze(1)
    counts = (column == classes) & (column != ignore_index)
    scale = -grad_output if reduction == 0 else -grad_output.expand(target.shape)
    if reduction == 1:
        scale = scale / total_weight
    scale = scale.unsqueeze(1)
    if weight is not None:
        scale = scale * weight
    return torch.where(counts, scale, torch.zeros((), dtype=input.dtype, device=input.device))


LOSS_GRADIENTS = frozenset(
    {
        aten.huber_loss_backward.default,
        aten.mse_loss_backward.default,
        aten.smooth_l1_loss_backward.default,
    }
)
"""Of mean losses: torch's rules in Python divide by the number of elements."""


def gradient_of_no_elements(
    _: torch.Tensor, self: torch.Tensor, target: torch.Tensor, *__: Any
) -> torch.Tensor:
    """What :data:`LOSS_GRADIENTS` give where there are no elements."""
    return torch.empty_like(self, dtype=torch.result_type(self, target))


def _of_elements(operator: OpOverload) -> Callable[..., Any]:
    """Torch's rule for one of :data:`LOSS_GRADIENTS`, but where there are no elements."""

    def rule(gradient: torch.Tensor, self: torch.Tensor, *rest: Any) -> Any:
        decomposed = core_decomposition(operator)
        if known_equal(self.numel(), 0):
            return gradient_of_no_elements(gradient, self, *rest)
        return NotImplemented if decomposed is None else decomposed(gradient, self, *rest)

    return rule


def _addcmul(
    self: torch.Tensor, tensor1: torch.Tensor, tensor2: torch.Tensor, *, value: Any = 1
) -> Any:
    """``addcmul`` of integers by a float takes its whole part, where torch's rule raises."""
    tensors = (self, tensor1, tensor2)
    inexact = any(t.is_floating_point() or t.is_complex() for t in tensors)
    if isinstance(value, torch.SymFloat) and not inexact:
        raise Unsupported("whole part of a float that varies", "addcmul of integers")
    if inexact or not isinstance(value, float):
        rule = core_decomposition(aten.addcmul.default)
        return NotImplemented if rule is None else rule(self, tensor1, tensor2, value=value)
    return aten.addcmul.default(self, tensor1, tensor2, value=int(value))


def _threshold(self: torch.Tensor, threshold: Any, value: Any) -> torch.Tensor:
    """``threshold``, whose kernel takes the whole parts of both numbers for integers.

    Torch's rule computes with floats, which do not hold large integers.
    """
    if not (self.is_floating_point() or self.is_complex()):
        if any(isinstance(number, torch.SymFloat) for number in (threshold, value)):
            raise Unsupported("whole part of a float that varies", "threshold of integers")
        threshold, value = int(threshold), int(value)
    return torch.where(self <= threshold, torch.full_like(self, value), self)


def _of_floats(operator: OpOverload) -> Callable[..., Any]:
    """Torch's rule for ``linspace``, but for integers: its kernel cuts ``end`` first, and refuses bools."""

    def rule(*args: Any, dtype: torch.dtype | None = None, **keywords: Any) -> Any:
        decomposed = core_decomposition(operator)
        exact = dtype is not None and not (dtype.is_floating_point or dtype.is_complex)
        if exact or decomposed is None:
            return NotImplemented
        return decomposed(*args, dtype=dtype, **keywords)

    return rule


def _nan_to_num(tensor: torch.Tensor, *rest: Any, **keywords: Any) -> Any:
    """Torch's rule, which raises for complex numbers."""
    rule = core_decomposition(aten.nan_to_num.default)
    if rule is None or tensor.is_complex():
        return NotImplemented
    return rule(tensor, *rest, **keywords)


def _logit_backward(gradient: torch.Tensor, x: torch.Tensor, eps: float | None = None) -> Any:
    """Torch's rule, which has a sign for the infinity at -0.0, and no NaN of NaN where ``eps`` is given."""
    within = None if eps is None or eps < 0 else eps
    rule = core_decomposition(aten.logit_backward.default)
    if rule is None:
        return NotImplemented
    found: torch.Tensor = rule(gradient, x, within)
    if not within:
        found = torch.where((x == 0) | (x == 1), gradient * math.inf, found)
    return torch.where(x.isnan(), x, found)


def _cross_entropy_with_logits(
    x: torch.Tensor, target: torch.Tensor, *rest: Any, **keywords: Any
) -> Any:
    """Torch's rule, which in 2.11 gives the dtype of all operands; eager's kernel gives the target's."""
    rule = core_decomposition(aten.binary_cross_entropy_with_logits.default)
    if rule is None:
        return NotImplemented
    return rule(x, target, *rest, **keywords).to(target.dtype)


def _log_sigmoid_backward(gradient: torch.Tensor, x: torch.Tensor, buffer: torch.Tensor) -> Any:
    """Torch's rule, which asks whether forward has filled ``buffer``; of few or many elements the same."""
    rule = core_decomposition(aten.log_sigmoid_backward.default)
    if rule is None:
        return NotImplemented
    counted = not any(map(is_data_dependent, buffer.shape))
    return rule(gradient, x, buffer if counted else x.new_empty((0,)))


def _zeros(size: list[int], **keywords: Any) -> torch.Tensor:
    """``_efficientzerotensor``, the gradient of what is constant, with memory."""
    return torch.zeros(size, **keywords)


def _chosen_attention(*args: Any, **keywords: Any) -> Any:
    """``scaled_dot_product_attention`` as the kernel that torch chooses for such operands."""
    return aten.scaled_dot_product_attention.default(*args, **keywords)


def _with_checked_index(operator: OpOverload) -> Callable[..., Any]:
    """Torch's rule for an operator that counts no index from the end, by one that does."""

    def rule(
        input: torch.Tensor, dim: int, index: torch.Tensor, *rest: Any, **keywords: Any
    ) -> Any:
        decomposed = core_decomposition(operator)
        if decomposed is None:
            return NotImplemented
        size = input.shape[dim] if input.dim() else 1
        index = torch.where(index < 0, index - size, index)  # an error, as past the end
        return decomposed(input, dim, index, *rest, **keywords)

    return rule


def _wait_for_each(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """``wait_tensors``: each tensor once the collective that makes it has ended."""
    return [torch.ops._c10d_functional.wait_tensor.default(tensor) for tensor in tensors]


# Rules of our own, over torch's.
def _index_fill(tensor: torch.Tensor, dim: int, index: torch.Tensor, value: Any) -> torch.Tensor:
    """By ``index_put``, which counts negative indices from the end as ``index_fill`` does.

    Torch's rule takes ``index_copy``, which has none.
    """
    if not isinstance(value, torch.Tensor):
        value = torch.scalar_tensor(value, dtype=tensor.dtype, device=tensor.device)
    whole = tensor.unsqueeze(0) if tensor.dim() == 0 else tensor
    indices = [None] * (dim % whole.dim()) + [index.reshape(-1)]
    filled: torch.Tensor = torch.ops.aten.index_put.default(whole, indices, value.to(tensor.dtype))
    return filled.squeeze(0).clone() if tensor.dim() == 0 else filled


_OWN: dict[OpOverload, Callable[..., Any]] = {
    aten._efficientzerotensor.default: _zeros,
    aten.addcmul.default: _addcmul,
    aten.nan_to_num.default: _nan_to_num,
    aten.index_add.default: _with_checked_index(aten.index_add.default),
    aten.index_copy.default: _with_checked_index(aten.index_copy.default),
    aten.index_fill.int_Scalar: _index_fill,
    aten.index_fill.int_Tensor: _index_fill,
    aten.linspace.default: _of_floats(aten.linspace.default),
    aten.log_sigmoid_backward.default: _log_sigmoid_backward,
    aten.logit_backward.default: _logit_backward,
    aten.logspace.default: _of_floats(aten.logspace.default),
    aten.batch_norm_backward.default: _batch_norm_backward,
    aten.binary_cross_entropy_with_logits.default: _cross_entropy_with_logits,
    aten.native_batch_norm.default: _inference_batch_norm,
    aten.native_batch_norm_backward.default: _native_batch_norm_backward,
    aten.native_dropout.default: _inference_dropout,
    aten.nll_loss_backward.default: _nll_loss_backward,
    aten.threshold.default: _threshold,
    aten.scaled_dot_product_attention.default: _chosen_attention,
    **{operator: _of_elements(operator) for operator in LOSS_GRADIENTS},
}


# Those of operators that only some releases of torch have, by name.
_OWN_BY_NAME: dict[str, Callable[..., Any]] = {
    f"{COMMUNICATES}::wait_tensors": _wait_for_each,  # since torch 2.15
}


class DefaultDecompositions(Mapping[OpOverload, Callable[..., Any]]):
    """Torch's core ATen rules, less what stays whole, under rules of our own.

    A rule is looked for when it is asked for; only going through all of them takes long.
    """

    def __init__(self) -> None:
        self._found: dict[OpOverload, Callable[..., Any] | None] = {}

    def __getitem__(self, operator: OpOverload) -> Callable[..., Any]:
        if operator not in self._found:
            self._found[operator] = _rule(operator)
        rule = self._found[operator]
        if rule is None:
            raise KeyError(operator)
        return rule

    def __iter__(self) -> Iterator[OpOverload]:
        return (operator for operator in {**core_aten_decompositions(), **_OWN} if operator in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)


class Without(Mapping[OpOverload, Callable[..., Any]]):
    """``table`` but for the operators in ``left_out``."""

    def __init__(self, table: DecompositionTable, left_out: Container[OpOverload]) -> None:
        self._table = table
        self._left_out = left_out

    def __getitem__(self, operator: OpOverload) -> Callable[..., Any]:
        if operator in self._left_out:
            raise KeyError(operator)
        return self._table[operator]

    def __iter__(self) -> Iterator[OpOverload]:
        return (operator for operator in self._table if operator not in self._left_out)

    def __len__(self) -> int:
        return sum(1 for _ in self)


@functools.cache
def default_decompositions() -> DecompositionTable:
    """The rules that :func:`trace_inference` applies, from operator to function.

    A rule gets the node's fake arguments and may return ``NotImplemented``: the operator then stays.
    """
    return DefaultDecompositions()


@functools.cache
def exact_decompositions() -> DecompositionTable:
    """Those of :func:`default_decompositions` that give the same bits: no arithmetic is taken apart."""
    rules = default_decompositions()
    found = (op for op in core_aten_decompositions() if isinstance(op, OpOverload))
    operators = [op for op in {*found, *_OWN} if _name(op) in _EXACT_NAMES and op in rules]
    return {operator: rules[operator] for operator in operators}


_EXACT_NAMES = frozenset(
    "_efficientzerotensor native_dropout scaled_dot_product_attention select_backward slice_backward "
    "diagonal_backward index_fill zero unsafe_split unsafe_split_with_sizes".split()
)
"""Of operators that move elements, or choose which operator runs."""


def _name(operator: OpOverload) -> str:
    return str(operator._schema.name.removeprefix("aten::"))


def _rule(operator: Any) -> Callable[..., Any] | None:
    """The rule for ``operator``, None where it stays."""
    if operator in _OWN:
        return _OWN[operator]
    if not isinstance(operator, OpOverload) or operator._schema.is_mutable:
        return None
    if operator._schema.name in _OWN_BY_NAME:
        return _OWN_BY_NAME[operator._schema.name]
    name = operator._schema.name.removeprefix("aten::")
    if name in _KEPT_NAMES or torch.Tag.nondeterministic_seeded in operator.tags:
        return None  # among them random operators, whose values must be eager's
    return core_decomposition(operator)


_KEPT_NAMES = frozenset(name for names in _KEPT.values() for name in names)
