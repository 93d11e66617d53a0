"""Guards that keep apart objects that were apart during capture."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft_guards import NotAliased

from .protocol import Evaluator

if TYPE_CHECKING:
    from .variables.base import Variable


def guard_distinct(evaluator: Evaluator, left: Variable, right: Variable) -> None:
    """Guard that two objects found at two sources are still two objects, unless their types tell."""
    first, second = left.source, right.source
    if first is None or second is None or left.python_type() is not right.python_type():
        return
    if evaluator.state.is_identified(first) and evaluator.state.is_identified(second):
        return
    evaluator.guard(second, NotAliased(first))


def guard_mutated_objects(evaluator: Evaluator) -> None:
    """Guard that no mutated object is also reached by a path that held another object in this capture."""
    mutated = evaluator.side_effects.mutated_variables()
    if not mutated:
        return
    rows = [(variable, source) for _, variable, source in evaluator.builder.wrapped()]
    for target in mutated:
        if target.source is None:
            continue
        for variable, source in rows:
            if variable is target or source == target.source:
                continue
            if type(variable) is type(target):
                guard_distinct(evaluator, target, variable)
