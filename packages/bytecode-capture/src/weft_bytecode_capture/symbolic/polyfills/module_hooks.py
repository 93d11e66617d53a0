"""Backward hooks of modules, in plain Python, where they take and give one tensor.

torch hooks the node of autograd's graph by which it passes the tensors on; a node of one tensor sees what a
hook of that tensor sees.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.hooks import BackwardHook

from ..._torch import BackwardHookFunction
from ..models.table import polyfill, unmodelled

_ON_TENSORS = unmodelled(BackwardHook._apply_on_tensors)


class _NodeOfOne:
    """What stands for the node that gives ``tensor`` alone."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor

    def register_hook(self, hook: Callable[[Any, Any], Any]) -> Any:
        def on_gradient(gradient: torch.Tensor) -> torch.Tensor | None:
            found = hook((gradient,), (gradient,))
            return None if found is None else found[0]

        return self._tensor.register_hook(on_gradient)


@polyfill(BackwardHook._apply_on_tensors)
def _apply_on_tensors(self: Any, fn: Callable[[Any], None], args: Any) -> Any:
    places = [place for place, value in enumerate(args) if isinstance(value, torch.Tensor)]
    if len(places) != 1 or not args[places[0]].requires_grad or not torch.is_grad_enabled():
        return _ON_TENSORS(self, fn, args)
    (tensor,) = BackwardHookFunction.apply(args[places[0]])
    fn(_NodeOfOne(tensor))
    given = list(args)
    given[places[0]] = tensor
    return (tuple(given) if type(args) is tuple else type(args)(*given)), places
