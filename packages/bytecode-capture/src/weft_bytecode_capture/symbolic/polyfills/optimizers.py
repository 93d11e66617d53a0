"""``zero_grad`` in plain Python: where all gradients go, nothing asks which there are.

Code would be compiled for the answers: once for a first step, which finds none, and again for others.
"""

from __future__ import annotations

from typing import Any

import torch

from ..models.table import polyfill, unmodelled

_OF_OPTIMIZER = unmodelled(torch.optim.Optimizer.zero_grad)
_OF_MODULE = unmodelled(torch.nn.Module.zero_grad)


@polyfill(torch.optim.Optimizer.zero_grad)
def _zero_grad(self: Any, set_to_none: bool = True) -> None:
    if not set_to_none:
        _OF_OPTIMIZER(self, set_to_none)
        return
    if not hasattr(self, "_zero_grad_profile_name"):
        self._patch_step_function()
    for group in self.param_groups:
        for parameter in group["params"]:
            parameter.grad = None


@polyfill(torch.nn.Module.zero_grad)
def _zero_grad_of_module(self: Any, set_to_none: bool = True) -> None:
    if not set_to_none or getattr(self, "_is_replica", False):
        _OF_MODULE(self, set_to_none)
        return
    for parameter in self.parameters():
        parameter.grad = None
