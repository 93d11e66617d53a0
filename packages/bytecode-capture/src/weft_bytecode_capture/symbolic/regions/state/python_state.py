"""The Python state around a region: what it may change, and how two states of it compare."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from ...._torch.symbols import GuardOnDataDependentSymNode
from ...models.containers.sequences import TupleVariable
from ...models.functions.cells import CellVariable
from ...models.iterators.builtin_iterators import IteratorVariable
from ...models.numbers.symbolic_number import SymbolicNumberVariable
from ...models.numbers.tensor_number import TensorNumberVariable, number_kind
from ...models.torch.tensor import TensorVariable
from ...protocol import Frame, State
from ...variables.base import Variable
from .containers import Opens, is_container, opened, opens_none, parts, shape, with_parts
from .frozen_states import frozen_state, held_variables, is_same, owned_attributes, variables_in


@dataclass
class _State:
    """An object's state: a copy to compare, and what its owners' attributes were."""

    frozen: dict[str, Any]
    held: list[tuple[Any, str, Any]]


class ObjectStates:
    """The state of every object that the program has made and can reach, to tell whether a region changed it.

    Objects from outside the frame are journaled when they first change; from then on, and where they are made
    in the frame, they are compared.
    """

    def __init__(self, evaluator: Frame) -> None:
        self._side_effects = evaluator.side_effects
        self._effects = len(evaluator.side_effects)
        self._capture = evaluator.state
        self._names = _written_names(evaluator.state)
        self._layouts = evaluator.graph.layouts()
        self._taken_back: set[int] = set()
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
        graph = self._capture.graph
        if graph.layouts() != graph.layouts(self._layouts):
            return True
        return not is_same(self._names, _written_names(self._capture))

    def note_taken_back(self, variables: Iterable[Variable]) -> None:
        """Let changes of objects from outside be none: what was there before has been put back."""
        new = {id(variable) for variable in variables} - self._mutated - self._taken_back
        self._effects += len(new)
        self._taken_back |= new

    def is_new(self, variable: Variable) -> bool:
        """Whether a variable is a container that was made since."""
        return is_container(variable) and id(variable) not in self._states

    def forget_iterators(self, evaluator: Frame) -> None:
        """Put back iterators that changed, where nothing can reach them any more."""
        reached = {id(variable) for variable in _reachable(evaluator)}
        for variable, state in self.changed():
            if isinstance(variable, IteratorVariable) and id(variable) not in reached:
                _restore(state)

    def take_back(self) -> list[tuple[Variable, Variable]]:
        """Put back the containers that changed; each with a copy of what it was."""
        found = []
        for variable, state in self.changed():
            if is_container(variable):
                found.append((variable, with_parts(variable, parts(variable))))
                _restore(state)
        return found

    def changed(self) -> list[tuple[Variable, _State]]:
        """The objects that changed since, each with its state before."""
        return [pair for pair in self._states.values() if self._has_changed(*pair)]

    def _has_changed(self, variable: Variable, state: _State) -> bool:
        if _is_from_outside(variable) and id(variable) not in self._mutated:
            return False  # to read it is no change
        return not is_same(state.frozen, frozen_state(variable))


def _is_from_outside(variable: Variable) -> bool:
    """Whether the object is older than the frame: what changes before a write is what is known of it."""
    if isinstance(variable, CellVariable):
        return variable.cell is not None
    return variable.source is not None


def _written_names(state: State) -> dict[str, Any]:
    """What the program has bound to globals and to attributes of classes, by kind and place."""
    return {
        "globals": {id(module): dict(module.written) for module in state.written_globals()},
        "classes": dict(state.class_writes),
    }


def _reachable(evaluator: Frame) -> Iterator[Variable]:
    pending: list[Any] = []
    for frame in evaluator.frames():
        pending += [*frame.stack, *frame.locals.values(), *frame.cells.values(), frame.function]
        pending.append(frame.handled)
    pending += evaluator.side_effects.mutated_variables()
    for names in _written_names(evaluator.state).values():
        pending += names.values()
    seen: set[int] = set()
    variables = list(variables_in(pending))
    while variables:
        variable = variables.pop()
        if id(variable) not in seen:
            seen.add(id(variable))
            yield variable
            variables += held_variables(variable)


def _state(variable: Variable) -> _State:
    """What the object is now."""
    held = [
        (owner, name, value.copy() if type(value) in (dict, list, set) else value)
        for owner, found in owned_attributes(variable)
        for name, value in found.items()
    ]
    return _State(frozen_state(variable), held)


def _restore(state: _State) -> None:
    """Put a container or an iterator back into the state that :func:`_state` has found."""
    for owner, name, before in state.held:
        value = getattr(owner, name)
        if type(value) is list:
            value[:] = before
        elif type(value) in (dict, set):
            value.clear()
            value.update(before)
        elif before is not value:
            setattr(owner, name, before)


def held_by_locals(evaluator: Frame) -> set[int]:
    """The containers that a single local holds, by identity: to them only that local leads."""
    found: set[int] = set()
    for name, value in list(evaluator.locals.items()):
        containers = list(opened(value, is_container))
        if containers and held_by_one(evaluator, name, containers):
            found.update(map(id, containers))
    return found


def held_by_one(evaluator: Frame, name: str, containers: list[Variable]) -> bool:
    """Whether nothing but the local ``name`` leads to any of ``containers``, and to each in one way."""
    held = evaluator.locals.pop(name)
    try:
        others = {id(variable) for variable in _reachable(evaluator)}
    finally:
        evaluator.locals[name] = held
    found = {id(container) for container in containers}
    return len(found) == len(containers) and found.isdisjoint(others)


def leaves(variable: Variable, opens: Opens = opens_none) -> list[Variable] | None:
    """What is in nested exact tuples and opened containers, the tensors of numbers in tensors; or itself.

    None for a tuple that has not been read.
    """
    if type(variable) is TensorNumberVariable:
        return [variable.tensor]
    if type(variable) is TupleVariable:
        if not variable.is_read:
            return None
    elif not opens(variable):
        return [variable]
    found: list[Variable] = []
    for item in parts(variable):
        inner = leaves(item, opens)
        if inner is None:
            return None
        found += inner
    return found


def rebuilt(
    variable: Variable,
    items: Iterator[Variable],
    opens: Opens = opens_none,
    made: dict[int, Variable] | None = None,
) -> Variable:
    """The structure of ``variable`` with the next of ``items`` for each leaf; notes containers ``made``."""
    if type(variable) is TensorNumberVariable:
        tensor: Any = next(items)
        return variable.held_in(tensor)
    is_opened = opens(variable)
    if type(variable) is not TupleVariable and not is_opened:
        return next(items)
    result = with_parts(variable, [rebuilt(item, items, opens, made) for item in parts(variable)])
    if is_opened and made is not None:
        made[id(result)] = result
    return result


def same_structure(left: Variable, right: Variable, opens: Opens = opens_none) -> bool:
    if TensorNumberVariable in (type(left), type(right)):
        return type(left) is type(right) and number_kind(left) is number_kind(right)
    ends = [type(v) is TupleVariable or opens(v) for v in (left, right)]
    if not all(ends):
        return not any(ends)
    if shape(left) != shape(right):
        return False
    pairs = zip(parts(left), parts(right), strict=True)
    return all(same_structure(a, b, opens) for a, b in pairs)


def same_constant(left: Variable, right: Variable) -> bool:
    """Whether two variables are one immutable value."""
    if left is right:
        return True
    if isinstance(left, SymbolicNumberVariable) and isinstance(right, SymbolicNumberVariable):
        return left.number_node is right.number_node
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


def stride_difference(left: TensorVariable, right: TensorVariable) -> str | None:
    """How the strides of two tensors of one shape differ, if anyone can tell."""
    dimensions = zip(left.fake.shape, left.fake.stride(), right.fake.stride(), strict=True)
    if all(_are_equal(a, b) or _are_equal(n, 1) for n, a, b in dimensions):
        return None
    return f"strides {left.fake.stride()} and {right.fake.stride()}"


def difference(left: TensorVariable, right: TensorVariable) -> str | None:
    """How the metadata of two tensors that have to be alike differs."""
    for name in ("dtype", "device", "shape"):
        first, second = getattr(left.fake, name), getattr(right.fake, name)
        if not _are_equal(first, second):
            return f"{name} {first} and {second}"
    return None
