"""What backward of some results may read though eager's autograd does not hold it for these.

In ``tanh(y), abs(y)`` eager holds ``y`` for the second result only: who writes to ``y`` may still ask for the
gradients of the first.
"""

from __future__ import annotations

from collections.abc import Set

import torch.fx

from ..joint_graph import JointGraph
from .sides import Sides


def unprotected(
    joint: JointGraph, sides: Sides, recomputable: Set[torch.fx.Node]
) -> set[torch.fx.Node]:
    """The inputs and outputs to copy if they are kept: some backward would read what it may not rely on.

    Backward reads a value where it reads what is ``recomputable`` from it.
    """
    held = [*zip(sides.inputs, joint.inputs, strict=True)]
    spared = {node: descriptor.spared for node, descriptor in held if descriptor.spared}
    for output in joint.outputs:
        if output.graph_index is not None and output.spared:
            spared[sides.outputs[output.graph_index]] = output.spared
    if not spared:
        return set()
    tangents: dict[int, int] = {}  # by output
    for k, descriptor in enumerate(joint.tangents):
        tangents[descriptor.output_index] = tangents.get(descriptor.output_index, 0) | 1 << k
    readers = _readers(sides, set(sides.forward) - recomputable)
    return {
        node
        for node, outputs in spared.items()
        if any(readers.get(node, 0) & tangents.get(output, 0) for output in outputs)
    }


def _readers(sides: Sides, given: Set[torch.fx.Node]) -> dict[torch.fx.Node, int]:
    """By node a number with a bit for each tangent whose backward may read it.

    Nothing is read to compute what is ``given``.
    """
    readers = {tangent: 1 << k for k, tangent in enumerate(sides.tangents)}
    backward = [node for node in sides.tangents[0].graph.nodes if node in sides.backward]
    for node in backward:
        for argument in node.all_input_nodes:
            if argument in sides.backward:
                readers[node] = readers.get(node, 0) | readers[argument]
    for node in (*backward, *reversed(sides.forward)):
        if node in readers and node not in given:
            for argument in node.all_input_nodes:
                if argument not in sides.backward:
                    readers[argument] = readers.get(argument, 0) | readers[node]
    return readers
