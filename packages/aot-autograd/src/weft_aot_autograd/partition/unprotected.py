"""What backward of some results may read though eager's autograd does not hold it for these.

In ``tanh(y), abs(y)`` eager holds ``y`` for the second result only: who writes to ``y`` may still ask for the
gradients of the first.
"""

from __future__ import annotations

from collections.abc import Set

import torch.fx

from ..joint_graph import JointGraph
from .sides import Sides
from .split import ancestors


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
    found: set[torch.fx.Node] = set()
    if not spared:
        return found
    given = set(sides.forward) - recomputable
    for tangent, descriptor in zip(sides.tangents, joint.tangents, strict=True):
        candidates = {n for n, outputs in spared.items() if descriptor.output_index in outputs}
        if not candidates <= found:
            found |= candidates & _read(tangent, sides, given)
    return found


def _read(tangent: torch.fx.Node, sides: Sides, given: Set[torch.fx.Node]) -> set[torch.fx.Node]:
    """The forward nodes that backward of one tangent may read, up to those that can't be computed again."""
    pending, behind = [tangent], {tangent}
    while pending:
        users = pending.pop().users
        fresh = [user for user in users if user in sides.backward and user not in behind]
        behind.update(fresh)
        pending += fresh
    crossing = {a for node in behind for a in node.all_input_nodes} - sides.backward
    read = ancestors(crossing, stop=given)
    return read | {a for node in read for a in node.all_input_nodes} | crossing
