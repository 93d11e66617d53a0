"""``torch.tensor([n.max(), 3, x.shape[0]])``: a tensor of numbers, some the graph's tensors, or varying."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from ...protocol import Evaluator
from ...regions.filled_lists.items import numbers_in_order
from ...variables.base import Arguments, Keywords, Variable
from ...variables.constant import ConstantVariable
from ...variables.graph_arguments import with_dtype
from ..containers.sequences import ListVariable, TupleVariable
from ..numbers.data_numbers import DataBooleanVariable
from ..numbers.representations import NumberVariable
from ..numbers.symbolic_number import SymbolicNumberVariable
from ..numbers.symbolic_range import depends_on_data
from ..numbers.tensor_number import tested_tensor
from .tensor import TensorVariable

_NUMBERS = (bool, int, float)


def tensor_of_list(
    evaluator: Evaluator,
    arguments: Arguments,
    keywords: Keywords,
    shape: tuple[int, ...] | None = None,
) -> Variable | None:
    """What ``torch.tensor`` gives for nested lists with tensors, or numbers that vary, in them.

    It has the lengths of the lists as sizes, or ``shape``.  None where it is given others.
    """
    if len(arguments) != 1 or not keywords.keys() <= {"dtype", "device"}:
        return None
    if not _is_sequence(arguments[0]):
        return None  # ``as_tensor`` of a tensor is that tensor, with its history
    filled = numbers_in_order(evaluator, arguments[0])
    if filled is not None:
        kind, rows = filled
        options = {
            "dtype": ConstantVariable(_dtype_of(kind)),
            **keywords,
            "copy": ConstantVariable(True),
        }
        return evaluator.graph.call_method(evaluator, "to", rows, (), options)
    shape = _shape(evaluator, arguments[0]) if shape is None else shape
    elements = [_in_graph(evaluator, element) for element in _elements(evaluator, arguments[0])]
    tensors = [element for element in elements if isinstance(element, TensorVariable)]
    if shape is None or not all(map(_is_number, elements)):
        return None
    device = _given(keywords, "device") or torch.get_default_device()
    device = torch.device(device) if isinstance(device, (str, int)) else device
    dtype = _given(keywords, "dtype") or _inferred(elements)
    if tensors:
        taken = all(_fits(tensor.fake, dtype, device) for tensor in tensors)
    else:
        taken = len(elements) <= _MAX_NUMBERS and _may_vary(elements, dtype)
    if not taken:
        return None
    parts = TupleVariable([_part(evaluator, element, dtype, device) for element in elements])
    stacked = evaluator.graph.call_function(evaluator, torch.stack, [parts], {})
    return evaluator.graph.call_method(
        evaluator, "reshape", stacked, [evaluator.wrap_result(shape)], {}
    )


_TAKEN = {
    int: (torch.int64, torch.int32, torch.float32, torch.float64),
    float: (torch.float32, torch.float64),
}
"""Dtypes that hold any size, or a float rounded, by the number's type."""

_MAX_NUMBERS = 64
"""Of a list whose numbers vary, each of which is an operator."""


def _may_vary(numbers: list[Variable], dtype: torch.dtype) -> bool:
    """Whether some number varies, and a tensor of ``dtype`` is made of each as torch makes it of all."""
    if not any(isinstance(number, SymbolicNumberVariable) for number in numbers):
        return False
    return all(_holds(dtype, number) for number in numbers)


def _holds(dtype: torch.dtype, number: Variable) -> bool:
    """Whether ``dtype`` holds whatever the number may be, as it holds what it is now."""
    if dtype is torch.int32 and depends_on_data(number):
        return False
    return dtype in _TAKEN.get(number.python_type(), ())


def tensor_of_number(
    evaluator: Evaluator, arguments: Arguments, keywords: Keywords
) -> Variable | None:
    """What ``torch.tensor`` gives for one number that varies; None where it is given others."""
    if len(arguments) != 1 or not keywords.keys() <= {"dtype", "device"}:
        return None
    (number,) = arguments
    if isinstance(number, DataBooleanVariable):
        return tensor_of_list(evaluator, [ListVariable([number])], keywords, ())
    if not isinstance(number, SymbolicNumberVariable):
        return None
    dtype = _given(keywords, "dtype") or _dtype_of(number.python_type())
    if not _holds(dtype, number):
        return None
    named = {**keywords, "dtype": ConstantVariable(dtype)}
    return evaluator.graph.call_function(
        evaluator, torch.full, [evaluator.wrap_result(()), number], named
    )


def _given(keywords: Keywords, name: str) -> Any:
    """An option's value; a class of Python is the dtype that it stands for."""
    return with_dtype(torch.tensor, keywords[name]).as_constant() if name in keywords else None


def _is_sequence(variable: Variable) -> bool:
    return isinstance(variable, (ListVariable, TupleVariable))


def _shape(evaluator: Evaluator, value: Variable) -> tuple[int, ...] | None:
    """The lengths of nested lists; None where they differ."""
    if not _is_sequence(value):
        return ()
    inner = {_shape(evaluator, item) for item in value.iterate(evaluator)}
    if len(inner) != 1:
        return None
    (shape,) = inner
    return None if shape is None else (value.length(evaluator), *shape)


def _elements(evaluator: Evaluator, value: Variable) -> Iterator[Variable]:
    if not _is_sequence(value):
        yield value
        return
    for item in value.iterate(evaluator):
        yield from _elements(evaluator, item)


def _in_graph(evaluator: Evaluator, element: Variable) -> Variable:
    """An element as the graph knows it: a comparison that data decides as a tensor."""
    if isinstance(element, DataBooleanVariable) and evaluator.state.options.keep_control_flow:
        return tested_tensor(evaluator, element)
    return element


def _is_number(element: Variable) -> bool:
    if isinstance(element, TensorVariable):
        return element.fake.dim() == 0 and not element.fake.dtype.is_complex
    if isinstance(element, NumberVariable):
        return True
    return element.is_constant() and type(element.as_constant()) in _NUMBERS


def _inferred(elements: list[Variable]) -> torch.dtype:
    found: torch.dtype | None = None
    for element in elements:
        if isinstance(element, TensorVariable):
            dtype = element.fake.dtype
        else:
            dtype = _dtype_of(element.python_type())
        found = dtype if found is None else torch.promote_types(found, dtype)
    assert found is not None
    return found


def _dtype_of(kind: type) -> torch.dtype:
    if kind is float:
        return torch.get_default_dtype()
    return torch.bool if kind is bool else torch.int64


def _fits(fake: torch.Tensor, dtype: torch.dtype, device: torch.device) -> bool:
    return torch.can_cast(fake.dtype, dtype) and fake.device.type == device.type


def _part(
    evaluator: Evaluator, element: Variable, dtype: torch.dtype, device: torch.device
) -> Variable:
    graph, wanted = evaluator.graph, ConstantVariable(dtype)
    if isinstance(element, TensorVariable):
        detached = graph.call_method(evaluator, "detach", element, (), {})
        return graph.call_method(evaluator, "to", detached, [wanted], {})
    keywords: Keywords = {"dtype": wanted, "device": ConstantVariable(device)}
    return graph.call_function(
        evaluator, torch.full, [evaluator.wrap_result(()), element], keywords
    )
