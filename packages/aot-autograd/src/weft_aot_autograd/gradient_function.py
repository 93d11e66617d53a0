"""Gradients as a function that has gradients itself: for backward with ``create_graph``.

Torch's own autograd says what the gradients of gradients are: it runs on fake tensors, first with
``create_graph``, and what both passes do is one joint graph, which is cut and compiled as any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.fx
from weft_functionalize import (
    FunctionalGraph,
    InputDescriptor,
    InputKind,
    OutputDescriptor,
    OutputKind,
)

from ._torch import DATA_DEPENDENT_ERRORS, FakeTensorMode, relation_count
from .decomposition_table import DecompositionTable, default_decompositions
from .derivation import Derivation, Step, gradients_of
from .formula_errors import refuse_missing_derivative, refused_formulas
from .joint_graph import GradientDescriptor, JointGraph, TangentDescriptor
from .joint_tracing import JointTrace, has_gradient
from .region_gradients.undefined_gradients import GradientPaths
from .reused_values import reuse_values
from .tracing import fake_mode_of, simplify
from .unsupported import Unsupported


@dataclass(frozen=True)
class GradientFunction:
    """A function to be compiled: the last step of ``derivation``, of values that the steps before gave.

    ``saved`` are what these saved besides inputs, as nodes of the graph that computed them.
    """

    derivation: Derivation
    saved: tuple[torch.fx.Node, ...]

    def trace(self, decompositions: DecompositionTable | None = None) -> TracedGradients:
        """The function and its gradients in one graph, decomposed and cleaned up.

        Raises :class:`Unsupported` for what has no such graph, as an operator without a second derivative.
        """
        functional = self.derivation.functional
        mode = fake_mode_of(functional.graph_module.graph)
        if mode is None:
            raise Unsupported("graph without tensors")
        table = default_decompositions() if decompositions is None else decompositions
        try:
            traced = _GradientTrace(self, mode, table).run_steps()
        except DATA_DEPENDENT_ERRORS as error:
            raise Unsupported("gradient whose shape depends on data", str(error)) from error
        except RuntimeError as error:
            refuse_missing_derivative(error)
            raise
        simplify(traced.joint.graph_module.graph, table)
        traced.joint.graph_module.recompile()
        return traced

    def relations(self) -> int:
        """How much is known of symbolic sizes: what compiling adds holds in this call only."""
        return relation_count(fake_mode_of(self.derivation.functional.graph_module.graph))


@dataclass(frozen=True)
class TracedGradients:
    """``wanted`` are the inputs, by position, whose gradients are the outputs of ``joint``."""

    function: GradientFunction
    joint: JointGraph
    wanted: tuple[int, ...]

    def reuse_saved(self) -> ReducedGradients:
        """The joint graph, changed in place, without what the caller has computed already."""
        *earlier, last = self.function.derivation.steps
        joint = self.joint
        first = len(self.function.derivation.functional.inputs)
        for step in earlier:
            first += len(step.given)
            joint, _ = reuse_values(joint, step.reused, first)
            first += len(step.reused)
        joint, positions = reuse_values(joint, self.function.saved)
        reused = tuple(self.function.saved[k] for k in positions)
        step = replace(last, wanted=self.wanted, reused=reused)
        derivation = replace(self.function.derivation, steps=(*earlier, step))
        return ReducedGradients(derivation, joint, positions)


@dataclass(frozen=True)
class ReducedGradients:
    """A function of gradients to be compiled; ``positions`` are those of the saved values that it takes."""

    derivation: Derivation
    joint: JointGraph
    positions: tuple[int, ...]

    @property
    def wanted(self) -> tuple[int, ...]:
        """The inputs, by position, whose gradients it gives."""
        return self.derivation.steps[-1].wanted

    @property
    def read(self) -> frozenset[int]:
        """The inputs, by position, whose values it or its gradients depend on."""
        placeholders = self.joint.graph_module.graph.find_nodes(op="placeholder")
        inputs = placeholders[: len(self.joint.inputs)]
        return frozenset(k for k, node in enumerate(inputs) if node.users)

    def functional(self, forward: torch.fx.GraphModule) -> FunctionalGraph:
        """The function as a graph without writes, which ``forward`` is the beginning of."""
        return FunctionalGraph(forward, self.joint.inputs, self.joint.outputs, {}, forward)


class _GradientTrace(JointTrace):
    """Runs a derivation under autograd, and the gradients of what it gives."""

    def __init__(
        self, function: GradientFunction, mode: FakeTensorMode, table: DecompositionTable
    ) -> None:
        super().__init__(function.derivation.functional, mode, table)
        self._function = function

    def run_steps(self) -> TracedGradients:
        with self.on_fake_tensors():
            inputs = self.add_inputs()
            results: Sequence[Any] = self.with_histories(self.run_forward(), inputs)
            wanted: tuple[int, ...] = ()
            for step in self._function.derivation.steps:
                wanted, results = self._take_step(step, results, inputs)
            differentiated = [k for k, value in enumerate(results) if has_gradient(value)]
            paths = GradientPaths(inputs)
            reached = {k: paths.from_result(results[k]) for k in differentiated}
            if any(way is not True for ways in reached.values() for way in ways.values()):
                raise Unsupported("gradient of a gradient that depends on data")
            gradients = self.differentiate(results, differentiated, inputs)
        outputs = tuple(
            OutputDescriptor(
                OutputKind.USER_OUTPUT,
                k,
                position=k,
                requires_grad=k in reached,
                reached=frozenset(reached.get(k, ())),
                exposed=True,
            )
            for k in range(len(results))
        )
        nodes = self.owned([*results, *gradients.values()])
        with self.mode:
            self.recorder.finish(nodes)
        joint = JointGraph(
            self.recorder.module("GradientsOfGradients"),
            self._described(inputs),
            tuple(map(TangentDescriptor, differentiated)),
            outputs,
            tuple(map(GradientDescriptor, gradients)),
            len(results),
        )
        return TracedGradients(self._function, joint, wanted)

    def _take_step(
        self, step: Step, results: Sequence[Any], inputs: list[Any]
    ) -> tuple[tuple[int, ...], list[torch.Tensor]]:
        """The inputs that have a gradient, with these; ``inputs`` get what the step takes."""
        tangents = [
            self.add_tangent(index, results[index], requires_grad=differentiable)
            for index, differentiable in zip(step.given, step.differentiable, strict=True)
        ]
        wanted = [inputs[k] for k in step.wanted]
        inputs += tangents
        inputs += [self._add_reused(node) for node in step.reused]
        with self.recorder, refused_formulas():
            found = gradients_of(results, step.given, tangents, wanted, create_graph=True)
        pairs = [(k, g) for k, g in zip(step.wanted, found, strict=True) if g is not None]
        return tuple(k for k, _ in pairs), [gradient for _, gradient in pairs]

    def _add_reused(self, node: torch.fx.Node) -> torch.Tensor:
        value: torch.Tensor = node.meta["val"].detach()
        self.placeholder(f"reused_{node.name}", value, None)
        return value

    def _described(self, inputs: Sequence[Any]) -> tuple[InputDescriptor, ...]:
        given = self.functional.inputs
        placeholders = self.recorder.graph.find_nodes(op="placeholder")
        return tuple(
            InputDescriptor(
                InputKind.USER_INPUT,
                placeholders[k].name,
                position=k,
                requires_grad=has_gradient(value),
                exposed=k < len(given) and given[k].exposed,
            )
            for k, value in enumerate(inputs)
        )
