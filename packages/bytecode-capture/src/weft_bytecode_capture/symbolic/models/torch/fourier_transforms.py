"""``torch.istft`` and the method, which look at their data: what they are made of, in the graph."""

from __future__ import annotations

import torch

from ....unsupported import Unsupported
from ...polyfills import torch_functions as polyfills
from ...protocol import Evaluator
from ...variables.base import Variable
from ..table import model
from .tensor import TensorVariable


@model(torch.istft)
@model(torch.Tensor.istft)
def _istft(evaluator: Evaluator, /, *arguments: Variable, **keywords: Variable) -> Variable:
    """By its polyfill; what that leaves out is eager's to answer."""
    if not isinstance(next(iter((*arguments, *keywords.values())), None), TensorVariable):
        raise Unsupported("argument of an operator", "torch.istft")
    overridden = evaluator.state.overrides.overridden(evaluator, torch.istft, arguments, keywords)
    if overridden is not None:
        return overridden
    polyfill = evaluator.wrap_known(polyfills.istft)
    result = polyfill.call(evaluator, list(arguments), keywords)
    if result.is_none():
        return evaluator.graph.call_function(evaluator, torch.istft, arguments, keywords)
    return result
