"""A region's own joint graph, cut into forward and backward."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx
from weft_functionalize import InputDescriptor, InputKind, OutputDescriptor, OutputKind

from ..formula_errors import refused_formulas
from ..joint_graph import GradientDescriptor, JointGraph, PartitionedGraph, TangentDescriptor
from ..joint_recorder import JointRecorder
from ..partition import PartitionOptions, partition
from ..regions import keep_partial_writes
from ..tracing import simplify
from .recording import RegionRule, run_nodes
from .undefined_gradients import Defined, GradientPaths


@dataclass(frozen=True)
class Flag:
    """A bool tensor without dimensions that the body's forward gives, as output ``index``."""

    index: int


@dataclass(frozen=True)
class DifferentiatedBody:
    """``parts`` has the body's tensor results as outputs, in order, then flags; positions are the body's.

    ``tensors`` are the positions of results that are tensors, ``tangents`` of those that have gradients;
    ``gradients`` of the parameters that the backward gives gradients of.  ``reach``: by result and parameter,
    whether a gradient of the one leads to one of the other, True or a flag; without entry it never does.
    """

    parts: PartitionedGraph
    tensors: tuple[int, ...]
    tangents: tuple[int, ...]
    gradients: tuple[int, ...]
    reach: Mapping[tuple[int, int], bool | Flag]

    def saved_parameter(self, index: int) -> int | None:
        """The parameter that the saved value ``index`` is, None for what the forward gives."""
        return self.parts.saved[index].input_index

    def saved_values(self) -> list[Any]:
        """The fake values that backward takes of forward, in order."""
        placeholders = self.parts.backward.graph.find_nodes(op="placeholder")
        return [node.meta["val"] for node in placeholders[: len(self.parts.saved)]]

    def tangent_values(self) -> list[torch.Tensor]:
        """The fake tensors of the tangents, in order."""
        placeholders = self.parts.backward.graph.find_nodes(op="placeholder")
        return [node.meta["val"] for node in placeholders[len(self.parts.saved) :]]


def differentiate(
    outer: JointRecorder,
    module: torch.fx.GraphModule,
    with_gradients: Collection[int],
    overwritten: Collection[int],
    rule: RegionRule,
) -> DifferentiatedBody:
    """Differentiate a region with respect to its parameters at the positions ``with_gradients``.

    Those ``overwritten`` do not live until backward.
    """
    recorder = outer.for_region()
    values: dict[torch.fx.Node, Any] = {}
    inputs: list[Any] = []
    with outer.paused(), torch.enable_grad():
        for position, node in enumerate(module.graph.find_nodes(op="placeholder")):
            value = node.meta["val"]
            if isinstance(value, torch.Tensor):
                value = value.detach().requires_grad_(position in with_gradients)
            recorder.add_placeholder(node.name, value)
            values[node] = value
            inputs.append(value)
        with recorder:
            results = run_nodes(module, recorder, values, rule)
        tensors = [k for k, result in enumerate(results) if isinstance(result, torch.Tensor)]
        tangents = [k for k in tensors if _has_edge(results[k])]
        wanted = sorted(with_gradients)
        with recorder, torch.no_grad():
            reach = _reach(results, tangents, inputs, wanted)
        flags = list({id(p): p for p in reach.values() if isinstance(p, torch.Tensor)}.values())
        given = [torch.empty_like(results[k], requires_grad=False) for k in tangents]
        for k, tangent in zip(tangents, given, strict=True):
            recorder.add_placeholder(f"tangent_{k}", tangent)
        with recorder, refused_formulas():
            gradients: Sequence[torch.Tensor | None] = (
                torch.autograd.grad(
                    [results[k] for k in tangents],
                    [inputs[k] for k in wanted],
                    given,
                    allow_unused=True,
                )
                if tangents
                else ()
            )
    found = [(k, g) for k, g in zip(wanted, gradients, strict=False) if g is not None]
    outputs = [recorder.node_of(value) for value in (*(results[k] for k in tensors), *flags)]
    with outer.paused():
        recorder.finish([*outputs, *(recorder.node_of(gradient) for _, gradient in found)])
    positions = tuple(k for k, _ in found)
    parts = _cut(
        outer, recorder, len(inputs), len(outputs), overwritten, tensors, tangents, positions
    )
    indices = {id(flag): Flag(len(tensors) + k) for k, flag in enumerate(flags)}
    known = {key: indices.get(id(defined), True) for key, defined in reach.items()}
    return DifferentiatedBody(parts, tuple(tensors), tuple(tangents), positions, known)


def _has_edge(tensor: torch.Tensor) -> bool:
    """Whether a gradient goes on from ``tensor``: from views made under ``no_grad`` it does not."""
    return tensor.requires_grad and not (tensor._is_view() and tensor.grad_fn is None)


def _reach(
    results: Sequence[Any], tangents: Sequence[int], inputs: Sequence[Any], wanted: Sequence[int]
) -> dict[tuple[int, int], Defined]:
    """By result and parameter; absent gradients are masked where they meet others."""
    paths = GradientPaths([inputs[k] for k in wanted])
    reach = {
        (result, wanted[index]): defined
        for result in tangents
        for index, defined in paths.from_result(results[result]).items()
    }
    paths.mask([(results[k], True) for k in tangents])
    return reach


def _cut(
    outer: JointRecorder,
    recorder: JointRecorder,
    input_count: int,
    output_count: int,
    overwritten: Collection[int],
    tensors: Sequence[int],
    tangents: Sequence[int],
    gradients: Sequence[int],
) -> PartitionedGraph:
    with outer.paused():
        simplify(recorder.graph, keep_partial_writes(outer.table))
        joint = JointGraph(
            recorder.module("JointRegion"),
            tuple(InputDescriptor(InputKind.USER_INPUT, f"{k}") for k in range(input_count)),
            tuple(TangentDescriptor(tensors.index(k)) for k in tangents),
            tuple(
                OutputDescriptor(OutputKind.MUTATED_INPUT, None, input_index=k, writes=1)
                for k in sorted(overwritten)
            ),
            tuple(map(GradientDescriptor, gradients)),
            output_count,
        )
        if not tangents:
            return _without_backward(joint)
        # A table that leaves the gradient whole, for eager's bits, leaves the operator whole, too.
        keep_operators = torch.ops.aten._log_softmax_backward_data.default not in outer.table
        options = PartitionOptions(keep_operators=keep_operators)
        return partition(joint, options=options, is_region=True)


def _without_backward(joint: JointGraph) -> PartitionedGraph:
    """The parts where nothing has gradients."""
    backward = torch.fx.Graph()
    backward.output(()).meta["val"] = ()
    return PartitionedGraph(
        joint.graph_module,
        torch.fx.GraphModule({}, backward, "Backward"),
        joint.inputs,
        joint.outputs,
        joint.output_count,
        saved=(),
        tangents=(),
        gradients=(),
        recomputed=(),
    )
