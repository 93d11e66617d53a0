"""From a functional graph to forward and backward in one graph, by running torch's own autograd."""

from __future__ import annotations

import operator
from typing import Any

import torch
import torch.fx
from weft_functionalize import SYMBOLIC_TYPES, FunctionalGraph, OutputKind, is_gradient_rule

from ._torch import (
    DATA_DEPENDENT_ERRORS,
    FakeTensorMode,
    OpOverload,
    set_grad_enabled,
    storage_identity,
)
from .decomposition_table import DecompositionTable, default_decompositions
from .differentiable_forms import call_differentiably
from .joint_graph import GradientDescriptor, JointGraph, TangentDescriptor
from .joint_recorder import JointRecorder
from .replay import GRADIENTS_DISABLED, without_autocast
from .tracing import fake_mode_of, simplify
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
    try:
        joint = _Trace(functional, mode).run()
    except DATA_DEPENDENT_ERRORS as error:
        raise Unsupported("gradient whose shape depends on data", str(error)) from error
    if joint is None:
        return None
    table = default_decompositions() if decompositions is None else decompositions
    simplify(joint.graph_module.graph, table)
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
    def __init__(self, functional: FunctionalGraph, mode: FakeTensorMode) -> None:
        self._functional = functional
        self._mode = mode
        self._recorder = JointRecorder()
        self._values: dict[torch.fx.Node, Any] = {}

    def run(self) -> JointGraph | None:
        with (
            self._mode,
            torch.enable_grad(),
            torch.autograd.set_multithreading_enabled(False),
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
        with self._recorder:
            for node in self._functional.graph_module.graph.nodes:
                if node.op == "call_function":
                    self._recorder.provenance = node
                    self._values[node] = self._run_node(node)
        self._recorder.provenance = None
        (output,) = self._functional.graph_module.graph.find_nodes(op="output")
        returned: Any = output.args[0]
        return [self._values[node] for node in returned]

    def _run_node(self, node: torch.fx.Node) -> Any:
        if isinstance(node.meta.get("val"), SYMBOLIC_TYPES):
            return self._recorder.add_number(node)
        args: Any = torch.fx.map_arg(node.args, self._values.__getitem__)
        kwargs: Any = torch.fx.map_arg(node.kwargs, self._values.__getitem__)
        if node.target is operator.getitem:
            return args[0][args[1]]
        if is_gradient_rule(node.target):
            assert callable(node.target)
            return node.target(*args)
        if not isinstance(node.target, OpOverload):
            raise Unsupported("gradient of an operator", str(node.target))
        with torch.set_grad_enabled(GRADIENTS_DISABLED not in node.meta):
            return call_differentiably(node.target, args, kwargs)

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
        recorder.graph.output(tuple(results))
        _detach_values(recorder.graph, self._mode)
        module = torch.fx.GraphModule(torch.nn.Module(), recorder.graph, "JointGraph")
        return JointGraph(
            module,
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


def _detach_values(graph: torch.fx.Graph, mode: FakeTensorMode) -> None:
    """Free autograd's graph: nodes' values keep metadata only."""
    with mode, torch.no_grad():
        for node in graph.nodes:
            value = node.meta.get("val")
            if isinstance(value, torch.Tensor):
                node.meta["val"] = value.detach()
            elif isinstance(value, (tuple, list)):
                node.meta["val"] = tuple(
                    v.detach() if isinstance(v, torch.Tensor) else v for v in value
                )
