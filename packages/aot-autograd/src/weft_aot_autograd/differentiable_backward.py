"""Backward with ``create_graph`` by a compiled program, whose results have gradients again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.fx

from ._torch import HigherOrderOperator, OpOverload, without_transforms
from .derivation import Step
from .gradient_function import GradientFunction
from .kept_inputs import kept_inputs
from .partial_backward import is_linear
from .region_gradients.recording import HAS_SIZES_OF_DATA
from .replay import without_autocast
from .saved_values import check_version, take_saved
from .separate_edges import led_to
from .tracing import fake_mode_of
from .training_plan import Plan, placed


@dataclass(frozen=True)
class CompiledGradients:
    """``program`` takes inputs, tangents and saved values, and gives the gradients of ``wanted``.

    ``wanted`` and ``read`` are inputs by position, those whose values are read; ``reused`` are the saved
    values that it takes, by position among those of the function.
    """

    program: Callable[..., Sequence[Any]]
    wanted: tuple[int, ...]
    read: frozenset[int]
    reused: tuple[int, ...]


CompileGradients = Callable[[GradientFunction], CompiledGradients | None]
"""Compiles a function of gradients when it is first needed; None where operators have to do."""


class DifferentiableBackward:
    """The compiled gradients of one function, each made when a backward first asks for it.

    They differ by which tangents are there, which of these require gradients, and which inputs the backward
    pass goes on to.  The plan that is passed to all methods is always the function's, which has this object.
    """

    def __init__(self, compile_gradients: CompileGradients) -> None:
        self._compile = compile_gradients
        self._made: dict[Step, CompiledGradients | None] = {}
        self._function: _Function | None = None

    def __call__(
        self, ctx: Any, gradients: Sequence[Any], present: frozenset[int]
    ) -> tuple[Any, ...] | None:
        """What backward returns; None where only operators can tell.

        ``present`` are the tangents that are there among ``gradients``, by position.
        """
        plan: Plan = ctx.plan
        if self._function is None:
            self._function = _Function(_is_known(plan), _saved_nodes(plan))
        if ctx.remaining is not None or not self._function.is_known:
            return None
        tangents = [
            plan.tangents[k].prepare(gradients[plan.tangents[k].output_index], ctx.layouts[k])
            for k in sorted(present)
        ]
        visited = led_to(ctx, plan.gradients)
        step = Step(
            tuple(plan.tangents[k].output_index for k in sorted(present)),
            tuple(plan.argument_indices[k] for k in visited),
            tuple(tangent.requires_grad for tangent in tangents),
        )
        compiled = self._compiled(plan, step)
        if compiled is None:
            return None
        for k, value, version in zip(plan.kept, ctx.kept, ctx.versions, strict=True):
            if plan.argument_indices[k] in compiled.read:
                check_version(value, version)
        every = kept_inputs(ctx)
        saved = take_saved(ctx, present, compiled.reused)
        reused = [saved[k].detach() for k in compiled.reused]
        with without_autocast(plan.device_types), without_transforms():
            results = compiled.program(*every, *tangents, *reused)
        found = dict(zip(compiled.wanted, results, strict=True))
        given = {*visited} - plan.absent(gradients, ctx.flags)
        ctx.values.known = None
        computed = [
            _gradient(found, plan.argument_indices[k], every) if k in given else None
            for k in plan.gradients
        ]
        return placed(plan, plan.gradients, computed)

    def _compiled(self, plan: Plan, step: Step) -> CompiledGradients | None:
        if step not in self._made:
            assert self._function is not None
            saved = self._function.saved
            function = GradientFunction(plan.derivation.then(step), tuple(saved.values()))
            with without_transforms():
                made = self._compile(function)
            if made is not None:
                positions = [*saved]
                made = replace(made, reused=tuple(positions[k] for k in made.reused))
            self._made[step] = made
        return self._made[step]


@dataclass(frozen=True)
class _Function:
    """What is known of a function.

    ``is_known``: torch's formulas for single operators say all about its gradients.  ``saved`` are the saved
    values that are tensors of forward's own, by position, where its graph is there.
    """

    is_known: bool
    saved: dict[int, torch.fx.Node]


def _gradient(found: dict[int, torch.Tensor], index: int, every: Sequence[Any]) -> torch.Tensor:
    """An input's gradient: zeros where nothing leads to it, though it may have one."""
    return found[index] if index in found else torch.zeros_like(every[index], requires_grad=False)


def _is_known(plan: Plan) -> bool:
    """Whether torch's formulas for single operators say all about the function's gradients."""
    functional = plan.derivation.functional
    nodes = functional.graph_module.graph.nodes
    return (
        plan.replayable
        and not plan.random
        and not plan.missing.arguments
        and plan.given.flags_index is None
        and is_linear(functional)
        and fake_mode_of(functional.graph_module.graph) is not None
        and not any(isinstance(node.target, HigherOrderOperator) for node in nodes)
        and not any(_depends_on_data(node) for node in nodes)
    )


def _depends_on_data(node: torch.fx.Node) -> bool:
    return isinstance(node.target, OpOverload) and not HAS_SIZES_OF_DATA.isdisjoint(
        node.target.tags
    )


def _saved_nodes(plan: Plan) -> dict[int, torch.fx.Node]:
    """By position: the saved values that are tensors of forward's own, where its graph is known."""
    (output,) = plan.forward_graph.find_nodes(op="output")
    returned: Any = output.args[0]
    if len(returned) < plan.output_count:  # a program that another process has compiled
        return {}
    return {
        k: returned[index]
        for k, (is_argument, index) in enumerate(plan.saved)
        if not is_argument and k not in plan.numbers
    }
