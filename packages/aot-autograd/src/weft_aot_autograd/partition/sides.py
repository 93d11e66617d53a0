"""Which nodes of a joint graph depend on tangents, and which values cross to those."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
import torch.fx
from weft_functionalize import OutputKind, size_hint

from ..joint_graph import JointGraph
from .depth import depths


class Sides:
    """The joint graph's nodes by what they depend on.

    ``forward``: inputs and the nodes computed from these alone, in order; ``backward``: the nodes that
    depend on tangents; ``crossing``: the forward nodes that backward nodes read or that are gradients;
    ``exposed``: inputs (unless ``inputs_stay``) and outputs that somebody may write to before backward runs.
    """

    def __init__(self, joint: JointGraph, *, inputs_stay: bool = False) -> None:
        graph = joint.graph_module.graph
        (self._output,) = graph.find_nodes(op="output")
        placeholders = graph.find_nodes(op="placeholder")
        self.inputs: list[torch.fx.Node] = placeholders[: len(joint.inputs)]
        self.tangents: list[torch.fx.Node] = placeholders[len(joint.inputs) :]
        returned: Any = self._output.args[0]
        self.outputs: list[torch.fx.Node] = list(returned[: joint.output_count])
        self.gradients: list[torch.fx.Node] = list(returned[joint.output_count :])
        mutated = {
            self.inputs[descriptor.input_index]
            for descriptor in joint.outputs
            if descriptor.kind is OutputKind.MUTATED_INPUT and descriptor.input_index is not None
        }
        # What has to be copied to be kept: others have it, and may write to it.
        described = zip(self.inputs, joint.inputs, strict=True)
        exposed = [node for node, d in described if d.exposed and not inputs_stay]
        exposed += [
            self.outputs[descriptor.graph_index]
            for descriptor in joint.outputs
            if descriptor.graph_index is not None and descriptor.exposed
        ]
        self.exposed = mutated.union(exposed)
        self.backward = set(self.tangents)
        self.forward: list[torch.fx.Node] = []
        for node in graph.nodes:
            if node.op == "output" or node in self.backward:
                continue
            if any(argument in self.backward for argument in node.all_input_nodes):
                self.backward.add(node)
            else:
                self.forward.append(node)

    @cached_property
    def crossing(self) -> list[torch.fx.Node]:
        gradients = set(self.gradients)
        return [
            node
            for node in self.forward
            if node in gradients or any(user in self.backward for user in node.users)
        ]

    @cached_property
    def needed_by_outputs(self) -> set[torch.fx.Node]:
        """The nodes that forward's outputs are computed from, themselves included."""
        pending = list(self.outputs)
        seen = set(pending)
        while pending:
            fresh = [a for a in pending.pop().all_input_nodes if a not in seen]
            seen.update(fresh)
            pending += fresh
        return seen

    @cached_property
    def depth(self) -> dict[torch.fx.Node, int]:
        """How many library calls each forward node needs one after another."""
        return depths(self.forward)

    def is_free(self, node: torch.fx.Node) -> bool:
        """Whether keeping the node costs no memory: it is an input that lives anyway."""
        return node.op == "placeholder" and node not in self.exposed

    @staticmethod
    def nbytes(node: torch.fx.Node) -> int:
        """Bytes of the node's tensor (of a symbolic size, as it is now), 0 for what is no tensor."""
        value = node.meta["val"]
        if not isinstance(value, torch.Tensor):
            return 0
        return size_hint(value.numel()) * value.element_size()
