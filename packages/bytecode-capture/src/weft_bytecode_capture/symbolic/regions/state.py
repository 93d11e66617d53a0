"""The Python state around a region: what it may change, and how two states of it compare."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ..._torch import GuardOnDataDependentSymNode
from ..variables.base import Variable
from ..variables.generators import GeneratorVariable
from ..variables.iterators import RangeIteratorVariable
from ..variables.sequences import TupleVariable
from ..variables.tensor import TensorVariable
from ..variables.tensor_number import TensorNumberVariable

if TYPE_CHECKING:
    from ..capture_state import CaptureState
    from ..evaluator import Evaluator

_NOTES = frozenset({"version", "_quiet", "looked_at"})  # of lists, beside what they hold


class ObjectStates:
    """The state of every object that the program has made and can reach, to tell whether a region changed it.

    Objects from outside the frame are journaled when they first change; from then on, and where they are made
    in the frame, they are compared.
    """

    def __init__(self, evaluator: Evaluator) -> None:
        self._side_effects = evaluator.side_effects
        self._effects = len(evaluator.side_effects)
        self._capture = evaluator.state
        self._names = _written_names(evaluator.state)
        self._mutated = {id(v) for v in evaluator.side_effects.mutated_variables()}
        self._states = {
            id(variable): (variable, _state(variable)) for variable in _reachable(evaluator)
        }

    def effects(self) -> bool:
        """Whether an effect on the world outside the frame was recorded since, and none like it before.

        A global or an attribute of a class that has been written is one of these whenever it is again.
        """
        if len(self._side_effects) != self._effects:
            return True
        return not _same(self._names, _written_names(self._capture))

    def forget_iterators(self, evaluator: Evaluator) -> None:
        """Put back iterators over ranges that changed, where nothing can reach them any more."""
        reached = {id(variable) for variable in _reachable(evaluator)}
        for variable, state in self.changed():
            if type(variable) is RangeIteratorVariable and id(variable) not in reached:
                variable.position = state["position"]

    def changed(self) -> list[tuple[Variable, dict[str, Any]]]:
        """The objects that changed since, each with its state before."""
        return [
            (variable, state)
            for variable, state in self._states.values()
            if (variable.source is None or id(variable) in self._mutated)
            and not _same(state, _state(variable))
        ]


def _written_names(state: CaptureState) -> dict[str, Any]:
    """What the program has bound to globals and to attributes of classes, by kind and place."""
    return {
        "globals": {id(module): dict(module.written) for module in state.written_globals()},
        "classes": dict(state.class_writes),
    }


def _reachable(evaluator: Evaluator) -> Iterator[Variable]:
    pending: list[Any] = []
    frame: Evaluator | None = evaluator
    while frame is not None:
        pending += [*frame.stack, *frame.locals.values(), *frame.cells.values(), frame.function]
        pending.append(frame.handled)
        frame = frame.parent
    pending += evaluator.side_effects.mutated_variables()
    seen: set[int] = set()
    while pending:
        value = pending.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, Variable):
            yield value
            pending += vars(value).values()
        elif isinstance(value, dict):
            pending += [*value.keys(), *value.values()]
        elif isinstance(value, (list, tuple, set)):
            pending += value


def _state(variable: Variable) -> dict[str, Any]:
    """A shallow copy of what the object is."""
    state = {
        name: tuple(value.items())
        if isinstance(value, dict)
        else tuple(value)
        if isinstance(value, (list, set))
        else value
        for name, value in vars(variable).items()
        if name not in _NOTES
    }
    if isinstance(variable, GeneratorVariable):
        state["resumes at"] = (variable.frame.next_index, variable.frame.finished)
    return state


def _same(left: Any, right: Any) -> bool:
    if left is right:
        return True
    if isinstance(left, (int, str)):
        return type(left) is type(right) and bool(left == right)
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(_same(left[k], right[k]) for k in left)
    if isinstance(left, tuple) and isinstance(right, tuple):
        return len(left) == len(right) and all(map(_same, left, right))
    return False


def leaves(variable: Variable) -> list[Variable] | None:
    """The elements of nested exact tuples, the tensors of numbers in tensors, or the variable itself."""
    if type(variable) is TensorNumberVariable:
        return [variable.tensor]
    if type(variable) is not TupleVariable:
        return [variable]
    if variable._unread is not None:
        return None
    found: list[Variable] = []
    for item in variable._items:
        inner = leaves(item)
        if inner is None:
            return None
        found += inner
    return found


def rebuilt(variable: Variable, items: Iterator[Variable]) -> Variable:
    """The structure of ``variable`` with the next of ``items`` for each leaf."""
    if type(variable) is TensorNumberVariable:
        tensor: Any = next(items)
        return TensorNumberVariable(tensor, variable.kind, variable.is_step)
    if type(variable) is not TupleVariable:
        return next(items)
    return TupleVariable([rebuilt(item, items) for item in variable._items])


def same_structure(left: Variable, right: Variable) -> bool:
    if TensorNumberVariable in (type(left), type(right)):
        return type(left) is type(right) and left.python_type() is right.python_type()
    if type(left) is not TupleVariable or type(right) is not TupleVariable:
        return (type(left) is TupleVariable) == (type(right) is TupleVariable)
    if len(left._items) != len(right._items):
        return False
    return all(map(same_structure, left._items, right._items))


def same_constant(left: Variable, right: Variable) -> bool:
    """Whether two variables are one immutable value."""
    if left is right:
        return True
    if not (left.is_constant() and right.is_constant()):
        return False
    first, second = left.as_constant(), right.as_constant()
    if isinstance(first, float) and isinstance(second, float):
        return first.hex() == second.hex()
    return type(first) is type(second) and bool(first == second)


def _are_equal(left: Any, right: Any) -> bool:
    """Whether two properties are equal in every iteration."""
    try:
        return bool(left == right)
    except GuardOnDataDependentSymNode:
        return False


def difference(left: TensorVariable, right: TensorVariable) -> str | None:
    """How the metadata of two tensors that have to be alike differs."""
    for name in ("dtype", "device", "shape"):
        first, second = getattr(left.fake, name), getattr(right.fake, name)
        if not _are_equal(first, second):
            return f"{name} {first} and {second}"
    return None
