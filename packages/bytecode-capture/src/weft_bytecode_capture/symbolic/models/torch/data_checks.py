"""Functions that only data answers: ``torch._check``, ``torch.allclose``, ``torch.equal``.

``torch._check`` is a condition that the graph checks when it runs.
A call in which it does not hold runs as the program was written, so the error, and its text, is eager's.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch

from ...._torch.symbols import has_unbacked_symbols
from ....unsupported import Unsupported
from ...graph.data_dependence import require_compared
from ...protocol import Evaluator
from ...variables.base import Arguments, Keywords, Variable
from ...variables.builder import held_by_identity, register_object
from ...variables.constant import ConstantVariable
from ..functions.python_functions import KnownFunctionVariable
from ..numbers.data_numbers import DataBooleanVariable
from ..numbers.symbolic_number import SymbolicNumberVariable
from ..numbers.tensor_number import TensorNumberVariable
from ..table import models
from .tensor import TensorVariable, tensor_of

_CHECKS = (torch._check, torch._check_index, torch._check_value, torch._check_type)


@held_by_identity(register_object(*_CHECKS))
class CheckVariable(KnownFunctionVariable):
    """``torch._check`` and its kin; on what is known they are evaluated as any function."""

    def call(self, evaluator: Evaluator, arguments: Arguments, keywords: Keywords) -> Variable:
        if self._is_checked_by_graph(evaluator, arguments):
            return ConstantVariable(None)
        return super().call(evaluator, arguments, keywords)

    def _is_checked_by_graph(self, evaluator: Evaluator, arguments: Arguments) -> bool:
        graph = evaluator.graph
        if not arguments or graph.is_in_region:
            return False
        value = arguments[0]
        if isinstance(value, DataBooleanVariable) and value.value is not None:
            require_compared(graph, value.function, *value.operands)
            return True
        return False


@held_by_identity(register_object(torch._check_is_size))
class SizeCheckVariable(CheckVariable):
    """``torch._check_is_size``: not negative."""

    def _is_checked_by_graph(self, evaluator: Evaluator, arguments: Arguments) -> bool:
        graph = evaluator.graph
        if len(arguments) != 1 or graph.is_in_region:
            return False
        if not isinstance(arguments[0], SymbolicNumberVariable) or not graph.shapes.data:
            return False
        require_compared(graph, operator.ge, arguments[0], ConstantVariable(0))
        return True


# ``torch.allclose`` and ``torch.equal``: the answer is a tensor of the graph, which may decide a branch.


Comparison = Callable[["Evaluator", list[Variable], dict[str, Variable]], Variable]


def _all(evaluator: Evaluator, compare: Any, arguments: Arguments, keywords: Keywords) -> Variable:
    """Whether ``compare`` holds of all elements."""
    elements = evaluator.graph.call_function(evaluator, compare, arguments, keywords)
    return TensorNumberVariable(tensor_of(evaluator, "all", elements), bool)


def _all_close(evaluator: Evaluator, arguments: Arguments, keywords: Keywords) -> Variable:
    return _all(evaluator, torch.isclose, arguments, keywords)


def _equal(evaluator: Evaluator, arguments: Arguments, keywords: Keywords) -> Variable:
    """Tensors of different sizes are not equal; of different dtypes torch's versions say different things."""
    pair = [argument for argument in arguments if isinstance(argument, TensorVariable)]
    if len(arguments) != 2 or len(pair) != 2 or keywords:
        raise Unsupported("arguments of a builtin function", f"torch.equal of {arguments!r}")
    left, right = (tensor.fake for tensor in pair)
    if left.dtype != right.dtype or left.device != right.device:
        raise Unsupported(
            "value of a tensor as a Python object", "torch.equal of two dtypes or devices"
        )
    if any(map(has_unbacked_symbols, (*left.shape, *right.shape))):
        raise Unsupported("number that depends on data", "torch.equal of sizes")
    if left.dim() != right.dim() or any(
        a != b for a, b in zip(left.shape, right.shape, strict=True)
    ):
        return ConstantVariable(False)
    return _all(evaluator, torch.eq, arguments, {})


_COMPARISONS: dict[Any, tuple[Any, Comparison]] = {
    torch.allclose: (torch.allclose, _all_close),
    torch.Tensor.allclose: (torch.allclose, _all_close),
    torch.equal: (torch.equal, _equal),
    torch.Tensor.equal: (torch.equal, _equal),
}


@models(*_COMPARISONS)
def _compared(
    function: Any, evaluator: Evaluator, /, *arguments: Variable, **keywords: Variable
) -> Variable:
    """A function that compares two tensors as wholes, or the method."""
    plain, compare = _COMPARISONS[function]
    if not evaluator.state.options.keep_control_flow:
        shown = ", ".join(map(repr, arguments))
        raise Unsupported(
            "value of a tensor as a Python object", f"torch.{plain.__name__}({shown})"
        )
    return compare(evaluator, list(arguments), keywords)
