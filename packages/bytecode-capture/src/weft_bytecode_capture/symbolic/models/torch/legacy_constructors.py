"""Constructors of old programs: ``x.new(x.size())``, ``torch.Tensor(2, 3)``, ``torch.LongTensor([1, 2])``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ....unsupported import Unsupported
from ...protocol import Evaluator
from ...variables.base import Variable
from ..containers.sequences import ListVariable, SequenceVariable, TupleVariable
from ..numbers.representations import NumberVariable
from ..table import model, models
from .listed_tensors import tensor_of_list
from .tensor import TensorVariable
from .torch_values import SizeVariable


@model(torch.Tensor.new)
def _new(
    evaluator: Evaluator, tensor: TensorVariable, /, *arguments: Variable, **keywords: Variable
) -> Variable:
    """A new tensor of a size; a graph's tuples are plain ones, which stand for data here."""
    size = _size(evaluator, arguments)
    if size is None or keywords:
        raise Unsupported("argument of an operator", f"{tensor!r}.new() of data or keywords")
    return evaluator.graph.call_method(evaluator, "new_empty", tensor, [size], {})


@model(torch.Tensor.new_tensor)
def _new_tensor_of(
    evaluator: Evaluator, tensor: TensorVariable, /, *arguments: Variable, **keywords: Variable
) -> Variable:
    """A new tensor of a list whose numbers vary is put together in the graph."""
    if len(arguments) == 1 and keywords.keys() <= {"dtype", "device"}:
        own = {"dtype": tensor.fake.dtype, "device": tensor.fake.device}
        options = {name: evaluator.wrap_constant(value) for name, value in own.items()}
        options |= {name: value for name, value in keywords.items() if not value.is_none()}
        listed = tensor_of_list(evaluator, list(arguments), options)
        if listed is not None:
            return listed
    return evaluator.graph.call_method(evaluator, "new_tensor", tensor, arguments, keywords)


_DTYPES: dict[Any, torch.dtype | None] = {
    torch.Tensor: None,  # the default one
    torch.FloatTensor: torch.float32,
    torch.DoubleTensor: torch.float64,
    torch.HalfTensor: torch.float16,
    torch.BFloat16Tensor: torch.bfloat16,
    torch.ByteTensor: torch.uint8,
    torch.CharTensor: torch.int8,
    torch.ShortTensor: torch.int16,
    torch.IntTensor: torch.int32,
    torch.LongTensor: torch.int64,
    torch.BoolTensor: torch.bool,
}


@models(*_DTYPES)
def _new_tensor(
    kind: Any, evaluator: Evaluator, /, *arguments: Variable, **keywords: Variable
) -> Variable:
    """A tensor of a size, without values, or of the numbers in a list, some of them the graph's tensors."""
    if torch.get_default_device().type != "cpu" or keywords:
        raise Unsupported("construction of an instance", kind.__name__)
    dtype = _DTYPES[kind] or torch.get_default_dtype()
    options = {"dtype": evaluator.wrap_constant(dtype), "device": evaluator.wrap_constant("cpu")}
    size = _size(evaluator, arguments)
    if size is not None:
        return evaluator.graph.call_function(evaluator, torch.empty, [size], options)
    if len(arguments) == 1 and _is_array(arguments[0]) and dtype.is_floating_point:
        as_tensor = evaluator.wrap_known(torch.as_tensor)
        return evaluator.call_function(as_tensor, [*arguments], {"dtype": options["dtype"]})
    listed = tensor_of_list(evaluator, list(arguments), options)
    if listed is not None:
        return listed
    numbers = (int, float, bool) if dtype.is_floating_point else (int,)
    if len(arguments) != 1 or not _holds_numbers(evaluator, arguments[0], numbers):
        raise Unsupported("construction of an instance", f"{kind.__name__} of other than numbers")
    return evaluator.graph.call_function(evaluator, torch.tensor, [*arguments], options)


def _is_array(value: Variable) -> bool:
    """Whether a value is an array of NumPy, which a tensor of its own type shares."""
    kind = value.python_type()
    return (kind.__module__, kind.__name__) == ("numpy", "ndarray")


def _size(evaluator: Evaluator, arguments: Sequence[Variable]) -> Variable | None:
    """The size that such arguments stand for; None where they are data."""
    if len(arguments) == 1 and isinstance(arguments[0], SizeVariable):
        return arguments[0]
    if all(map(_is_integer, arguments)):
        return TupleVariable(list(arguments) or [evaluator.wrap_result(0)])
    return None


def _holds_numbers(evaluator: Evaluator, data: Variable, kinds: tuple[type, ...]) -> bool:
    """Whether ``data`` is a list or tuple of such numbers, or of lists of them."""
    return isinstance(data, ListVariable | TupleVariable) and all(
        _holds_numbers(evaluator, item, kinds)
        if isinstance(item, SequenceVariable)
        else item.python_type() in kinds
        for item in data.iterate(evaluator)
    )


def _is_integer(variable: Variable) -> bool:
    if isinstance(variable, NumberVariable):
        return variable.python_type() is int
    return variable.is_constant() and type(variable.as_constant()) is int
