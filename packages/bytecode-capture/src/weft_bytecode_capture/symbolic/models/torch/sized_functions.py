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
from ...variables.constant import ConstantVariable
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
    polyfill = None
    if not _is_seen(evaluator, (*arguments, *keywords.values())):
        if function is F.one_hot and not _has_count(*arguments, **keywords):
            polyfill = polyfills.one_hot_of_all
        elif _varies((*arguments, *keywords.values())):
            polyfill = _POLYFILLS[function]
    if polyfill is not None and Parameters.of(polyfill, False).take(len(arguments), keywords):
        result = evaluator.wrap_known(polyfill).call(evaluator, list(arguments), keywords)
        if not result.is_none():
            return result
    called = torch.take_along_dim if function is torch.Tensor.take_along_dim else function
    return evaluator.graph.call_function(evaluator, called, arguments, keywords)


def _is_seen(evaluator: Evaluator, given: tuple[Variable, ...]) -> bool:
    """Whether a mode, a level or the class of an operand sees the call."""
    if evaluator.state.overrides.modes or evaluator.graph.transforms.active:
        return True
    return any(isinstance(a, TensorVariable) and type(a) is not TensorVariable for a in given)


def _varies(given: tuple[Variable, ...]) -> bool:
    """Whether a size of an operand, or one that is given, varies."""
    shapes = (a.fake.shape for a in given if isinstance(a, TensorVariable))
    return any(isinstance(a, SymbolicNumberVariable) for a in given) or any(
        isinstance(size, torch.SymInt) for shape in shapes for size in shape
    )


def _has_count(
    tensor: Variable | None = None, num_classes: Variable | None = None, **_: Variable
) -> bool:
    """Whether ``one_hot`` is told how many classes there are."""
    if isinstance(num_classes, ConstantVariable):
        return bool(num_classes.value != -1)
    return num_classes is not None
