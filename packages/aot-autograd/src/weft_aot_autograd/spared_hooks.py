"""Hooks of tensors that get no gradient in a backward: eager does not call them, so nor does a graph.

To autograd all results of a graph come from one function.  Where only some are differentiated it goes on to
every argument, with no gradient for those that these results don't depend on, and would call hooks of such an
argument with None.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from ._torch import behind_backward, hooks_behind

Hooks = dict[int, Any]
"""A tensor's hooks by the keys of their handles: autograd reads this very dict."""


class _Spared:
    """``hook``, which is called where there is a gradient."""

    def __init__(self, hook: Any) -> None:
        self.hook = hook

    def __call__(self, gradient: torch.Tensor | None) -> Any:
        return None if gradient is None else self.hook(gradient)


class _Accumulation:
    """Whether the backward that is running has accumulated a leaf's gradient, as first asked."""

    def __init__(self, leaf: torch.Tensor) -> None:
        self._before = self._gradient_of(leaf)
        self._is_done: bool | None = None

    def is_done(self, leaf: torch.Tensor) -> bool:
        if self._is_done is None:
            before, version = self._before
            gradient, now = self._gradient_of(leaf)
            self._is_done = gradient is not before or now != version
        return self._is_done

    @staticmethod
    def _gradient_of(leaf: torch.Tensor) -> tuple[torch.Tensor | None, int]:
        gradient = leaf.grad
        return gradient, 0 if gradient is None else gradient._version


class _SparedBehind(_Spared):
    """``hook``, which is called with a leaf where its gradient has been accumulated."""

    def __init__(self, hook: Any, accumulation: _Accumulation) -> None:
        super().__init__(hook)
        self._accumulation = accumulation

    def __call__(self, leaf: Any) -> Any:
        return self.hook(leaf) if self._accumulation.is_done(leaf) else None


def spare_behind(leaves: Iterable[torch.Tensor]) -> None:
    """Do not call what is registered for when the leaves' gradients are accumulated, where none is."""
    spared = []
    for leaf in leaves:
        hooks = hooks_behind(leaf)
        own = [key for key, hook in hooks.items() if not isinstance(hook, _Spared)]
        accumulation = _Accumulation(leaf)
        hooks.update({key: _SparedBehind(hooks[key], accumulation) for key in own})
        if own:
            spared.append(hooks)
    if spared:
        behind_backward(lambda: _restore(spared))


def spare(absent: Iterable[Hooks]) -> None:
    """Do not call with None the hooks of tensors that get no gradient in the backward that is running."""
    spared = []
    for hooks in absent:
        # Torch's own hooks for several tensors count the calls, those without a gradient too.
        own = [key for key, hook in hooks.items() if _is_programs_own(hook)]
        hooks.update({key: _Spared(hooks[key]) for key in own})
        if own:
            spared.append(hooks)
    if spared:
        behind_backward(lambda: _restore(spared))


def _is_programs_own(hook: Any) -> bool:
    return (
        not isinstance(hook, _Spared) and getattr(hook, "__module__", "") != "torch.autograd.graph"
    )


def _restore(spared: Sequence[Hooks]) -> None:
    for hooks in spared:
        for key, hook in hooks.items():
            if isinstance(hook, _Spared):
                hooks[key] = hook.hook
