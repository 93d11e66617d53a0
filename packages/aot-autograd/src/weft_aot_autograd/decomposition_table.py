"""The default decompositions: torch's core ATen rules, less what later stages do better whole."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch

from ._torch import OpOverload, core_aten_decompositions

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
        "max_pool2d_with_indices",
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


def _zeros(size: list[int], **keywords: Any) -> torch.Tensor:
    """``_efficientzerotensor``, the gradient of what is constant, with memory."""
    return torch.zeros(size, **keywords)


def _chosen_attention(*args: Any, **keywords: Any) -> Any:
    """``scaled_dot_product_attention`` as the kernel that torch chooses for such operands."""
    return aten.scaled_dot_product_attention.default(*args, **keywords)


# Rules of our own, over torch's.
_OWN: dict[OpOverload, Callable[..., Any]] = {
    aten._efficientzerotensor.default: _zeros,
    aten.native_batch_norm.default: _inference_batch_norm,
    aten.native_dropout.default: _inference_dropout,
    aten.nll_loss_backward.default: _nll_loss_backward,
    aten.scaled_dot_product_attention.default: _chosen_attention,
}


@functools.cache
def default_decompositions() -> DecompositionTable:
    """The rules that :func:`trace_inference` applies, from operator to function.

    A rule gets the node's fake arguments and may return ``NotImplemented``: the operator then stays.
    """
    kept = {name for names in _KEPT.values() for name in names}
    table: dict[OpOverload, Callable[..., Any]] = {}
    for operator, rule in core_aten_decompositions().items():
        if isinstance(operator, OpOverload) and _is_functional(operator):
            name = operator._schema.name.removeprefix("aten::")
            if name not in kept and not _keeps_random_values(operator):
                table[operator] = rule
    table.update(_OWN)
    return table


def _is_functional(operator: OpOverload) -> bool:
    return not operator._schema.is_mutable


def _keeps_random_values(operator: OpOverload) -> bool:
    return torch.Tag.nondeterministic_seeded in operator.tags
