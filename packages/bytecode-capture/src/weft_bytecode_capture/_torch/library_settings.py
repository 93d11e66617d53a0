"""cuDNN's settings: the functions that ``torch.backends.cudnn.flags`` calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_NAMES = ("enabled", "benchmark", "deterministic", "allow_tf32", "depthwise_kernel")

GETTERS: dict[Callable[..., Any], Callable[..., Any]] = {
    getattr(torch._C, f"_set_cudnn_{name}"): getattr(torch._C, f"_get_cudnn_{name}")
    for name in _NAMES
    if hasattr(torch._C, f"_set_cudnn_{name}")
}
"""By the function that sets a setting: the function that reads it, with the arguments before the value."""

if hasattr(torch._C, "_cuda_set_cudnn_benchmark_limit"):  # in builds for CUDA
    GETTERS[torch._C._cuda_set_cudnn_benchmark_limit] = torch._C._cuda_get_cudnn_benchmark_limit

SETTINGS: dict[tuple[Callable[..., Any], tuple[str, ...]], Callable[..., Any]] = {
    (setter, ()): getter for setter, getter in GETTERS.items()
}
"""Each setting's getter by its setter and the arguments before the value, in the order to set them in."""

GETTERS[torch._C._set_fp32_precision_setter] = torch._C._get_fp32_precision_getter
for _operator in ("all", "conv", "rnn"):
    _place = ("cuda", _operator)
    SETTINGS[torch._C._set_fp32_precision_setter, _place] = torch._C._get_fp32_precision_getter

OTHER_GETTERS = tuple(
    getattr(torch._C, name)
    for name in ("_get_mkldnn_enabled", "_get_mkldnn_deterministic", "_get_onednn_allow_tf32")
    if hasattr(torch._C, name)
)
"""Of settings of the CPU's libraries, which a program only reads."""
