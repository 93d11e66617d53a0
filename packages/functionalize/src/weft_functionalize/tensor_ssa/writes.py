"""What a node of a block writes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.fx

from .._torch import OpOverload
from ..unsupported import Unsupported
from .alias_graph import argument_value
from .block_propagation import region_writes
from .custom_operators import is_from_library
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
            variables += _listed(node, value)
    return variables


def _listed(node: torch.fx.Node, values: Sequence[Any]) -> list[torch.fx.Node]:
    """What a library's operator writes of a list."""
    assert isinstance(node.target, OpOverload)
    if not is_from_library(node.target) or not all(isinstance(v, torch.fx.Node) for v in values):
        raise Unsupported("write to a list of tensors", str(node.target))
    return list(values)
