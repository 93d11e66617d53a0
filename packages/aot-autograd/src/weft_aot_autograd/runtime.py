"""Runs compiled forward and backward graphs as one function of torch's autograd."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx
from weft_functionalize import FunctionalGraph

from ._torch import keeps_graph, packs_saved_tensors, stands_for_another
from .backward_by_operators import backward_by_operators
from .derivation import Derivation
from .differentiable_backward import CompileGradients, DifferentiableBackward
from .joint_graph import PartitionedGraph
from .partition import BackwardSegment
from .random_state import RandomState
from .saved_values import release, take_saved, versions_of
from .spared_hooks import hooked, spare_hooks
from .training_plan import CompileLater, Plan, Program, Segment, Values, placed


def _run_operators(graph_module: torch.fx.GraphModule) -> Program:
    return graph_module.forward


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
    ``compile_later`` the first time (see :mod:`.partial_backward`).
    """

    def __init__(
        self,
        functional: FunctionalGraph,
        partitioned: PartitionedGraph,
        forward: Program,
        backward: Program | Sequence[tuple[BackwardSegment, Program]],
        compile_later: CompileLater = _run_operators,
        compile_gradients: CompileGradients | None = None,
        derivation: Derivation | None = None,
    ) -> None:
        self._plan = Plan(functional, partitioned, forward, backward, compile_later, derivation)
        if compile_gradients is not None:
            self._plan.differentiable_backward = DifferentiableBackward(compile_gradients)
        self._lifted = tuple(functional.lifted[i] for i in self._plan.lifted_indices)
        self._unreached = _unreached(self._plan, partitioned)
        # What forward says of its errors, as a program without gradients says it of its own.
        self.may_fail: bool = getattr(forward, "may_fail", True)
        self.early_errors: type[Exception] | None = getattr(forward, "early_errors", None)
        self.left_changes: Callable[[], bool] | None = getattr(forward, "left_changes", None)
        self.extern_count: int = getattr(forward, "extern_count", 1)

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        arguments = [*self._lifted, *inputs]
        for k in self._unreached:
            if isinstance(arguments[k], torch.Tensor) and arguments[k].requires_grad:
                arguments[k] = arguments[k].detach()
        values = Values()
        later: Any = None
        for segment in reversed(self._plan.segments[1:]):
            later = LaterSegment.apply(segment, values, later, *segment.select(arguments))  # type: ignore[no-untyped-call]
        results: tuple[Any, ...] = CompiledFunction.apply(self._plan, values, later, *arguments)  # type: ignore[no-untyped-call]
        written, values.written = values.written, {}
        return (
            tuple(written.get(k, result) for k, result in enumerate(results))
            if written
            else results
        )


def _unreached(plan: Plan, partitioned: PartitionedGraph) -> tuple[int, ...]:
    """The arguments that backward never goes on to: hooks of theirs would be called without a gradient.

    None where it goes on to none: results that lead nowhere require gradients as the arguments do.
    """
    if not plan.gradients:
        return ()
    written = {output.input_index for output in partitioned.outputs}
    reached = {*plan.gradients, *plan.missing.arguments}
    return tuple(
        k
        for k, index in enumerate(plan.argument_indices)
        if k not in reached and index not in written
    )


class CompiledFunction(torch.autograd.Function):
    """One compiled graph in autograd, whose backward is the first of the plan's segments."""

    @staticmethod
    def forward(
        ctx: Any, plan: Plan, values: Values, later: Any, *arguments: Any
    ) -> tuple[Any, ...]:
        ctx.plan, ctx.values = plan, values
        ctx.set_materialize_grads(False)
        ctx.remaining = None
        ctx.hooks = hooked(plan, arguments)
        ctx.kept = [arguments[k] for k in plan.kept]
        ctx.versions = versions_of(ctx.kept)
        for position in plan.unread:
            ctx.versions[position] = None
        ctx.random_state = RandomState(plan.cuda_devices) if plan.random else None
        packs = packs_saved_tensors()  # then others see what is saved, and may keep it
        forward = plan.forward if packs else plan.donating_forward
        results = forward(*arguments[plan.lifted_count :])
        if ctx.random_state is not None:
            ctx.random_state.note_end()
        saved = [
            arguments[index] if is_argument else results[index] for is_argument, index in plan.saved
        ]
        apart = plan.numbers if packs else plan.private
        ctx.apart = {k: saved[k] for k in apart}
        saved = [value for k, value in enumerate(saved) if k not in apart]
        ctx.save_for_backward(*saved)
        ctx.saved_versions = versions_of(saved)
        ctx.layouts = [tangent.layout(results[tangent.output_index]) for tangent in plan.tangents]
        index = plan.given.flags_index
        ctx.edges = plan.missing.edges(later, arguments)
        ctx.flags = None if index is None else results[index]
        values.written = written = plan.written_in_place(results, arguments)
        constants = [k for k in plan.constants if k not in written]
        if plan.given.in_some_calls:
            constants += plan.given.without_gradients(ctx.flags)
        if constants:
            ctx.mark_non_differentiable(*(results[index] for index in constants))
        returned = results[: plan.returned_count]
        # autograd would make a view of an argument that it is given back
        return tuple(None if k in written else result for k, result in enumerate(returned))

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
        plan: Plan = ctx.plan
        present = plan.present(gradients)
        if plan.is_unreached(present):
            if not keeps_graph() and ctx.apart is not None:
                release(ctx, frozenset())
            returned = placed(plan, (), ())
        else:
            returned = CompiledFunction.gradients(ctx, gradients, present)
        if len(present) < len(plan.tangents) or ctx.flags is not None:
            spare_hooks(ctx, returned)
        return returned

    @staticmethod
    def gradients(ctx: Any, gradients: tuple[Any, ...], present: frozenset[int]) -> tuple[Any, ...]:
        """What backward returns, where any of the results' ``gradients`` leads to an argument.

        ``present`` are the tangents among them, by position.
        """
        plan: Plan = ctx.plan
        plan.missing.check(ctx, gradients)
        if any(g is not None and stands_for_another(g) for g in gradients):
            return backward_by_operators(ctx, gradients, present)
        if torch.is_grad_enabled():
            by_programs = plan.differentiable_backward
            returned = None if by_programs is None else by_programs(ctx, gradients, present)
            if returned is None:
                returned = backward_by_operators(ctx, gradients, present)
            return returned
        tangents = (
            tangent.prepare(gradients[tangent.output_index], layout)
            for tangent, layout in zip(plan.tangents, ctx.layouts, strict=True)
        )
        partial = plan.partial_stage(present, is_repeated=ctx.remaining is not None)
        needed = None if partial is None else partial.inputs
        ctx.values.known = [*take_saved(ctx, present, needed), *tangents]
        ctx.values.absent = plan.absent(gradients, ctx.flags)
        if partial is not None:
            computed = partial.run(ctx.values, is_last=True)
            return placed(plan, partial.arguments, computed)
        first = plan.segments[0]
        computed = first.run(ctx.values, is_last=len(plan.segments) == 1)
        return placed(plan, first.arguments, computed)


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
