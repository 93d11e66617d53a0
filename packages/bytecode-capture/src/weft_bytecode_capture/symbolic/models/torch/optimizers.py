"""Optimizers that captured code makes: the first of a class puts torch's wrapper around ``step`` there."""

from __future__ import annotations

from typing import Any

import torch

from ...._torch import patch_step_function
from ...protocol import Evaluator
from ...variables.base import Variable
from ..objects.user_objects import UserObjectVariable
from ..table import model, unmodelled

_REST = unmodelled(patch_step_function)


@model(patch_step_function)
def _patch_step(evaluator: Evaluator, self: Variable) -> Variable:
    """One of torch's own classes is changed while capturing, as any call would: nobody asks when it was."""
    kind: Any = self.kind if isinstance(self, UserObjectVariable) else None
    is_own = kind is not None and kind.__module__.startswith("torch.optim.")
    if is_own and not getattr(kind.step, "hooked", False):
        kind.step = torch.optim.Optimizer.profile_hook_step(kind.step)
        kind.step.hooked = True
    return evaluator.wrap_known(_REST).call(evaluator, [self], {})
