"""Runs compiled forward and backward graphs as one function of torch's autograd."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.fx
from weft_functionalize import FunctionalGraph, count_writes

from ._torch import (
    apply_to_plain,
    are_any_wrapped,
    behind_backward,
    keeps_graph,
    packs_saved_tensors,
    stands_for_another,
)
from .backward_by_operators import backward_by_operators
from .derivation import Derivation
from .differentiable_backward import CompileGradients, DifferentiableBackward
from .edges_to_others import lead_through
from .expected_backward import ExpectedBackward
from .held_values import check_held, watch_held
from .hooks_of_arguments import hooked, spare_hooks
from .joint_graph import PartitionedGraph
from .overwritten_arguments import arguments_before
from .partition import BackwardSegment
from .random_state import RandomState
from .replay import run_operators
from .saved_values import forget_inputs, is_kept, release, take_saved, versions_of
from .segments import Program, Segment, Values
from .separate_edges import led_to
from .training_plan import CompileLater, Plan, placed


class TrainingProgram:
    """Calls ``forward`` so that autograd calls ``backward``: takes user inputs, gives the graph's outputs.

    ``forward`` takes the user inputs of ``functional`` in order (lifted tensors are bound into it) and
    returns what ``partitioned.forward`` does; ``backward`` is called as ``partitioned.backward`` is.  Where
    ``forward`` has ``donate``, that is called: what is saved may then be memory that forward writes to again
    when backward has let go of it.
    Parameters are read from ``functional.lifted``.  The outputs belong to the caller's autograd graph:
    hooks, accumulation and ``retain_graph`` work as for any operator.  What backward with ``create_graph``
    computes is compiled by ``compile_gradients`` the first time (see :mod:`.differentiable_backward`); where
    that gives None the functional graph runs again operator by operator, with one warning.  ``derivation``
    says how to do so, if not by the functional graph.

    ``backward`` may be segments with their programs instead: each is a node of autograd's own, so that what
    waits for the gradients of one (hooks, the communication of data parallel training) runs before the next.
    Where only some outputs have a gradient, backward may be a graph without the others', compiled by
    ``compile_later`` the first time (see :mod:`.partial_backward`).  With ``expected``, ``backward`` is the
    program of that segment, and the whole is what may be compiled later.
    """

    def __init__(
        self,
        functional: FunctionalGraph,
        partitioned: PartitionedGraph,
        forward: Program,
        backward: Program | Sequence[tuple[BackwardSegment, Program]],
        compile_later: CompileLater = run_operators,
        compile_gradients: CompileGradients | None = None,
        derivation: Derivation | None = None,
        expected: ExpectedBackward | None = None,
    ) -> None:
        self._plan = Plan(
            functional, partitioned, forward, backward, compile_later, derivation, expected
        )
        if compile_gradients is not None:
            self._plan.differentiable_backward = DifferentiableBackward(compile_gradients)
        self._lifted = tuple(functional.lifted[i] for i in self._plan.lifted_indices)
        self._unreached = _unreached(self._plan)
        written = {output.input_index for output in partitioned.outputs}
        indices = enumerate(self._plan.argument_indices)
        self._written = frozenset(k for k, index in indices if index in written)
        # What forward says of its errors, as a program without gradients says it of its own.
        self.may_fail: bool = getattr(forward, "may_fail", True)
        self.early_errors: type[Exception] | None = getattr(forward, "early_errors", None)
        self.left_changes: Callable[[], bool] | None = getattr(forward, "left_changes", None)
        self.failed_check: Callable[[], bool] | None = getattr(forward, "failed_check", None)
        self.extern_count: int = getattr(forward, "extern_count", 1)

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        arguments = [*self._lifted, *inputs]
        without_edges = [k for k in self._unreached if _requires_grad(arguments[k])]
        for k in without_edges:
            if k not in self._written:
                arguments[k] = arguments[k].detach()
        values = Values()
        later: Any = None
        for segment in reversed(self._plan.segments[1:]):
            later = LaterSegment.apply(segment, values, later, *segment.select(arguments))  # type: ignore[no-untyped-call]
        results = _applied(self._plan, values, later, arguments, without_edges)
        written, values.written = values.written, {}
        return (
            tuple(written.get(k, result) for k, result in enumerate(results))
            if written
            else results
        )

    counts_writes = True
    lead_through = staticmethod(lead_through)


def _requires_grad(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


def _applied(
    plan: Plan,
    values: Values,
    later: Any,
    arguments: Sequence[Any],
    without_edges: Sequence[int],
) -> tuple[Any, ...]:
    """The results, with edges in autograd's graph to the arguments that each leads to.

    The arguments at the positions ``without_edges`` get none; what is written to is to stay the caller's.
    """
    passed = [*arguments]
    for k in without_edges:
        passed[k] = arguments[k].detach()
    if plan.leads_nowhere:
        # Results have a history all the same, of which eager's backward visits nothing.
        passed = [torch.empty(0, requires_grad=True) if _requires_grad(a) else a for a in passed]
    edges = plan.partly_reached.separate_edges(arguments)
    tickets = {}
    if edges is not None:
        tickets = edges.open(arguments)
        passed = edges.cut(passed)
    values.arguments, values.separate_edges = tuple(arguments), edges
    values.overwritten = arguments_before(plan, arguments)
    if are_any_wrapped(plan.take_tensor_inputs(passed)):
        results: tuple[Any, ...] = CompiledFunction.apply(plan, values, later, *passed)  # type: ignore[no-untyped-call]
    else:
        results = apply_to_plain(CompiledFunction, plan, values, later, *passed)
    if edges is not None:
        nodes = [r.grad_fn for r in results if isinstance(r, torch.Tensor) and r.requires_grad]
        if nodes:  # none, as data may decide
            compute = functools.partial(_compute_early, nodes[0])
            results = edges.join(tickets, results, compute)
    return results


def _compute_early(ctx: Any, given: Mapping[int, Any]) -> None:
    """Backward before the function's own turn in it, or in its stead; there may be more gradients later."""
    plan: Plan = ctx.plan
    gradients = tuple(given.get(k) for k in range(plan.returned_count))
    ctx.values.is_kept = True
    try:
        CompiledFunction.backward(ctx, *gradients)
    finally:
        ctx.values.is_kept = False
    if not keeps_graph():
        behind_backward(functools.partial(_forget, ctx, plan.present(gradients)))


def _forget(ctx: Any, present: frozenset[int]) -> None:
    release(ctx, present)
    forget_inputs(ctx)


def _unreached(plan: Plan) -> tuple[int, ...]:
    """The arguments that backward never goes on to: hooks of theirs would be called without a gradient.

    None where it goes on to none: results that lead nowhere require gradients as the arguments do.
    """
    if not plan.gradients:
        return ()
    reached = {*plan.gradients, *plan.missing.arguments}
    return tuple(k for k in range(len(plan.argument_indices)) if k not in reached)


_LEADING = 3
"""What :class:`CompiledFunction` takes before the arguments."""


class CompiledFunction(torch.autograd.Function):
    """One compiled graph in autograd, whose backward is the first of the plan's segments."""

    @staticmethod
    def forward(
        ctx: Any, plan: Plan, values: Values, later: Any, *arguments: Any
    ) -> tuple[Any, ...]:
        ctx.plan, ctx.values = plan, values
        ctx.set_materialize_grads(False)
        ctx.remaining = ctx.taken = None
        passed = arguments
        if values.arguments is not None:
            arguments, values.arguments = values.arguments, None
        if plan.writes:
            _note_arguments(ctx, passed, arguments)
        ctx.random_state = RandomState(plan.cuda_devices) if plan.random else None
        packs = packs_saved_tensors()  # then others see what is saved, and may keep it
        forward = plan.forward if packs else plan.donating_forward
        results = forward(*arguments[plan.lifted_count :])
        if not plan.writes:  # while a GPU is at work
            _note_arguments(ctx, passed, arguments)
        if plan.written_results:
            count_writes(plan.written_results, results)
        if ctx.random_state is not None:
            ctx.random_state.note_end()
        to_save = results if packs else plan.results_to_save(results, arguments)
        ctx.apart, saved = plan.saved_layout(is_packed=packs).divided(arguments, to_save)
        ctx.save_for_backward(*saved)
        ctx.saved_versions = versions_of(saved)
        ctx.layouts = plan.tangent_layouts(results)
        ctx.watched = None if packs else watch_held(plan, arguments, results)
        index = plan.given.flags_index
        ctx.flags = None if index is None else results[index]
        values.written = written = plan.written_in_place(results, arguments)
        constants = [k for k in plan.constants if k not in written]
        if plan.given.in_some_calls:
            constants += plan.given.without_gradients(ctx.flags)
        if constants:
            ctx.mark_non_differentiable(*(results[index] for index in constants))
        returned = results[: plan.returned_count]
        if not written:
            return tuple(returned)
        # autograd would make a view of an argument that it is given back
        return tuple(None if k in written else result for k, result in enumerate(returned))

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
        plan: Plan = ctx.plan
        sent = ctx.values.sent
        if sent.are_any:
            gradients = tuple(sent.taken_off(dict(enumerate(gradients))).values())
        present = plan.present(gradients)
        unvisited = plan.unvisited(ctx, present)
        if unvisited:
            present -= unvisited
            outputs = {plan.tangents[k].output_index for k in unvisited}
            gradients = tuple(None if k in outputs else g for k, g in enumerate(gradients))
        if plan.is_unreached(present):
            if not is_kept(ctx) and ctx.apart is not None:
                release(ctx, frozenset())
            returned = placed(plan, (), ())
        else:
            returned = CompiledFunction.gradients(ctx, gradients, present)
        if len(present) < len(plan.tangents) or ctx.flags is not None:
            spare_hooks(ctx, returned)
        forget_inputs(ctx)
        edges = ctx.values.separate_edges
        return returned if edges is None else (*[None] * _LEADING, *edges.keep(returned[_LEADING:]))

    @staticmethod
    def gradients(ctx: Any, gradients: tuple[Any, ...], present: frozenset[int]) -> tuple[Any, ...]:
        """What backward returns, where any of the results' ``gradients`` leads to an argument.

        ``present`` are the tangents among them, by position.
        """
        plan: Plan = ctx.plan
        plan.missing.check(ctx, gradients)
        check_held(ctx, present)
        if any(g is not None and stands_for_another(g) for g in gradients):
            return backward_by_operators(ctx, gradients, present)
        if torch.is_grad_enabled():
            by_programs = plan.differentiable_backward
            returned = None if by_programs is None else by_programs(ctx, gradients, present)
            if returned is None:
                returned = backward_by_operators(ctx, gradients, present)
            return returned
        partial = _take_known(ctx, gradients, present)
        ctx.values.absent = plan.absent(gradients, ctx.flags)
        if partial is not None:
            computed = partial.run(ctx.values, is_last=True)
            return placed(plan, partial.arguments, computed)
        first = plan.segments[0]
        computed = first.run(ctx.values, is_last=len(plan.segments) == 1)
        return placed(plan, first.arguments, computed)


def _note_arguments(ctx: Any, passed: Sequence[Any], arguments: Sequence[Any]) -> None:
    """Keep in the context what backward may have to know of the ``arguments``, as they are before any write.

    ``passed`` are those that autograd sees, where others stand for some.
    """
    plan: Plan = ctx.plan
    ctx.hooks = hooked(plan, passed)
    overwritten, ctx.values.overwritten = ctx.values.overwritten, {}
    ctx.kept = plan.take_kept(arguments)
    if overwritten:
        pairs = zip(plan.kept, ctx.kept, strict=True)
        ctx.kept = tuple(overwritten.get(k, value) for k, value in pairs)
    ctx.versions = versions_of(ctx.kept)


def _take_known(ctx: Any, gradients: tuple[Any, ...], present: frozenset[int]) -> Segment | None:
    """Take what backward reads; gives the part that does for the gradients there, None for the whole.

    Nobody else holds what was saved, so that backward may let go of it.
    """
    plan: Plan = ctx.plan
    part, ctx.values.known = _saved_for(ctx, present)
    known = ctx.values.known
    first = len(known)
    known += [None] * len(plan.tangents)
    every = range(len(plan.tangents))
    for k in every if part is None else (p - first for p in part.inputs if p >= first):
        tangent = plan.tangents[k]
        known[first + k] = tangent.prepare(gradients[tangent.output_index], ctx.layouts[k])
    return part


def _saved_for(ctx: Any, present: frozenset[int]) -> tuple[Segment | None, list[Any]]:
    """A part of backward that does for the tangents that are there, None for the whole; what that reads.

    Eager's autograd reads only what is saved on its way from results to what it computes gradients of.
    """
    plan: Plan = ctx.plan
    part = plan.partial_stage(present, is_repeated=ctx.remaining is not None)
    try:
        return part, take_saved(ctx, present, None if part is None else part.inputs)
    except RuntimeError:  # some of it was let go of, or written to
        wanted = frozenset(led_to(ctx, plan.gradients))
        present = plan.leading_to(wanted, present)
        part = plan.smallest_stage(present, wanted)
        if part is None:
            raise
    return part, take_saved(ctx, present, part.inputs)


class LaterSegment(torch.autograd.Function):
    """A later segment of backward: takes what it computes the gradients of, gives a tensor without elements.

    That tensor ties it to the node of the segment before, which runs first.
    """

    @staticmethod
    def forward(ctx: Any, segment: Segment, values: Values, later: Any, *tensors: Any) -> Any:
        ctx.segment, ctx.values, ctx.is_last = segment, values, later is None
        ctx.set_materialize_grads(False)
        return torch.empty(0)

    @staticmethod
    def backward(ctx: Any, _: Any) -> tuple[Any, ...]:
        if ctx.values.known is None:  # the first segment has run all operators
            return (None,) * (3 + len(ctx.segment.arguments))
        computed = ctx.segment.run(ctx.values, ctx.is_last)
        return None, None, None, *computed
