"""Variables as arguments of the graph's nodes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from ...unsupported import Unsupported
from ..graph.data_dependence import require_small
from ..models.containers.sequences import ListVariable, TupleVariable
from ..models.containers.slices import SliceVariable
from ..models.numbers.representations import NumberVariable
from ..models.numbers.symbolic_number import SymbolicNumberVariable
from ..models.objects.classes import ClassVariable
from ..models.torch.subclass_tensors import without_class
from ..models.torch.tensor import TensorVariable
from ..protocol import Evaluator
from .base import Variable
from .builder import is_scalar
from .constant import ConstantVariable
from .python_protocols import operand_of


def graph_argument(evaluator: Evaluator, variable: Variable) -> tuple[Any, Any]:
    """An argument as a node takes it, and as the fake call takes it."""
    if isinstance(variable, TensorVariable):
        return variable.node, variable.fake
    if isinstance(variable, SymbolicNumberVariable) and evaluator.graph.shapes.data:
        require_small(evaluator.graph, variable.value)
    if isinstance(variable, NumberVariable) and variable.value is not None:
        return variable.number_node, variable.value
    if isinstance(variable, (TupleVariable, ListVariable)):
        pairs = [graph_argument(evaluator, item) for item in variable.iterate(evaluator)]
        kind = variable.python_type()
        if kind not in (tuple, list):
            if not issubclass(kind, tuple):  # a deque is an index like a list, and no list of sizes
                raise Unsupported("argument of an operator", repr(variable))
            kind = tuple
        return kind(pair[0] for pair in pairs), kind(pair[1] for pair in pairs)
    if isinstance(variable, SliceVariable):
        parts = [
            graph_argument(evaluator, variable.get_attribute(evaluator, part))
            for part in ("start", "stop", "step")
        ]
        return slice(*(part[0] for part in parts)), slice(*(part[1] for part in parts))
    if variable.is_constant():
        value = variable.as_constant()
        if is_scalar(value):
            value = _plain_number(value)
        return value, value
    operand = operand_of(variable)
    if operand is not variable:
        return graph_argument(evaluator, operand)
    number = variable.as_operand(evaluator)
    if number is not None:
        return graph_argument(evaluator, number)
    plain = without_class(evaluator, variable)
    if plain is not variable:
        return graph_argument(evaluator, plain)
    raise Unsupported("argument of an operator", repr(variable))


def with_dtype(target: Any, argument: Variable) -> Variable:
    """A class of Python as the dtype for which operators take it; ``Tensor.type`` takes none."""
    if not isinstance(argument, ClassVariable) or target in ("type", torch.Tensor.type):
        return argument
    dtype = _DTYPES.get(argument.value)
    return argument if dtype is None else ConstantVariable(dtype)


_DTYPES: dict[Any, torch.dtype] = {
    bool: torch.bool,
    int: torch.int64,
    float: torch.float64,
    complex: torch.complex128,
}
"""Classes of Python that torch takes for dtypes."""


def _plain_number(value: Any) -> Any:
    """A number of NumPy as Python's, where operators of torch take it as they take that.

    Of a ``numpy.bool_`` some make a float, and all leave the imaginary part of a ``numpy.complex64``.
    """
    number = value.item()
    if isinstance(number, (bool, complex)) and not isinstance(value, complex):
        raise Unsupported("argument of an operator", repr(value))
    return number


def given_tensors(evaluator: Evaluator, arguments: Iterable[Variable]) -> dict[int, Variable]:
    """The tensors among the arguments of a call, and in their lists and tuples, by ``id`` of the fake."""
    found: dict[int, Variable] = {}
    for argument in arguments:
        held = operand_of(argument)
        if isinstance(held, (TupleVariable, ListVariable)):
            found.update(given_tensors(evaluator, held.iterate(evaluator)))
        else:
            plain = without_class(evaluator, argument)
            if isinstance(plain, TensorVariable):
                found.setdefault(id(plain.fake), argument)
    return found
