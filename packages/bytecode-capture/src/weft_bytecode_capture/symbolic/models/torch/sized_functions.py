"""Functions whose C++ takes sizes as plain integers: by their polyfills, where a size varies.

Called as they are they fix it, and each size is compiled for itself.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from ...polyfills import sized_functions as polyfills
from ...protocol import Evaluator
from ...variables.base import Variable
from ..numbers.symbolic_number import SymbolicNumberVariable
from ..table import Parameters, models
from .tensor import TensorVariable

_POLYFILLS: dict[Any, Any] = {
    F.max_pool1d: polyfills.max_pool1d,
    torch.max_pool1d: polyfills.max_pool1d,
    F.avg_pool1d: polyfills.avg_pool1d,
    F.avg_pool2d: polyfills.avg_pool2d,
    F.one_hot: polyfills.one_hot,
    torch.linspace: polyfills.linspace,
    torch.take_along_dim: polyfills.take_along_dim,
    torch.Tensor.take_along_dim: polyfills.take_along_dim,
}


@models(*_POLYFILLS)
def _by_polyfill(
    function: Any, evaluator: Evaluator, /, *arguments: Variable, **keywords: Variable
) -> Variable:
    if _varies(evaluator, arguments, keywords):
        polyfill = _POLYFILLS[function]
        if Parameters.of(polyfill, False).take(len(arguments), keywords):
            result = evaluator.wrap_known(polyfill).call(evaluator, list(arguments), keywords)
            if not result.is_none():
                return result
    called = torch.take_along_dim if function is torch.Tensor.take_along_dim else function
    return evaluator.graph.call_function(evaluator, called, arguments, keywords)


def _varies(
    evaluator: Evaluator, arguments: tuple[Variable, ...], keywords: dict[str, Variable]
) -> bool:
    """Whether a size of an operand, or one that is given, varies; and no mode or level sees the call."""
    if evaluator.state.overrides.modes or evaluator.graph.transforms.active:
        return False
    given = (*arguments, *keywords.values())
    if any(isinstance(a, TensorVariable) and type(a) is not TensorVariable for a in given):
        return False
    shapes = (a.fake.shape for a in given if isinstance(a, TensorVariable))
    return any(isinstance(a, SymbolicNumberVariable) for a in given) or any(
        isinstance(size, torch.SymInt) for shape in shapes for size in shape
    )
