"""Regions that the program asks for: ``torch.cond`` and ``while_loop`` of functions.

torch allows these functions no writes, and no results that are operands: there is nothing to tell apart.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch

from ....unsupported import Unsupported
from ...captured_exception import CapturedException
from ...models.containers.sequences import TupleVariable
from ...models.torch.tensor import TensorVariable
from ...variables.base import Variable
from ..branches.branch import Joined, Side, emit_branch
from ..decisions import Place
from ..evaluation import as_predicate, check_unchanged, may_attempt, refuse
from ..loops.emission import emit_while
from ..state.python_state import ObjectStates, difference
from ..subgraph import Carried, Subgraph, fresh_like, parameter, regional

if TYPE_CHECKING:
    from ...evaluator import FrameEvaluator

GIVES_ZERO_GRADIENTS = "gives_zero_gradients"
"""Set in the ``meta`` of a ``cond`` that the program calls: its results all have gradients, and what the side
taken does not use has one of zeros, where a branch in Python gives none."""


@contextlib.contextmanager
def attempt(evaluator: FrameEvaluator, what: str) -> Iterator[Place]:
    """A region at the call at hand; where it can't be kept, the call becomes a break."""
    place = (evaluator.code, evaluator.index)
    if not may_attempt(evaluator, place):
        raise Unsupported("control-flow operator", what)
    try:
        yield place
    except Unsupported as error:
        raise refuse(evaluator, place, str(error), cause=error.location) from error
    except CapturedException as error:
        raise refuse(evaluator, place, f"exception in a function of {what}") from error


def call_branch(
    evaluator: FrameEvaluator,
    predicate: TensorVariable,
    functions: tuple[Variable, Variable],
    operands: list[Variable],
) -> Variable:
    """``torch.cond``: both functions are evaluated on the operands."""
    with attempt(evaluator, "torch.cond") as place:
        tested = as_predicate(evaluator, predicate)
        states = ObjectStates(evaluator)
        sides = []
        for function in functions:
            subgraph = Subgraph(evaluator)
            with subgraph.active():
                result = evaluator.call_function(function, operands)
            sides.append(Side(subgraph, [], {}, result))
            check_unchanged(states)
        joined = Joined()
        first, second = (side.result for side in sides)
        both = joined.add_optional(first, second, "the result")
        _check_results(joined)
        values = emit_branch(evaluator, place, tested, sides[0], sides[1], joined)
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
    evaluator: FrameEvaluator, condition: Variable, body: Variable, carried: Sequence[Variable]
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
            problem = difference(item.start, value)
            if problem is not None:
                raise Unsupported("carried tensor that changes", problem)
            _check_gradients(value.fake)
            item.result = value
        emit_while(evaluator, subgraph, first, following, kept)
        return TupleVariable([item.parameter for item in kept])


def _test(
    evaluator: FrameEvaluator, condition: Variable, values: Sequence[Variable]
) -> TensorVariable:
    outcome = evaluator.call_function(condition, list(values))
    if not isinstance(outcome, TensorVariable):
        raise Unsupported("loop whose condition is no tensor", repr(outcome))
    return as_predicate(evaluator, outcome)


def _parameter(evaluator: FrameEvaluator, subgraph: Subgraph, value: Variable) -> Carried:
    """What stands for a carried value in the body; the loop begins with a copy, as torch's does."""
    if not isinstance(value, TensorVariable):
        raise Unsupported("loop that carries what is no tensor", repr(value))
    _check_gradients(value.fake)
    start = evaluator.graph.call_method(evaluator, "clone", value, (), {})
    assert isinstance(start, TensorVariable)
    fake = fresh_like(evaluator, start.fake)
    return Carried(start, regional(parameter(subgraph.graph, "carried", fake), fake))


def _check_gradients(tensor: torch.Tensor) -> None:
    """The program's own operators are kept where no gradient flows through them."""
    if torch.is_grad_enabled() and tensor.requires_grad:
        raise Unsupported("gradient through a region")
