"""``torch._check`` of what only data decides: a condition that the graph checks when it runs.

A call in which it does not hold runs as the program was written, so the error, and its text, is eager's.
"""

from __future__ import annotations

import operator

import torch

from ...graph.data_dependence import require_compared
from ...protocol import Evaluator
from ...variables.base import Arguments, Keywords, Variable
from ...variables.builder import held_by_identity, register_object
from ...variables.constant import ConstantVariable
from ..functions.python_functions import KnownFunctionVariable
from ..numbers.data_numbers import DataBooleanVariable
from ..numbers.symbolic_number import SymbolicNumberVariable

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
