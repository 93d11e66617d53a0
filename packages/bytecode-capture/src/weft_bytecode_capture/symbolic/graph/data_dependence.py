"""Numbers that the graph reads from its tensors, and the conditions on them that a call has to check."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.fx

from ..._torch.fakes import FAKE_TENSOR_ERRORS
from ..._torch.symbols import (
    GuardOnDataDependentSymNode,
    expression_of,
    least_that_decides,
    size_hint,
    unbacked_symbols,
    within,
)
from ...unsupported import Unsupported
from ..models.containers.sequences import ListVariable, flattened
from ..models.numbers.data_numbers import DataBooleanVariable, DataFloatVariable
from ..models.numbers.representations import number_operand, number_value
from ..models.numbers.symbolic_number import SymbolicNumberVariable
from ..protocol import Evaluator, Graph
from ..shapes import MAX_NUMBER, DataSymbolSource
from ..variables.constant import ConstantVariable

if TYPE_CHECKING:
    from ..models.torch.tensor import TensorVariable
    from ..variables.base import Keywords, Variable

_MAX_RESULT = 2**62
_READABLE = frozenset(
    {torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8}
    | {torch.float16, torch.bfloat16, torch.float32, torch.float64}
)
_MAX_ELEMENTS = 16  # of a list that is read element by element
# Fake tensors can't say whether a window that data places lies within its tensor, and kernels don't check it.
_UNCHECKED_WINDOWS = frozenset(
    {"as_strided", "as_strided_", "as_strided_scatter", "unfold", "diagonal", "diagonal_scatter"}
    | {"select_scatter"}
)
_SELECTS = (torch.select, "select")


class CallChecks:
    """What a call of an operator comes to rely on of numbers that depend on data.

    In a region it may be of numbers that are read there only: where the region does not run, nothing holds.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._count = graph.shapes.deferred_checks
        self._outside = self._of_outside()

    def _of_outside(self) -> int:
        return self._graph.shapes.checks_on_first(self._graph.symbols_outside)

    def note(self, node: torch.fx.Node) -> None:
        """Mark the node of the call that checks it.

        :raises Unsupported: it is in a region, and of numbers from outside.
        """
        if self._graph.shapes.deferred_checks == self._count:
            return
        if self._of_outside() != self._outside:
            raise Unsupported("symbolic number in a region", f"checked by {node.name}")
        node.meta["checks"] = node.meta["data_dependent"] = True


def can_read(evaluator: Evaluator, tensor: TensorVariable) -> bool:
    """Whether the only element of a tensor can be a number of the graph."""
    graph = evaluator.graph
    return (
        evaluator.state.options.data_dependent_scalars
        and not graph.is_in_region
        and tensor.fake.dtype in _READABLE
        and all(type(size) is int and size == 1 for size in tensor.fake.shape)
    )


def refuse_unchecked_window(target: Any, arguments: Any) -> None:
    """Break at a window into a tensor whose place is a number that depends on data.

    ``arguments`` are the call's, with fake tensors; what they hold is looked through.
    """
    name = target if isinstance(target, str) else getattr(target, "__name__", "")
    if name not in _UNCHECKED_WINDOWS:
        return
    numbers: list[Any] = []
    torch.fx.node.map_aggregate(arguments, numbers.append)
    if any(not isinstance(n, torch.Tensor) and unbacked_symbols(n) for n in numbers):
        raise Unsupported("number that depends on data", f"place of a window: {name}")


def read_number(evaluator: Evaluator, tensor: TensorVariable) -> Variable:
    """``tensor.item()``: a symbol of its own."""
    graph = evaluator.graph
    detached = graph.call_method(evaluator, "detach", tensor, (), {})
    copy = graph.call_method(evaluator, "clone", detached, (), {})
    source = DataSymbolSource(copy)
    with graph.reading(source):
        number = graph.call_method(evaluator, "item", tensor, (), {})
    if not isinstance(number, SymbolicNumberVariable):
        return number
    if number.python_type() is float:
        return DataFloatVariable(graph.shapes, number.value, number.number_node, source)
    return number


def read_list(evaluator: Evaluator, tensor: TensorVariable) -> Variable | None:
    """``tensor.tolist()`` of few elements; None where they are not read one by one."""
    from ..models.torch.tensor import TensorVariable

    shape: tuple[Any, ...] = tuple(tensor.fake.shape)
    if len(shape) == 0:
        return read_number(evaluator, tensor) if can_read(evaluator, tensor) else None
    length = _specialised_length(evaluator, shape[0]) if len(shape) == 1 else None
    if length is None:
        return None
    numbers = []
    for position in range(length):
        place = [ConstantVariable(0), ConstantVariable(position)]
        element = evaluator.graph.call_method(evaluator, "select", tensor, place, {})
        if not isinstance(element, TensorVariable) or not can_read(evaluator, element):
            return None
        numbers.append(read_number(evaluator, element))
    return ListVariable(numbers)


def _specialised_length(evaluator: Evaluator, size: Any) -> int | None:
    """How many elements a list has, which becomes a relation; None of too many, and where data decides."""
    now = size_hint(size)
    if now is None or now > _MAX_ELEMENTS:
        return None
    if isinstance(size, int):
        return size
    may_read = evaluator.state.options.data_dependent_scalars and not evaluator.graph.is_in_region
    return int(evaluator.graph.shapes.specialise(size)) if may_read else None


def require(graph: Graph, condition: torch.SymBool, node: torch.fx.Node) -> None:
    """Let the graph check ``condition``, which ``node`` gives, and rely on it from now on.

    :raises Unsupported: it is known to be false.
    """
    try:
        with graph.fake_mode:
            torch._check(condition)
    except (RuntimeError, *FAKE_TENSOR_ERRORS) as error:
        raise Unsupported("condition on data that does not hold", str(condition)) from error
    node.meta["example_value"] = condition
    check = node.graph.call_function(torch._check, (node,))
    check.meta["data_dependent"] = True


def require_compared(graph: Graph, function: Any, left: Variable, right: Variable) -> None:
    """Let the graph check a comparison of two integers, unless it holds anyway.

    :raises Unsupported: it is known to be false.
    """
    condition = function(number_value(left), number_value(right))
    decided = graph.shapes.decided(condition) if isinstance(condition, torch.SymBool) else condition
    if decided is None:
        arguments = (number_operand(left), number_operand(right))
        require(graph, condition, graph.outermost.call_function(function, arguments))
    elif not decided:
        raise Unsupported("condition on data that does not hold", f"{left!r}, {right!r}")


def require_selected_inside(
    evaluator: Evaluator, target: Any, arguments: Sequence[Variable], keywords: Keywords
) -> None:
    """Let the graph check that what ``select`` takes by data is there, counted from the beginning.

    ``arguments`` and ``keywords`` are those of a call of ``target``, of any function.
    """
    if target not in _SELECTS:
        return
    given = dict(zip(("input", "dim", "index"), arguments, strict=False)) | keywords
    tensor, dimension, index = (given.get(name) for name in ("input", "dim", "index"))
    if tensor is None or dimension is None or not unbacked_symbols(getattr(index, "value", None)):
        return
    assert index is not None
    require_compared(evaluator.graph, operator.ge, index, ConstantVariable(0))
    size = tensor.call_method(evaluator, "size", [dimension], {})
    require_compared(evaluator.graph, operator.lt, index, size)


def require_small(graph: Graph, number: Any) -> None:
    """Let the graph check that the integers that ``number`` is computed from are small.

    :raises Unsupported: a result may leave 64 bits nevertheless.
    """
    symbols = graph.shapes.data
    for symbol in unbacked_symbols(number) - symbols.bounded:
        symbols.bounded.add(symbol)
        node = graph.number_node(symbol)
        value = node.meta["example_value"] if node is not None else None
        if isinstance(value, torch.SymInt) and not within(value, MAX_NUMBER):
            for function, bound in ((operator.le, MAX_NUMBER), (operator.ge, -MAX_NUMBER)):
                condition = function(value, bound)
                if graph.shapes.decided(condition) is None:
                    compared = graph.outermost.call_function(function, (node, bound))
                    require(graph, condition, compared)
    if isinstance(number, torch.SymInt) and not within(number, _MAX_RESULT, symbols.are_sizes()):
        raise Unsupported("number that depends on data", f"{number} may leave 64 bits")


def decide_count(evaluator: Evaluator, error: Unsupported, operands: Sequence[Variable]) -> bool:
    """Whether the question at which an operator has failed on fakes is decided now, as in this call.

    ``y.roll(1, 0)`` asks if there is any of ``y = x[mask]``: the graph checks that there is, or is not.
    """
    question = error.__cause__
    if not isinstance(question, GuardOnDataDependentSymNode) or evaluator.graph.is_in_region:
        return False
    for operand in flattened(evaluator, operands):
        fake = getattr(operand, "fake", None)
        for dimension, size in enumerate(fake.shape if isinstance(fake, torch.Tensor) else ()):
            if not isinstance(size, torch.SymInt) or not unbacked_symbols(size):
                continue
            least = least_that_decides(question.cond, expression_of(size))
            if least is not None:
                count = operand.call_method(evaluator, "size", [ConstantVariable(dimension)], {})
                pair = (count, ConstantVariable(least))
                enough = DataBooleanVariable(operator.ge, pair, number_value(count) >= least)
                return evaluator.assumed(enough) is not None
    return False
