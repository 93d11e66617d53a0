"""The operator by which a captured graph holds the backward pass of a ``torch.autograd.Function``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd.function import once_differentiable

Backward = Callable[..., tuple[Any, ...]]  # a torch.fx.GraphModule as captured


class GradientRule:
    """The target of a node that gives some results of a graph the gradients that the program wrote.

    The node is called with ``(results, inputs, saved, kept)`` where gradients are enabled.  ``results``,
    tensors without a history, come back as a tuple, computed from the tensors ``inputs`` as far as autograd
    is concerned.  ``backward`` takes the gradients of the results, then ``saved``, then ``kept`` (``saved``
    are tensors whose later changes are an error, ``kept`` are other tensors and numbers), and gives a tuple:
    for each input its gradient, or None.  ``once``: the gradients have no gradients themselves.
    """

    is_gradient_rule = True

    def __init__(self, name: str, backward: Backward, *, once: bool) -> None:
        self.__name__ = self.__qualname__ = name
        self.backward = backward
        self.once = once
        base = _OnceDifferentiable if once else _Differentiable
        self._function: Any = type(name, (base,), {})

    def __call__(
        self,
        results: Sequence[torch.Tensor],
        inputs: Sequence[torch.Tensor],
        saved: Sequence[torch.Tensor],
        kept: Sequence[Any],
    ) -> tuple[torch.Tensor, ...]:
        given: tuple[torch.Tensor, ...] = self._function.apply(
            self.backward, tuple(results), tuple(saved), tuple(kept), *inputs
        )
        return given

    def with_backward(self, backward: Backward) -> GradientRule:
        """The same rule by another form of its backward."""
        return GradientRule(self.__name__, backward, once=self.once)

    def __repr__(self) -> str:
        return f"GradientRule({self.__name__})"


class _Differentiable(torch.autograd.Function):
    """Results that are there already, and their gradients by a graph."""

    @staticmethod
    def forward(
        ctx: Any,
        backward: Backward,
        results: tuple[torch.Tensor, ...],
        saved: tuple[torch.Tensor, ...],
        kept: tuple[Any, ...],
        *inputs: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        ctx.run, ctx.kept = backward, kept
        ctx.save_for_backward(*saved)
        return results

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        return (None, None, None, None, *ctx.run(*gradients, *ctx.saved_tensors, *ctx.kept))


class _OnceDifferentiable(_Differentiable):
    backward = staticmethod(once_differentiable(_Differentiable.backward))  # type: ignore[assignment]


def replace_gradient(tensor: torch.Tensor, gradient: torch.Tensor) -> None:
    """Let backward go on from ``tensor`` with ``gradient``, which a hook of the program's gave.

    The target of a node that stands between two calls of ``torch.autograd.grad``.
    """
    tensor.register_hook(lambda _: gradient)


def gradients_past_hooks(inputs: Sequence[torch.Tensor], **given: Any) -> tuple[Any, ...]:
    """``torch.autograd.grad`` of leaves whose hooks are not called: the graph has what they do."""
    hooks: list[dict[Any, Any]] = [t._backward_hooks for t in inputs if t._backward_hooks]
    kept = [dict(own) for own in hooks]
    for own in hooks:
        own.clear()
    try:
        return tuple(torch.autograd.grad(inputs=inputs, **given))
    finally:
        for own, before in zip(hooks, kept, strict=True):
            own.update(before)
