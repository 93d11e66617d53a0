"""Edges of autograd's graph from results to the new values of arguments that a graph writes to.

``a.mul_(b); return a.sin()``: in eager the result's history leads to ``a`` as it is afterwards, and somebody
may ask for that gradient, or hook it.  To autograd a compiled graph is one function, which gives both.  So a
result that leads through an argument's new value is behind a node that goes there too::

      result            argument, written to
         |                     |
    ThroughWritten ---------> its node
         |                     |
          CompiledFunction <---

Backward of the compiled function takes results' gradients all the way to the arguments' old values.  So
nothing goes along the new edge, as a rule.  Only where somebody sees it, it is the argument's gradient, by
the captured graph in eager; what was sent is then taken off what comes back to the compiled function.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from weft_functionalize import run_again

from ._torch import hooks_of, will_visit
from .derivation import gradients_of
from .kept_inputs import kept_inputs
from .random_state import numbers_of_forward
from .saved_values import check_version
from .training_plan import Plan


def lead_through(
    results: Sequence[torch.Tensor], outputs: Sequence[int], written: Mapping[int, torch.Tensor]
) -> Sequence[torch.Tensor]:
    """The ``results`` of one compiled function that are its ``outputs``, with edges to arguments.

    ``written`` are these, with their new values, by the output that their value is.
    """
    node = results[0].grad_fn
    node = getattr(node, "compiled", node)
    arguments = [tensor for tensor in written.values() if tensor.requires_grad]
    if len(arguments) < len(written) or not hasattr(node, "plan"):
        return results
    watches = [_Watch(tensor) for tensor in arguments]
    made: tuple[torch.Tensor, ...] = ThroughWritten.apply(  # type: ignore[no-untyped-call]
        node, tuple(written), outputs, watches, _never_asked_for(), *arguments, *results
    )
    return made


@functools.cache
def _never_asked_for() -> torch.Tensor:
    """A leaf that a backward visits only if it goes to all leaves, since nobody can ask for it."""
    return torch.empty(0, requires_grad=True)


class _Watch:
    """Whether anybody sees an argument's gradient.  It does not hold the tensor: that may lead here."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = weakref.ref(tensor)
        tensor.register_hook(_see_nothing)  # the tensor may be gone before its hooks are
        self._hooks = hooks_of(tensor)

    @property
    def is_there(self) -> bool:
        """Whether somebody may ask for the tensor's gradient."""
        return self._tensor() is not None

    def sees(self) -> bool:
        tensor = self._tensor()
        return len(self._hooks) > 1 or (tensor is not None and tensor.retains_grad)


def _see_nothing(gradient: torch.Tensor | None) -> None:
    pass


class ThroughWritten(torch.autograd.Function):
    """Results as they are, whose gradients go to the compiled function, and to arguments if they are seen."""

    @staticmethod
    def forward(
        ctx: Any,
        compiled: Any,
        written: Sequence[int],
        outputs: Sequence[int],
        watches: Sequence[_Watch],
        leaf: torch.Tensor,
        *tensors: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        ctx.compiled, ctx.written, ctx.outputs, ctx.watches = compiled, written, outputs, watches
        ctx.autocast = [
            (kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind))
            for kind in compiled.plan.device_types
        ]
        ctx.set_materialize_grads(False)
        return tuple(tensor.detach() for tensor in tensors[len(written) :])

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
        goes_to_all = will_visit(ctx.next_functions[0][0])
        nodes = [node for node, _ in ctx.next_functions[1 : 1 + len(ctx.written)]]
        seen = [
            watch.sees() or (not goes_to_all and watch.is_there and will_visit(node))
            for watch, node in zip(ctx.watches, nodes, strict=True)
        ]
        sent: list[Any] = [None] * len(seen)
        known = {k: g for k, g in zip(ctx.outputs, gradients, strict=True) if g is not None}
        given = ctx.compiled.values.sent.taken_off(known)
        if any(seen) and given:
            with _casting(ctx.autocast):
                results = _run_again(ctx.compiled)
            wanted = [results[output] for output in ctx.written]
            found = gradients_of(
                results,
                [*given],
                [*given.values()],
                wanted,
                create_graph=torch.is_grad_enabled(),
            )
            sent = [g if is_seen else None for g, is_seen in zip(found, seen, strict=True)]
        for output, gradient in zip(ctx.written, sent, strict=True):
            if gradient is not None:
                ctx.compiled.values.sent.note(output, gradient)
        return None, None, None, None, None, *sent, *gradients


@contextlib.contextmanager
def _casting(states: Sequence[tuple[str, bool, torch.dtype]]) -> Iterator[None]:
    """With autocast as it was in forward: by kind of device, whether it is on, and its dtype."""
    with contextlib.ExitStack() as stack:
        for kind, enabled, dtype in states:
            stack.enter_context(torch.autocast(kind, dtype=dtype, enabled=enabled))
        yield


def _run_again(ctx: Any) -> Mapping[int, Any]:
    """What a call's captured graph gives in eager, by output: the new values of arguments among them.

    Eager's autograd knows what views of an argument have to do with it.
    """
    plan: Plan = ctx.plan
    if not plan.replayable:
        raise RuntimeError(
            "weft: gradients of arguments that a graph writes to are not supported here"
        )
    every = kept_inputs(ctx)
    with torch.enable_grad(), numbers_of_forward(ctx):
        for k, value, version in zip(plan.kept, ctx.kept, ctx.versions, strict=True):
            check_version(value, version)
            if isinstance(value, torch.Tensor):
                written = k in plan.overwritten
                every[plan.argument_indices[k]] = value.clone() if written else value.view_as(value)
        return run_again(plan.functional, every)
