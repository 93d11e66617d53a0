"""The hooks of a compiled function's arguments, for those that get no gradient in a backward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ._torch import hooks_of
from .saved_values import is_unchanged
from .spared_hooks import Hooks, spare, spare_behind
from .training_plan import Plan


def hooked(plan: Plan, arguments: Sequence[Any]) -> dict[int, Hooks]:
    """The hooks of those arguments that are no leaves of autograd's graph, by position.

    To be asked in forward: a tensor that is written to later has other hooks then.
    """
    return {
        k: hooks
        for k in plan.tensor_inputs
        if (hooks := hooks_of(arguments[k])) and not arguments[k].is_leaf
    }


def spare_hooks(ctx: Any, returned: Sequence[Any]) -> None:
    """Have no hook called with None in the backward that is running.

    ``returned`` are the gradients of what the function took whose context is ``ctx``: its last are the
    arguments.
    """
    plan: Plan = ctx.plan
    leading = len(returned) - plan.argument_count
    needed = ctx.needs_input_grad
    absent = [
        (k, _leaf(ctx, edge))
        for k, edge in plan.edges.items()
        if needed[leading + k] and returned[leading + k] is None
    ]
    spare(
        ctx.hooks.get(k) or (_later_hooks(ctx, k) if leaf is None else hooks_of(leaf))
        for k, leaf in absent
    )
    spare_behind(leaf for _, leaf in absent if leaf is not None)


def _leaf(ctx: Any, edge: int) -> torch.Tensor | None:
    """The tensor behind an edge of the function's node, if it is a leaf."""
    function, _ = ctx.next_functions[edge]
    leaf: torch.Tensor | None = getattr(function, "variable", None)
    return leaf


def _later_hooks(ctx: Any, k: int) -> Hooks:
    """Those that argument ``k``, which is no leaf, got since forward, where the function keeps it.

    Those of a tensor that was written to since are its new history's.
    """
    plan: Plan = ctx.plan
    position = plan.position_kept.get(k)
    if position is None:
        return {}
    value, version = ctx.kept[position], ctx.versions[position]
    return hooks_of(value) if value is not None and is_unchanged(value, version) else {}
