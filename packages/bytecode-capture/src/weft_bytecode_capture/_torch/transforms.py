"""What ``torch.vmap`` and ``torch.func`` come down to: functions that torch has in C."""

from __future__ import annotations

import functools
import importlib
import types
from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

import torch
from torch._C import _functorch

DUAL_LEVEL_CALLS: dict[Any, int] = {
    torch._C._enter_dual_level: 1,
    torch._C._exit_dual_level: -1,
}

LEVEL_CALLS: dict[Any, int] = {
    _functorch._vmap_increment_nesting: 1,
    _functorch._vmap_decrement_nesting: -1,
    _functorch._grad_increment_nesting: 1,
    _functorch._grad_decrement_nesting: -1,
    _functorch._jvp_increment_nesting: 1,
    _functorch._jvp_decrement_nesting: -1,
    **DUAL_LEVEL_CALLS,
}
"""What enters a level of a function transform (``vmap``, ``grad``, ``jvp``), and what leaves it."""

BATCHES: Any = _functorch._vmap_increment_nesting
GRADIENTS: Any = _functorch._grad_increment_nesting
FORWARD_MODE: Any = _functorch._jvp_increment_nesting

LEVEL_WRAPPERS = (
    _functorch._add_batch_dim,
    _functorch._remove_batch_dim,
    _functorch._wrap_for_grad,
    _functorch._unwrap_for_grad,
    torch._VF._make_dual,
    torch._VF._unpack_dual,
)
"""What makes a level's tensors of others, and the other way around."""

LEVEL_QUERIES = (
    _functorch.is_batchedtensor,
    _functorch.is_functorch_wrapped_tensor,
    _functorch.is_gradtrackingtensor,
)
"""Questions about a level's tensors."""

ARE_ACTIVE: Any = torch._C._are_functorch_transforms_active
"""Asks whether the thread is in any level."""

is_of_level: Callable[[torch.Tensor], bool] = _functorch.is_functorch_wrapped_tensor


def requires_grad_below(tensor: torch.Tensor) -> bool:
    """Whether a tensor, or one that it stands for in a level, requires gradients."""
    while not tensor.requires_grad:
        if not is_of_level(tensor):
            return False
        tensor = _functorch.get_unwrapped(tensor)
    return True


_transforms: Any = cast("types.FunctionType", torch.func.jvp).__globals__
GRADIENTS_OF_TRANSFORM: Any = _transforms["_autograd_grad"]
"""By which ``torch.func.grad`` and its kin get gradients from autograd."""

load_batching_rules: Any = (
    _transforms["vmap"].__globals__["vmap_impl"].__globals__["lazy_load_decompositions"]
)
"""Lets torch register, once, what it does with some operators in ``vmap``."""


@functools.cache
def load_forward_rules() -> None:
    """Let torch register what it does with some operators in forward mode, as ``make_dual`` does."""
    importlib.import_module("torch._decomp.decompositions_for_jvp")


LEVEL_STATES: dict[Any, Any] = {
    _functorch.set_inplace_requires_grad_allowed: _functorch.get_inplace_requires_grad_allowed,
    torch._C._set_fwd_grad_enabled: torch._C._is_fwd_grad_enabled,
}
"""What sets, and what reads, states of the thread that transforms switch."""


_kinds: Any = _functorch.TransformType
_LEAVE: dict[Any, Callable[[], int]] = {
    _kinds.Vmap: _functorch._vmap_decrement_nesting,
    _kinds.Grad: _functorch._grad_decrement_nesting,
    _kinds.Jvp: _functorch._jvp_decrement_nesting,
}


class TransformState:
    """The levels of transforms, and the states that they switch, that this thread is in.

    No level of forward-mode gradients, of which there can be one, has been entered.
    """

    def __init__(self) -> None:
        self._depth = _functorch.get_dynamic_layer_stack_depth()
        self._states = {setter: getter() for setter, getter in LEVEL_STATES.items()}

    def restore(self, dual: bool) -> None:
        """Leave the levels that were entered since; ``dual``: that of forward-mode gradients too."""
        while _functorch.get_dynamic_layer_stack_depth() > self._depth:
            _LEAVE[_functorch.peek_interpreter_stack().key()]()
        for setter, value in self._states.items():
            setter(value)
        if dual:
            with suppress(RuntimeError):  # what there is already
                torch._C._enter_dual_level()
            torch._C._exit_dual_level(level=0)
