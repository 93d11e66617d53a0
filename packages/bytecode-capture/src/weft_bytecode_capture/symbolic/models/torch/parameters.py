"""``nn.Parameter(t)`` inside captured code."""

from __future__ import annotations

import torch

from ....unsupported import Unsupported
from ...protocol import Evaluator
from ...variables.base import Variable
from ..table import model
from .tensor import TensorVariable


@model(torch.nn.Parameter)
def _new_parameter(
    evaluator: Evaluator, data: Variable | None = None, requires_grad: Variable | None = None
) -> Variable:
    """A leaf, unless the graph cannot have one of the tensor."""
    wanted = True if requires_grad is None else requires_grad.truth(evaluator)
    if data is None or data.is_none():
        data = evaluator.graph.call_function(evaluator, torch.empty, [evaluator.wrap_result(0)], {})
    if type(data) is not TensorVariable:
        raise Unsupported("construction of an instance", f"Parameter({data!r})")
    leaf: Variable = evaluator.graph.new_leaves.parameter(evaluator, data, wanted)
    return leaf
