"""What the frames hold, directly or in objects: as long as they do, CPython keeps it.

Only references are followed that CPython has too, so that what is found lives; what is not found may.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ...protocol import Evaluator
from ...variables.base import Variable
from ..containers.mappings import DictVariable
from ..containers.sequences import ListVariable, TupleVariable
from ..containers.sets import SetVariable
from ..functions.bound_methods import BoundMethodVariable
from ..functions.cells import CellVariable
from ..functions.python_functions import NewFunctionVariable
from ..iterators.generators import GeneratorVariable
from .user_objects import UserObjectVariable


def is_held(evaluator: Evaluator, wanted: Variable) -> bool:
    """Whether the frames that run hold an object that one of them has made."""
    seen: set[int] = set()
    left: list[Variable] = []
    for frame in evaluator.frame.frames():
        held = (*frame.stack, *frame.locals.values(), *frame.cells.values())
        left.extend(part for part in held if part is not None)
    left.extend(evaluator.side_effects.mutated_variables())
    while left:
        variable = left.pop()
        if variable is wanted:
            return True
        if id(variable) not in seen:
            seen.add(id(variable))
            left.extend(part for part in _parts(variable) if part is not None)
    return False


def _parts(variable: Variable) -> Iterable[Variable | None]:
    if isinstance(variable, UserObjectVariable):
        return (*variable.attributes.values(), variable.storage)
    if isinstance(variable, DictVariable):
        return _of_entries(variable)
    if isinstance(variable, (ListVariable, TupleVariable)):
        return variable._items if variable.is_read else ()
    if isinstance(variable, SetVariable):
        return [member.variable for member in variable.members_in_order()]
    if isinstance(variable, CellVariable):
        return (variable.contents,)
    if isinstance(variable, BoundMethodVariable):
        return variable.function, variable.receiver
    if isinstance(variable, NewFunctionVariable):
        return variable.held()
    if isinstance(variable, GeneratorVariable) and not variable.frame.finished:
        frame = variable.frame
        return (*frame.stack, *frame.locals.values(), *frame.cells.values())
    return ()


def _of_entries(variable: DictVariable) -> Iterator[Variable]:
    for key, value in variable.entries.items():
        yield key.variable
        yield value
