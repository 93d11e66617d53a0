"""Hooks of tensors that get no gradient in a backward: eager does not call them, so nor does a graph.

To autograd all results of a graph come from one function.  Where only some are differentiated it goes on to
every argument, with no gradient for those that these results don't depend on, and would call hooks of such an
argument with None.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ._torch import behind_backward, hooks_of
from .saved_values import is_unchanged
from .training_plan import Plan

Hooks = dict[int, Any]
"""A tensor's hooks by the keys of their handles: autograd reads this very dict."""


class _Spared:
    """``hook``, which is called where there is a gradient."""

    def __init__(self, hook: Any) -> None:
        self.hook = hook

    def __call__(self, gradient: torch.Tensor | None) -> Any:
        return None if gradient is None else self.hook(gradient)


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
    spared = []
    for k, edge in plan.edges.items():
        if not needed[leading + k] or returned[leading + k] is not None:
            continue
        hooks = ctx.hooks.get(k) or _hooks_of_leaf(ctx, edge) or _later_hooks(ctx, k)
        # Torch's own hooks for several tensors count the calls, those without a gradient too.
        own = [key for key, hook in hooks.items() if _is_programs_own(hook)]
        hooks.update({key: _Spared(hooks[key]) for key in own})
        if own:
            spared.append(hooks)
    if spared:
        behind_backward(lambda: _restore(spared))


def _hooks_of_leaf(ctx: Any, edge: int) -> Hooks:
    """Those of the tensor behind an edge of the function's node, if it is a leaf."""
    function, _ = ctx.next_functions[edge]
    leaf = getattr(function, "variable", None)
    return {} if leaf is None else hooks_of(leaf)


def _later_hooks(ctx: Any, k: int) -> Hooks:
    """Those that argument ``k``, which is no leaf, got since forward, where the function keeps it.

    Those of a tensor that was written to since are its new history's.
    """
    plan: Plan = ctx.plan
    position = plan.position_kept.get(k)
    if position is None:
        return {}
    value, version = ctx.kept[position], ctx.versions[position]
    return {} if version is None or not is_unchanged(value, version) else hooks_of(value)


def _is_programs_own(hook: Any) -> bool:
    return (
        not isinstance(hook, _Spared) and getattr(hook, "__module__", "") != "torch.autograd.graph"
    )


def _restore(spared: Sequence[Hooks]) -> None:
    for hooks in spared:
        for key, hook in hooks.items():
            if isinstance(hook, _Spared):
                hooks[key] = hook.hook
