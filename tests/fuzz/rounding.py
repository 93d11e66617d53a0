"""Eager with other roundings: what a program gives that depends on them is nobody's to promise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

ROUNDED = frozenset(
    "mm bmm addmm baddbmm mv dot addmv convolution _scaled_dot_product_flash_attention_for_cpu sum mean "
    "var std var_mean std_mean prod cumsum cumprod logcumsumexp logsumexp _softmax _log_softmax mse_loss "
    "linalg_vector_norm norm native_layer_norm native_group_norm native_batch_norm _fused_rms_norm "
    "upsample_bilinear2d upsample_bicubic2d avg_pool2d _adaptive_avg_pool2d exp log tanh sigmoid sin cos "
    "atan atan2 gelu softplus elu rsqrt pow hypot fft_fft _fft_c2c _fft_r2c index_add scatter_add".split()
)
"""Operators that add in an order of their own, or whose functions differ in the last digits."""

ROUNDED_IN_HALVES = frozenset("add sub mul div reciprocal sqrt rsub addcmul addcdiv lerp".split())
"""Operators whose results in 16 bits a fused kernel need not round."""

HALVES = frozenset({torch.float16, torch.bfloat16})


class OtherRoundings(TorchDispatchMode):
    """Changes each float that one of :data:`ROUNDED` gives by up to ``places`` of the last binary places."""

    def __init__(self, places: float = 1.0, seed: int = 7) -> None:
        super().__init__()
        self.places = places
        self._generator = torch.Generator().manual_seed(seed)

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        results = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__.removesuffix("_")
        for result in results if isinstance(results, tuple) else (results,):
            if isinstance(result, torch.Tensor) and result.is_floating_point():
                in_halves = result.dtype in HALVES and name in ROUNDED_IN_HALVES
                if name in ROUNDED or in_halves:
                    self._round_otherwise(result)
        return results

    def _round_otherwise(self, result: torch.Tensor) -> None:
        noise = torch.rand(result.shape, generator=self._generator, dtype=torch.float64)
        by = self.places * torch.finfo(result.dtype).eps
        result.copy_(result.double() * (1 + by * (2 * noise - 1)))
