"""Integers that a program makes of floats of data: ``int(loss.item() * 3)``, ``round(scale)``.

Python's are of any size, and none is made of infinity or nan: the graph checks that they fit.
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable
from typing import Any

import torch

from ....unsupported import Unsupported
from ...graph.data_dependence import can_read, read_number
from ...protocol import Evaluator
from ...variables.base import Variable
from ...variables.constant import ConstantVariable
from ..torch.tensor import tensor_of
from .data_numbers import COMPARISONS, DataBooleanVariable, DataFloatVariable
from .later_numbers import LaterFloatVariable

_LIMIT = 2.0**62

_ROUNDED: dict[Callable[..., Any], Callable[..., Any]] = {
    **dict.fromkeys((float.__int__, float.__trunc__, math.trunc), torch.trunc),
    **dict.fromkeys((float.__floor__, math.floor), torch.floor),
    **dict.fromkeys((float.__ceil__, math.ceil), torch.ceil),
    **dict.fromkeys((float.__round__, builtins.round), torch.round),
}
"""What rounds a tensor as a function of Python's rounds a float: halves to even numbers."""


def integer_of_float(
    evaluator: Evaluator, function: Callable[..., Any], value: Variable
) -> Variable | None:
    """The integer that ``function`` makes of a float, as the graph computes it; None of other numbers."""
    graph, rounded = evaluator.graph, _ROUNDED.get(function)
    if rounded is None or not isinstance(value, DataFloatVariable):
        return None
    if isinstance(value, LaterFloatVariable) or graph.is_in_region or graph.transforms.active:
        return None
    pair = value.call_method(evaluator, "__abs__", [], {}), ConstantVariable(_LIMIT)
    if evaluator.assumed(DataBooleanVariable(COMPARISONS["lt"], pair, None)) is not True:
        raise Unsupported("number that depends on data", f"{function.__name__} of {value!r}")
    as_float = tensor_of(evaluator, torch.full, (), value, dtype=torch.float64)
    tensor = tensor_of(evaluator, "to", tensor_of(evaluator, rounded, as_float), torch.int64)
    return read_number(evaluator, tensor) if can_read(evaluator, tensor) else None
