"""What the test of a loop says of sizes that vary: ``while order.numel() > 0`` has an element in its body.

The body is evaluated as if the test held of the sizes that an iteration begins with; so it does if the test
before the loop and the one that the body ends with are one relation, of what these sizes are there.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import sympy
import torch
import torch.fx

from ...._torch.symbols import append_size, assume_relation, expression_of, same_relation
from ...graph.size_nodes import size_node
from ...models.numbers.data_numbers import DataBooleanVariable
from ...models.numbers.tensor_number import TensorNumberVariable
from ...protocol import Frame
from ...variables.base import Variable

_FUNCTIONS: dict[Any, Any] = {
    sympy.Gt: operator.gt,
    sympy.Ge: operator.ge,
    sympy.Lt: operator.lt,
    sympy.Le: operator.le,
    sympy.Ne: operator.ne,
}


def relation_of(test: Variable) -> Any:
    """The relation of sizes that a test is, None for other tests."""
    value = None
    if isinstance(test, DataBooleanVariable):
        value = test.value
    elif isinstance(test, TensorNumberVariable):
        value = test.known_as
    if isinstance(value, torch.SymInt):  # ``while x.numel():``
        return sympy.Ne(expression_of(value), 0)
    expression = expression_of(value) if isinstance(value, torch.SymBool) else None
    return expression if type(expression) in _FUNCTIONS else None


def assumed_relation(test: Variable, holds: bool, started: Mapping[Any, Any]) -> Any:
    """The relation that holds where a loop goes on, of the symbols of sizes in its body; None: none is known.

    ``holds``: with which outcome of the test; ``started`` gives what sizes begin with, by symbol.
    """
    relation = relation_of(test)
    if relation is None:
        return None
    if not holds:
        relation = sympy.Not(relation)
    inside = {start: symbol for symbol, start in started.items() if isinstance(start, sympy.Symbol)}
    found = relation.xreplace(inside)
    if isinstance(found, sympy.Ne) and found.rhs == 0:  # no size is below zero
        found = sympy.Gt(found.lhs, 0)
    is_of_sizes = isinstance(found, sympy.Rel) and not found.free_symbols.isdisjoint(started)
    return found if is_of_sizes and type(found) in _FUNCTIONS else None


def assume_inside(
    evaluator: Frame, relation: Any, nodes: Mapping[Any, torch.fx.Node], graph: torch.fx.Graph
) -> None:
    """Let the body, whose graph is ``graph``, rely on ``relation``; ``nodes`` give its sizes."""
    builder = evaluator.graph
    assume_relation(builder.shapes.environment, relation)
    difference = sympy.expand(relation.lhs - relation.rhs)
    known = {s: nodes[s] if s in nodes else size_node(builder, s) for s in difference.free_symbols}
    node = append_size(difference, known, graph)
    compared = graph.call_function(_FUNCTIONS[type(relation)], (node, 0))
    compared.meta["example_value"] = True
    check = graph.call_function(torch._check, (compared,))
    check.meta["data_dependent"] = True


def is_repeated(relation: Any, holds: bool, test: Variable, following: Mapping[Any, Any]) -> bool:
    """Whether ``test``, at the end of the body, is ``relation`` of the sizes of the next iteration."""
    found = relation_of(test)
    if found is None:
        return False
    if not holds:
        found = sympy.Not(found)
    wanted = relation.xreplace({symbol: sympy.sympify(size) for symbol, size in following.items()})
    return same_relation(found, wanted)
