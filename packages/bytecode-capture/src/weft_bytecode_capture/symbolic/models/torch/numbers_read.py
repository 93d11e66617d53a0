"""Numbers that methods of tensors read: ``item``, ``tolist``, ``int(x)``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ...graph.data_dependence import can_read, read_list, read_number
from ...graph.known_contents import known_contents
from ...graph.sizes_in_tensors import number_of_sizes
from ...protocol import Evaluator
from ...variables.base import Arguments, Keywords, Variable

if TYPE_CHECKING:
    from .tensor import TensorVariable

_READS = {"item": None, "tolist": None, "__int__": int, "__index__": int, "__float__": float}
"""Methods that read numbers, and the type that the tensor's own numbers have to have (None: any)."""


def _read(evaluator: Evaluator, contents: torch.Tensor, name: str) -> Variable:
    """What a method that reads numbers gives for a tensor whose contents are known, or raises."""
    try:
        number = getattr(contents, name)()
    except (RuntimeError, TypeError, ValueError) as error:  # of several elements
        evaluator.raise_error(type(error), *error.args)
    return evaluator.wrap_result(number)


def number_of_data(
    evaluator: Evaluator,
    tensor: TensorVariable,
    name: str,
    arguments: Arguments,
    keywords: Keywords,
) -> Variable | None:
    """A number that depends on data, as a symbol; None where that cannot be had."""
    if name not in _READS or arguments or keywords:
        return None
    sized = number_of_sizes(evaluator, tensor) if _READS[name] is not float else None
    if sized is not None:
        return sized
    contents = known_contents(evaluator, tensor)
    if contents is not None:
        return _read(evaluator, contents, name)
    if tensor.fake.dtype is torch.bool and _READS[name] is None and tensor.fake.dim() == 0:
        from ..numbers.tensor_number import truth_in_tensor

        return truth_in_tensor(evaluator, tensor, wanted=True)
    if name == "tolist":
        return read_list(evaluator, tensor)
    kind = float if tensor.fake.dtype.is_floating_point else int
    if evaluator.graph.is_in_region:
        from ..numbers.tensor_number import read_in_region

        return read_in_region(evaluator, tensor, _READS[name])
    if not can_read(evaluator, tensor):
        return None
    if name == "__int__" and kind is float:
        return read_number(evaluator, tensor).call_method(evaluator, name, [], {})
    if _READS[name] not in (None, kind):
        return None
    return read_number(evaluator, tensor)
