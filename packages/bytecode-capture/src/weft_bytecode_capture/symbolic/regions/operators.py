"""Regions that the program asks for: ``torch.cond``, ``while_loop`` and ``associative_scan`` of functions.

torch allows these functions no writes, and no results that are operands: there is nothing to tell apart.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import torch

from ...unsupported import Unsupported
from ..models.containers.sequences import ListVariable, TupleVariable
from ..models.numbers.tensor_number import as_predicate
from ..models.torch.tensor import TensorVariable, tensor_of
from ..protocol import Frame
from ..variables.base import Variable
from .branches.branch import Joined, emit_branch
from .branches.branch_ends import BranchEnd
from .decisions import ProgramPoint
from .evaluation import attempted, check_unchanged, may_attempt
from .loops.while_loop import emit_while
from .state.python_state import ObjectStates, difference, stride_difference
from .subgraph import (
    Carried,
    Subgraph,
    add_region,
    call_region,
    fresh_like,
    give_gradients,
    parameter,
    regional,
)

GIVES_ZERO_GRADIENTS = "gives_zero_gradients"
"""Set in the ``meta`` of a ``cond`` that the program calls: its results all have gradients, and what the
branch taken does not use has one of zeros, where a branch in Python gives none."""


@contextlib.contextmanager
def attempt(evaluator: Frame, what: str) -> Iterator[ProgramPoint]:
    """A region at the call at hand; where it can't be kept, the call becomes a break."""
    place = (evaluator.code, evaluator.index)
    if not may_attempt(evaluator, place):
        raise Unsupported("control-flow operator", what)
    with attempted(evaluator, place, f"a function of {what}"):
        yield place


def call_branch(
    evaluator: Frame,
    predicate: TensorVariable,
    functions: tuple[Variable, Variable],
    operands: list[Variable],
) -> Variable:
    """``torch.cond``: both functions are evaluated on the operands."""
    with attempt(evaluator, "torch.cond") as place:
        tested = as_predicate(evaluator, predicate)
        states = ObjectStates(evaluator)
        branches = []
        for function in functions:
            subgraph = Subgraph(evaluator, is_branch=True)
            with subgraph.active():
                result = evaluator.call_function(function, operands)
            branches.append(BranchEnd(subgraph, [], {}, result))
            check_unchanged(states)
        joined = Joined()
        first, second = (branch.result for branch in branches)
        both = joined.add_optional(first, second, "the result")
        _check_results(joined)
        values = emit_branch(evaluator, place, tested, branches[0], branches[1], joined)
        if values:
            values[0].node.all_input_nodes[0].meta[GIVES_ZERO_GRADIENTS] = True
        found = joined.resolve(both, values)
        assert found is not None
        return found


def _check_results(joined: Joined) -> None:
    """Refuse results without gradients beside others: torch's operator gives them some."""
    given = {
        left.fake.requires_grad or right.fake.requires_grad
        for left, right in joined.pairs
        if left.fake.is_floating_point()
    }
    if torch.is_grad_enabled() and len(given) > 1:
        raise Unsupported("gradient through a region", "a result of torch.cond has none")


def call_loop(
    evaluator: Frame, condition: Variable, body: Variable, carried: Sequence[Variable]
) -> Variable:
    """``while_loop``: the body is evaluated on parameters, the condition on these and on what it leaves."""
    with attempt(evaluator, "while_loop"):
        first = _test(evaluator, condition, carried)
        subgraph = Subgraph(evaluator)
        kept = [_parameter(evaluator, subgraph, value) for value in carried]
        states = ObjectStates(evaluator)
        with subgraph.active():
            left = evaluator.call_function(body, [c.parameter for c in kept]).iterate(evaluator)
            following = _test(evaluator, condition, left)
            check_unchanged(states)
        if len(left) != len(kept):
            raise Unsupported("loop whose body leaves another number of values")
        for item, value in zip(kept, left, strict=True):
            if not isinstance(value, TensorVariable):
                raise Unsupported("loop that carries what is no tensor", repr(value))
            problem = difference(item.start, value) or stride_difference(item.start, value)
            if problem is not None:
                raise Unsupported("carried tensor that changes", problem)
            _check_gradients(value.fake)
            item.result = value
        emit_while(evaluator, subgraph, first, following, kept)
        return TupleVariable([item.parameter for item in kept])


def _test(evaluator: Frame, condition: Variable, values: Sequence[Variable]) -> TensorVariable:
    outcome = evaluator.call_function(condition, list(values))
    if not isinstance(outcome, TensorVariable):
        raise Unsupported("loop whose condition is no tensor", repr(outcome))
    return as_predicate(evaluator, outcome)


def _parameter(evaluator: Frame, subgraph: Subgraph, value: Variable) -> Carried:
    """What stands for a carried value in the body; the loop begins with a copy, as torch's does."""
    if not isinstance(value, TensorVariable):
        raise Unsupported("loop that carries what is no tensor", repr(value))
    _check_gradients(value.fake)
    start = tensor_of(evaluator, "clone", value)
    fake = fresh_like(evaluator, start.fake)
    return Carried(start, regional(parameter(subgraph.graph, "carried", fake), fake))


def _check_gradients(tensor: torch.Tensor) -> None:
    """The program's own operators are kept where no gradient flows through them."""
    if torch.is_grad_enabled() and tensor.requires_grad:
        raise Unsupported("gradient through a region")


# Scans of rows: the function that combines two is evaluated once, as the region of torch's operator.


def call_scan(evaluator: Frame, combine: Variable, rows: list[TensorVariable]) -> Variable:
    """The running combination of ``rows`` along their first dimension, a list of as many tensors.

    ``evaluator`` runs the polyfill that stands for the call; the region is its caller's.
    """
    with attempt(evaluator.parent or evaluator, "associative_scan"):
        gradients = [row.fake.requires_grad and torch.is_grad_enabled() for row in rows]
        while True:
            subgraph, parameters, results = _evaluated(evaluator, combine, rows, gradients)
            found = [result.fake.requires_grad for result in results]
            if not any(new and not old for new, old in zip(found, gradients, strict=True)):
                break
            gradients = [new or old for new, old in zip(found, gradients, strict=True)]
        nodes = [result.node for result in results]
        taken = subgraph.taken(*nodes)
        module = subgraph.close([p.node for p in parameters], taken, tuple(nodes))
        arguments = (
            add_region(evaluator, "combine", module),
            tuple(row.node for row in rows),
            tuple(taken),
        )
        fakes = [
            _fresh(evaluator, row.fake, row.fake.shape, has_gradient)
            for row, has_gradient in zip(rows, gradients, strict=True)
        ]
        items = call_region(evaluator, torch.ops.higher_order.associative_scan, arguments, fakes)
        made = zip(items, fakes, strict=True)
        return ListVariable([TensorVariable(node, fake, None) for node, fake in made])


def _evaluated(
    evaluator: Frame, combine: Variable, rows: list[TensorVariable], gradients: list[bool]
) -> tuple[Subgraph, list[TensorVariable], list[TensorVariable]]:
    """The graph of ``combine``, its parameters and results; ``gradients``: which left values have any."""
    subgraph = Subgraph(evaluator)
    states = ObjectStates(evaluator)
    flags = [*gradients, *(row.fake.requires_grad for row in rows)]
    parameters = []
    for row, has_gradient in zip([*rows, *rows], flags, strict=True):
        fake = _fresh(evaluator, row.fake, row.fake.shape[1:], has_gradient)
        parameters.append(regional(parameter(subgraph.graph, "row", fake), fake))
    with subgraph.active():
        given = evaluator.call_function(combine, list(parameters)).iterate(evaluator)
        check_unchanged(states)
    if len(given) != len(rows):
        raise Unsupported("scan whose function gives another number of values")
    results = []
    for value, like in zip(given, parameters, strict=False):
        if not isinstance(value, TensorVariable):
            raise Unsupported("scan whose function gives no tensor", repr(value))
        kinds = [(f.shape, f.dtype, f.device) for f in (value.fake, like.fake)]
        if kinds[0] != kinds[1]:
            raise Unsupported("scan whose function changes sizes or dtypes", f"{kinds[0]}")
        results.append(value)
    return subgraph, parameters, results


def _fresh(
    evaluator: Frame, like: torch.Tensor, size: torch.Size, has_gradient: bool
) -> torch.Tensor:
    """A contiguous fake tensor of ``size`` with the dtype and device of ``like``."""
    with evaluator.graph.fake_mode:
        made = torch.empty(size, dtype=like.dtype, device=like.device)
    if has_gradient:
        give_gradients(evaluator, made)
    return made
