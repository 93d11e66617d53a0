"""From a functional graph to forward and backward in one graph, by running torch's own autograd."""

from __future__ import annotations

from typing import Any

import torch
import torch.fx
from weft_functionalize import FunctionalGraph, OutputKind

from ._torch import (
    DATA_DEPENDENT_ERRORS,
    FakeTensorMode,
    set_grad_enabled,
    storage_identity,
)
from .decomposition_table import DecompositionTable, default_decompositions
from .joint_graph import GradientDescriptor, JointGraph, TangentDescriptor
from .joint_recorder import JointRecorder
from .region_gradients import run_region_operator
from .region_gradients.recording import run_nodes
from .regions import clean_regions, keep_partial_writes
from .replay import without_autocast
from .tracing import cleaned_region, fake_mode_of, simplify
from .unsupported import Unsupported

aten = torch.ops.aten


def trace_joint(
    functional: FunctionalGraph, *, decompositions: DecompositionTable | None = None
) -> JointGraph | None:
    """Run ``functional`` and its gradients on fake tensors, record both, decompose and clean up.

    Differentiated are the outputs that need gradients, with respect to the inputs whose descriptors say
    ``requires_grad``; None if autograd would record nothing: gradients are disabled, or no output needs any.
    Raises :class:`Unsupported` for what has no joint graph here: an operator without a formula, a write
    behind autograd's back to a value that has gradients, gradients enabled inside a call that has none.
    """
    mode = fake_mode_of(functional.graph_module.graph)
    if mode is None or not _records(functional):
        return None
    table = default_decompositions() if decompositions is None else decompositions
    try:
        joint = _Trace(functional, mode, table).run()
    except DATA_DEPENDENT_ERRORS as error:
        raise Unsupported("gradient whose shape depends on data", str(error)) from error
    if joint is None:
        return None
    simplify(joint.graph_module.graph, table)
    clean_regions(joint.graph_module, keep_partial_writes(table), cleaned_region)
    joint.graph_module.recompile()
    return joint


def _records(functional: FunctionalGraph) -> bool:
    if torch.is_grad_enabled():
        return any(descriptor.requires_grad for descriptor in functional.inputs)
    for node in functional.source.graph.find_nodes(op="call_function", target=set_grad_enabled):
        if node.args[0] is not False:
            raise Unsupported("gradients enabled inside a call that starts without", node.name)
    return False


class _Trace:
    def __init__(
        self, functional: FunctionalGraph, mode: FakeTensorMode, table: DecompositionTable
    ) -> None:
        self._functional = functional
        self._mode = mode
        self._recorder = JointRecorder(table)
        self._values: dict[torch.fx.Node, Any] = {}

    def run(self) -> JointGraph | None:
        with (
            self._mode,
            torch.enable_grad(),
            torch.autograd.set_multithreading_enabled(False),
            torch.autograd.set_detect_anomaly(False),  # it looks for NaN among values
            without_autocast(self._device_types()),
        ):
            inputs = self._add_inputs()
            outputs = self._run_forward()
            self._check_outputs(outputs)
            constant = self._constant_outputs()
            differentiated = [
                i for i, value in enumerate(outputs) if _has_gradient(value) and i not in constant
            ]
            if not differentiated:
                return None
            self._check_unrecorded_writes()
            tangents = [self._add_tangent(i, outputs[i]) for i in differentiated]
            wanted = [i for i, value in enumerate(inputs) if _has_gradient(value)]
            with self._recorder:
                gradients = torch.autograd.grad(
                    [outputs[i] for i in differentiated],
                    [inputs[i] for i in wanted],
                    tangents,
                    allow_unused=True,
                )
        return self._result(outputs, differentiated, wanted, gradients)

    def _add_inputs(self) -> list[Any]:
        """Leaves of their own for the placeholders; two that share storage stay apart."""
        inputs: list[Any] = []
        placeholders = self._functional.graph_module.graph.find_nodes(op="placeholder")
        for node, descriptor in zip(placeholders, self._functional.inputs, strict=True):
            value = node.meta["val"]
            if isinstance(value, torch.Tensor):
                value = value.detach().requires_grad_(descriptor.requires_grad)
            self._values[node] = value
            self._placeholder(node.name, value, node)
            inputs.append(value)
        return inputs

    def _placeholder(self, name: str, value: Any, source: torch.fx.Node | None) -> torch.fx.Node:
        node = self._recorder.add_placeholder(name, value)
        if source is not None and "stack_trace" in source.meta:
            node.meta["stack_trace"] = source.meta["stack_trace"]
        return node

    def _run_forward(self) -> list[Any]:
        module = self._functional.graph_module
        with self._recorder:
            return run_nodes(module, self._recorder, self._values, run_region_operator)

    def _device_types(self) -> list[str]:
        values = (node.meta.get("val") for node in self._functional.graph_module.graph.nodes)
        return sorted({v.device.type for v in values if isinstance(v, torch.Tensor)})

    def _check_unrecorded_writes(self) -> None:
        """Eager keeps the history that a value had before such a write; the functional graph has not."""
        present = set(self._functional.graph_module.graph.nodes)
        for node in self._functional.unrecorded_writes:
            if node not in present or _has_gradient(self._values[node]):
                raise Unsupported(
                    "write without gradients to a value that has them",
                    node.name,
                    "write to a copy of it",
                )

    def _check_outputs(self, outputs: list[Any]) -> None:
        """What has gradients in eager has to have them here, be they zero."""
        for descriptor in self._functional.outputs:
            index = descriptor.graph_index
            if index is not None and descriptor.requires_grad and not _has_gradient(outputs[index]):
                raise Unsupported("result whose history is lost", f"output {descriptor.position}")

    def _constant_outputs(self) -> set[int]:
        """The graph's outputs that have no gradients in eager."""
        return {
            descriptor.graph_index
            for descriptor in self._functional.outputs
            if descriptor.kind is OutputKind.USER_OUTPUT
            and descriptor.graph_index is not None
            and not descriptor.requires_grad
        }

    def _add_tangent(self, index: int, output: torch.Tensor) -> torch.Tensor:
        """The output's gradient, laid out as the output, densely."""
        tangent = torch.empty_like(output, requires_grad=False)
        self._placeholder(f"tangent_{index}", tangent, None)
        return tangent

    def _result(
        self,
        outputs: list[Any],
        differentiated: list[int],
        wanted: list[int],
        gradients: tuple[torch.Tensor | None, ...],
    ) -> JointGraph:
        recorder = self._recorder
        pairs = [(i, g) for i, g in zip(wanted, gradients, strict=True) if g is not None]
        results = [recorder.node_of(value) for value in outputs]
        results += self._owned([gradient for _, gradient in pairs])
        with self._mode:
            recorder.finish(results)
        return JointGraph(
            recorder.module("JointGraph"),
            self._functional.inputs,
            tuple(map(TangentDescriptor, differentiated)),
            self._functional.outputs,
            tuple(GradientDescriptor(i) for i, _ in pairs),
            len(outputs),
        )

    def _owned(self, gradients: list[torch.Tensor]) -> list[torch.fx.Node]:
        """The gradients' nodes, each in memory of its own: the engine may keep and write what it gets."""
        taken = {storage_identity(v) for v in self._values.values() if isinstance(v, torch.Tensor)}
        taken |= {
            storage_identity(node.meta["val"])
            for node in self._recorder.graph.find_nodes(op="placeholder")
            if isinstance(node.meta["val"], torch.Tensor)
        }
        nodes = []
        for gradient in gradients:
            storage = storage_identity(gradient)
            if storage in taken:
                with self._recorder, torch.no_grad():
                    gradient = aten.clone.default(gradient)
            taken.add(storage)
            nodes.append(self._recorder.node_of(gradient))
        return nodes


def _has_gradient(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad
