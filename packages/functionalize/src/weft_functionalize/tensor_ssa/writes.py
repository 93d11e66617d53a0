"""What a node of a block writes."""

from __future__ import annotations

import torch
import torch.fx

from .._torch import OpOverload
from ..unsupported import Unsupported
from .alias_graph import argument_value
from .block_propagation import region_writes
from .functional_counterparts import written_arguments

aten = torch.ops.aten

# Operators that write only in training.
_TRAINING_WRITES = frozenset({aten.native_batch_norm.default, aten.rrelu_with_noise.default})


def block_writes(node: torch.fx.Node) -> list[torch.fx.Node]:
    """The values that an operator or a region's operator writes."""
    written = [variable for variable, _ in region_writes(node)]
    if isinstance(node.target, OpOverload):
        written += written_variables(node, written_arguments(node.target))
    return written


def written_variables(node: torch.fx.Node, names: tuple[str, ...]) -> list[torch.fx.Node]:
    """The values of the arguments ``names``, which the operator writes."""
    if node.target in _TRAINING_WRITES and not argument_value(node, "training"):
        return []
    variables: list[torch.fx.Node] = []
    for name in names:
        value = argument_value(node, name)
        if isinstance(value, torch.fx.Node):
            variables.append(value)
        elif isinstance(value, (list, tuple)):
            raise Unsupported("write to a list of tensors", str(node.target))
    return variables
