"""Containers that a region makes anew: carried and joined by what they hold, as tuples are.

A list, a dict or an instance is an object with an identity.  Where nobody else has it, a new one with the
same parts is as good: so it is with one that the region has made, and one that a single local holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ....unsupported import Unsupported
from ...models.containers.mappings import DictVariable
from ...models.containers.sequences import ListVariable, TupleVariable
from ...models.objects.user_objects import UserObjectVariable
from ...variables.base import Variable
from ...variables.python_protocols import has_finalizer

Opens = Callable[[Variable], bool]
"""Which containers stand for what they hold; the others for themselves."""


def opens_none(variable: Variable) -> bool:
    """Tuples alone stand for what they hold."""
    return False


def is_container(variable: Variable) -> bool:
    """Whether a variable is a plain container that the frame has made, all of whose state is its parts."""
    if variable.source is not None:
        return False
    if isinstance(variable, DictVariable):
        is_read = variable.unread is None and variable.owner is None
        return type(variable) is DictVariable and is_read
    if isinstance(variable, ListVariable):
        return variable.is_its_parts
    if isinstance(variable, UserObjectVariable):
        return type(variable) is UserObjectVariable and _is_plain_instance(variable)
    return False


def _is_plain_instance(variable: UserObjectVariable) -> bool:
    storage = variable.storage
    if storage is not None and (type(storage) is not TupleVariable or not storage.is_read):
        return False
    return (
        variable.value is None
        and variable._dictionary_variable is None
        and not has_finalizer(variable.kind)
        and None not in variable.attributes.values()
    )


def shape(variable: Variable) -> tuple[Any, ...]:
    """What two containers have in common whose parts correspond: kind and keys."""
    if isinstance(variable, DictVariable):
        return (dict, *variable.entries)
    if isinstance(variable, UserObjectVariable):
        size = None if variable.storage is None else len(_stored(variable))
        return (variable.kind, size, *variable.attributes)
    assert isinstance(variable, (ListVariable, TupleVariable))
    return (variable.kind, len(variable._items))


def parts(variable: Variable) -> list[Variable]:
    """What a container or a tuple holds, in order."""
    if isinstance(variable, DictVariable):
        return list(variable.entries.values())
    if isinstance(variable, UserObjectVariable):
        held = [value for value in variable.attributes.values() if value is not None]
        return held + _stored(variable)
    assert isinstance(variable, (ListVariable, TupleVariable))
    return list(variable._items)


def _stored(variable: UserObjectVariable) -> list[Variable]:
    return [] if variable.storage is None else parts(variable.storage)


def with_parts(variable: Variable, held: Sequence[Variable]) -> Variable:
    """A new container or tuple like this one, which holds other parts."""
    if isinstance(variable, DictVariable):
        return DictVariable(dict(zip(variable.entries, held, strict=True)))
    if isinstance(variable, UserObjectVariable):
        made = UserObjectVariable(variable.kind)
        count = len(variable.attributes)
        made.attributes.update(zip(variable.attributes, held[:count], strict=True))
        if variable.storage is not None:
            made.hold(TupleVariable(held[count:]))
        return made
    return ListVariable(held) if isinstance(variable, ListVariable) else TupleVariable(held)


def made_by_one_branch(variable: Variable) -> Unsupported:
    """Why what one branch of a conditional adds to a container can't be joined with what the other leaves."""
    if isinstance(variable, ListVariable):
        return Unsupported("list that one branch makes longer", repr(variable))
    return Unsupported("key or attribute that one branch makes", repr(variable))


def become(variable: Variable, other: Variable) -> None:
    """Let a container have the keys and parts of another of its kind."""
    if isinstance(variable, DictVariable) and isinstance(other, DictVariable):
        variable.entries.clear()
        variable.entries.update(other.entries)
    elif isinstance(variable, UserObjectVariable) and isinstance(other, UserObjectVariable):
        variable.attributes.clear()
        variable.attributes.update(other.attributes)
        if other.storage is not None:
            variable.hold(other.storage)
    else:
        put_parts(variable, parts(other))


def put_parts(variable: Variable, held: Sequence[Variable]) -> None:
    """Let a container hold other parts."""
    if isinstance(variable, DictVariable):
        variable.entries.update(zip(variable.entries, held, strict=True))
    elif isinstance(variable, UserObjectVariable):
        count = len(variable.attributes)
        variable.attributes.update(zip(variable.attributes, held[:count], strict=True))
        if variable.storage is not None:
            variable.hold(TupleVariable(held[count:]))
    else:
        assert isinstance(variable, ListVariable)
        variable._items[:] = held


def is_structure(variable: Variable | None, opens: Opens) -> bool:
    """Whether a variable is known by its parts: a tuple, or a container that ``opens`` accepts."""
    if type(variable) is TupleVariable:
        return variable.is_read
    return variable is not None and opens(variable)


def opened(variable: Variable | None, opens: Opens) -> Iterator[Variable]:
    """The containers by whose parts ``variable`` is known, itself included."""
    if variable is None or not is_structure(variable, opens):
        return
    if type(variable) is not TupleVariable:
        yield variable
    for part in parts(variable):
        yield from opened(part, opens)
