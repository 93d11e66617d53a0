"""What a call's functional graph was given, for running it again."""

from __future__ import annotations

from typing import Any

import torch

from .training_plan import Plan


def kept_inputs(ctx: Any) -> list[Any]:
    """All inputs of the functional graph as far as they matter; their versions are not checked."""
    plan: Plan = ctx.plan
    given = {plan.argument_indices[k] for k in plan.kept}
    every = [
        None if index in given else _stand_in(plan, index)
        for index in range(len(plan.functional.inputs))
    ]
    for k, value in zip(plan.kept, ctx.kept, strict=True):
        every[plan.argument_indices[k]] = value
    return every


def _stand_in(plan: Plan, index: int) -> Any:
    """A value for an input that no gradient depends on."""
    if index in plan.functional.lifted:
        return plan.functional.lifted[index]
    value = plan.placeholders[index].meta["val"]
    if not isinstance(value, torch.Tensor):
        return value
    return torch.empty_strided(
        value.shape, value.stride(), dtype=value.dtype, device=value.device
    ).zero_()
