"""Edges of autograd's graph from results to others, and to arguments' new values, that they come from.

``h = x.exp(); return h, h.sin()``: in eager the second result's history leads to the first, and somebody may
ask for that gradient, or hook it.  So it is with ``a`` in ``a.mul_(b); return a.sin()``.  To autograd a
compiled graph is one function, which gives all.  So a result that leads through others is behind a node that
goes there too::

      result              the other
         |                     |
    ThroughOthers ----------> its node
         |                     |
          CompiledFunction <---

Backward of the compiled function takes results' gradients all the way to the arguments' old values.  So
nothing goes along the new edge, as a rule.  Only where somebody sees it, it is the other's gradient, by the
captured graph in eager; what was sent is then taken off what comes back to the compiled function.

A view is another, too, though no result of the compiled function: its gradient goes on to what it is of,
which may be an argument.  So there is an edge to this as well, along which goes what is taken off.

The keys of a model's last layer lead through those of each layer before.  Such a node has edges only to the
nearest others, through which the rest is reached: what it has for the rest waits there.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from weft_functionalize import OutputKind, run_again

from ._torch import apply_to_plain, attached_hooks, will_visit
from .derivation import gradients_of
from .kept_inputs import kept_inputs
from .random_state import numbers_of_forward
from .saved_values import check_version, is_unchanged
from .sent_gradients import SentGradients
from .separate_edges import goes_to_all_leaves, never_asked_for
from .training_plan import Plan


def lead_through(
    results: Sequence[torch.Tensor],
    outputs: Sequence[int],
    others: Sequence[int],
    nearest: Sequence[int],
    tensors: Sequence[torch.Tensor],
) -> Sequence[torch.Tensor]:
    """The ``results`` of one compiled function that are its ``outputs``, with edges to ``others``.

    Those that are not among ``nearest`` are led to by some that are, which this function has given.  The
    nearest are the first of ``tensors``: outputs, or arguments that have been given their values, or views,
    whose numbers are negative.  The others are what these views are of.
    """
    node: Any = results[0].grad_fn
    node = getattr(node, "compiled", node)
    plan: Plan | None = getattr(node, "plan", None)
    if plan is None or not plan.runs_again:
        return results
    known: dict[int, _Watch] = node.values.watches
    for output, tensor in zip(nearest, tensors, strict=False):
        if output not in known:
            known[output] = _Watch(tensor)
    leaf = never_asked_for()
    made: tuple[torch.Tensor, ...] = apply_to_plain(
        ThroughOthers, node, others, nearest, outputs, leaf, *tensors, *results
    )
    return made


class _Watch:
    """Whether anybody sees a tensor's gradient.  It does not hold the tensor: that may lead here."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = weakref.ref(tensor)
        self._hooks = attached_hooks(tensor)  # the tensor may be gone before its hooks are

    @property
    def is_there(self) -> bool:
        """Whether somebody may ask for the tensor's gradient."""
        return self._tensor() is not None

    def sees(self) -> bool:
        tensor = self._tensor()
        return bool(self._hooks) or (tensor is not None and tensor.retains_grad)


_LEADING = 5
"""What :class:`ThroughOthers` takes before others and results."""


class ThroughOthers(torch.autograd.Function):
    """Results as they are, whose gradients go to the compiled function, and to others where they are seen."""

    @staticmethod
    def forward(
        ctx: Any,
        compiled: Any,
        others: Sequence[int],
        nearest: Sequence[int],
        outputs: Sequence[int],
        leaf: torch.Tensor,
        *tensors: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        ctx.compiled, ctx.others, ctx.nearest, ctx.outputs = compiled, others, nearest, outputs
        values = compiled.values
        if values.autocast is None:
            values.autocast = [
                (kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind))
                for kind in compiled.plan.device_types
            ]
        ctx.set_materialize_grads(False)
        return tuple(tensor.detach() for tensor in tensors[-len(outputs) :])

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
        sent: SentGradients = ctx.compiled.values.sent
        known = {k: g for k, g in zip(ctx.outputs, gradients, strict=True) if g is not None}
        given = sent.taken_off(known) if known else known
        seen = _seen(ctx) if given else []
        if any(seen):
            with _casting(ctx.compiled.values.autocast):
                results = _run_again(ctx.compiled)
            asked = [output for output, is_seen in zip(ctx.others, seen, strict=True) if is_seen]
            wanted = [results[output] for output in asked]
            keep = torch.is_grad_enabled()
            # what eager knows views to be of may have other dimensions than what the graph gives
            tangents = [gradient.reshape(results[k].shape) for k, gradient in given.items()]
            found = gradients_of(results, [*given], tangents, wanted, create_graph=keep)
            for output, gradient in zip(asked, found, strict=True):
                if gradient is not None:
                    sent.note(output, gradient)
        to_others: Sequence[Any] = [None] * (len(ctx.needs_input_grad) - _LEADING - len(gradients))
        if sent.are_any:
            to_others = sent.handed_on(ctx.nearest)
            to_others += _taken_off_bases(ctx, to_others)
        return (*(None,) * _LEADING, *to_others, *gradients)


def _taken_off_bases(ctx: Any, sent: Sequence[Any]) -> list[Any]:
    """What goes to the bases of views, so that they don't get what the views are ``sent`` a second time."""
    functions = ctx.next_functions[1:]  # behind the leaf
    bases = iter(functions[len(ctx.nearest) : -len(ctx.outputs)])
    found = []
    for output, (node, _), gradient in zip(ctx.nearest, functions, sent, strict=False):
        if output < 0:
            base, _ = next(bases)
            while gradient is not None and node is not base:
                gradient = node(gradient)
                node = node.next_functions[0][0]
            finite = None if gradient is None else torch.where(gradient.isfinite(), -gradient, 0)
            found.append(finite)
    return found


def _seen(ctx: Any) -> list[bool]:
    """Whether somebody may see the gradients of what :class:`ThroughOthers` leads through.

    ``torch.autograd.grad`` may have been asked for one where it visits its node; that it has is certain if
    it visits nothing behind.
    """
    known: Mapping[int, _Watch] = ctx.compiled.values.watches
    watches = [known[output] for output in ctx.others]
    if goes_to_all_leaves():
        return [watch.sees() for watch in watches]
    nodes = _nodes_of_others(ctx)
    seen, is_certain = [], False
    for output, watch in zip(ctx.others, watches, strict=True):
        node = nodes[output]
        is_visited = watch.is_there and will_visit(node)
        seen.append(watch.sees() or is_visited)
        behind = (function for function, _ in node.next_functions if function is not None)
        is_certain |= seen[-1] and (watch.sees() or not any(map(will_visit, behind)))
    if is_certain or not any(seen) or _may_run_again(ctx.compiled):
        return seen
    return [False] * len(seen)


def _nodes_of_others(ctx: Any) -> Mapping[int, Any]:
    """The nodes of what :class:`ThroughOthers` leads through, by output."""
    nodes: dict[int, Any] = {}
    pending = [ctx]
    while pending:
        through = pending.pop()
        functions = through.next_functions[1:]  # behind the leaf
        for output, (node, _) in zip(through.nearest, functions, strict=False):
            if output not in nodes:
                nodes[output] = node
                if getattr(node, "compiled", None) is ctx.compiled and hasattr(node, "nearest"):
                    pending.append(node)
    return nodes


@contextlib.contextmanager
def _casting(states: Sequence[tuple[str, bool, torch.dtype]]) -> Iterator[None]:
    """With autocast as it was in forward: by kind of device, whether it is on, and its dtype."""
    with contextlib.ExitStack() as stack:
        for kind, enabled, dtype in states:
            stack.enter_context(torch.autocast(kind, dtype=dtype, enabled=enabled))
        yield


def _may_run_again(ctx: Any) -> bool:
    """Whether what a call's graph was given, and drew, is known."""
    is_drawn_alike = ctx.random_state is None or ctx.plan.draws_alike
    return is_drawn_alike and all(map(is_unchanged, ctx.kept, ctx.versions))


def _run_again(ctx: Any) -> Mapping[int, Any]:
    """What a call's captured graph gives in eager, by output: the new values of arguments among them.

    Eager's autograd knows what views of an argument have to do with it.
    """
    plan: Plan = ctx.plan
    every = kept_inputs(ctx)
    written = {
        descriptor.input_index
        for descriptor in plan.functional.outputs
        if descriptor.kind is OutputKind.MUTATED_INPUT
    }
    # Of what changes a view's layout the version, which the view shares, would tell as of a write.
    written |= {k for k, d in enumerate(plan.functional.inputs) if d.layout_changes}
    with torch.enable_grad(), numbers_of_forward(ctx):
        for value, version in zip(ctx.kept, ctx.versions, strict=True):
            check_version(value, version)
        for index, value in enumerate(every):
            if isinstance(value, torch.Tensor):  # a module's own where no gradient depends on it
                every[index] = value.clone() if index in written else value.view_as(value)
        return run_again(plan.functional, every)
