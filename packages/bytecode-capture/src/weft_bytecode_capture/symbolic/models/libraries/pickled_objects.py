"""``pickle.loads(pickle.dumps(value))``: a copy by what the objects say of themselves, without their hooks.

The bytes themselves are made where the code after the graph needs them; asked for inside, they are not known.
"""

from __future__ import annotations

import io
import pickle
import sys
from typing import Any

from weft_guards import AttributeSource, ConstantSource, IsObject

from ....frame.emitter import Emitter
from ....unsupported import Unsupported
from ...protocol import Evaluator
from ...variables.base import Variable
from ...variables.keys import HashedKey
from ...variables.python_protocols import find_raw
from ..containers.deques import DequeVariable
from ..containers.mapping_methods import DictIteratorVariable
from ..containers.mappings import DefaultDictVariable, DictVariable, OrderedDictVariable
from ..containers.sequences import ListVariable, TupleVariable
from ..containers.sets import FrozenSetVariable, SetIteratorVariable, SetVariable
from ..containers.unread_tuples import is_tuple
from ..functions.identified_functions import BuiltinFunctionVariable
from ..functions.python_functions import FunctionVariable
from ..iterators.builtin_iterators import (
    ListIteratorVariable,
    RangeIteratorVariable,
    ReversedListIteratorVariable,
    SequenceIteratorVariable,
)
from ..numbers.symbolic_number import SymbolicNumberVariable
from ..objects.classes import ClassVariable
from ..objects.copying import is_plain_instance
from ..objects.user_objects import UserObjectVariable
from ..table import model
from .callables import GetterVariable
from .pickled_constants import pickled_constant

_KIND = "pickled object"
_CONTAINERS = (ListVariable, DequeVariable, DictVariable, OrderedDictVariable, DefaultDictVariable)
_ADDS: dict[Any, tuple[str, ...]] = {list: ("append", "extend"), dict: ("__setitem__",)}
"""How ``pickle`` fills an instance of a derived class."""


class PickledVariable(Variable):
    """What ``pickle.dumps`` gives of ``value``, a copy made at the time."""

    kind = bytes

    def __init__(self, value: Variable, options: dict[str, Variable]) -> None:
        self.value = value
        self._options = options

    def truth(self, evaluator: Evaluator) -> bool:
        return True

    def equals(self, evaluator: Evaluator, other: Variable) -> bool | None:
        raise Unsupported(_KIND, f"{self!r} == {other!r}")

    def binary_operation(
        self, evaluator: Evaluator, operator: str, other: Variable, reflected: bool
    ) -> Variable | None:
        raise Unsupported(_KIND, f"{self!r} {operator} {other!r}")

    def hashed_key(self, evaluator: Evaluator) -> HashedKey:
        raise Unsupported(_KIND, f"hash of {self!r}")

    def reconstruct(self, emitter: Emitter) -> None:
        emitter.load_callable(pickle.dumps)
        for value in (self.value, *self._options.values()):
            emitter.load_variable(value)
        emitter.call(1 + len(self._options), tuple(self._options))

    def __repr__(self) -> str:
        return f"pickled {self.value!r}"


class _Pickler:
    """One call of ``dumps`` or ``loads``: an object that is met twice is one in the copy too."""

    def __init__(self, evaluator: Evaluator, takes_instances: bool = True) -> None:
        self._evaluator = evaluator
        self._takes_instances = takes_instances  # the oldest protocols ask classes otherwise
        self._copies: dict[int, tuple[Variable, Variable]] = {}  # by the original's id

    def __call__(self, value: Variable) -> Variable:
        row = self._copies.get(id(value))
        if row is not None:
            return row[1]
        made = self._copied(value)
        self._remember(value, made)
        return made

    def _remember(self, value: Variable, made: Variable) -> None:
        self._copies[id(value)] = value, made

    def _copied(self, value: Variable) -> Variable:
        evaluator = self._evaluator
        if isinstance(value, (ClassVariable, FunctionVariable, BuiltinFunctionVariable)):
            self._require_found_by_name(value)
            return value
        if isinstance(value, SetVariable):
            return self._set(value)
        if is_tuple(value):
            return TupleVariable([self(item) for item in value.items(evaluator)])
        if value.is_constant() and type(value.as_constant()) in _PLAIN:
            return value
        if isinstance(value, SymbolicNumberVariable):
            return value
        if type(value) is ListVariable:
            made = ListVariable()
            self._remember(value, made)
            made.items(evaluator).extend(self(item) for item in value.items(evaluator))
            return made
        if type(value) in _CONTAINERS[1:]:
            return self._container(value)
        if type(value) is UserObjectVariable:
            return self._instance(value)
        if type(value) is GetterVariable:
            named = {name: self(part) for name, part in value.keywords.items()}
            return GetterVariable(value.kind, [self(part) for part in value.arguments], named)
        made_iterator = self._iterator(value)
        if made_iterator is None:
            raise Unsupported(_KIND, repr(value))
        return made_iterator

    def _set(self, value: SetVariable) -> Variable:
        if type(value) not in (SetVariable, FrozenSetVariable):
            raise Unsupported(_KIND, repr(value))
        elements = value.elements(self._evaluator)
        made = type(value).of(self._evaluator, [self(element) for element in elements])
        made.order_known = value.order_known
        return made

    def _container(self, value: Any) -> Variable:
        evaluator = self._evaluator
        if isinstance(value, DequeVariable):
            queue = DequeVariable(longest=value.longest)
            self._remember(value, queue)
            queue.items(evaluator).extend(self(item) for item in value.items(evaluator))
            return queue
        if isinstance(value, OrderedDictVariable) and value.all_attributes(evaluator):
            raise Unsupported(_KIND, repr(value))
        if isinstance(value, DefaultDictVariable):
            self(value.factory)
        made: DictVariable = value.new_like({})
        self._remember(value, made)
        entries = value.all_entries(evaluator)
        if not all(key.variable.is_constant() for key in entries):
            raise Unsupported(_KIND, f"{value!r}, whose keys are copied")
        made.entries.update((key, self(entry)) for key, entry in entries.items())
        return made

    def _instance(self, value: UserObjectVariable) -> Variable:
        """A new instance with the attributes, where the class has no say in it."""
        evaluator = self._evaluator
        if not self._takes_instances or not is_plain_instance(evaluator, value):
            raise Unsupported(_KIND, repr(value))
        self._require_found_by_name(evaluator.wrap_known(value.kind))
        made = UserObjectVariable(value.kind)
        self._remember(value, made)
        storage = value.storage
        if storage is not None:
            names = _ADDS.get(storage.python_type())
            if names is None or any(
                find_raw(value.kind, name) is not find_raw(storage.python_type(), name)
                for name in names
            ):
                raise Unsupported(_KIND, repr(value))
            made.hold(self._copied(storage))
        for key, entry in value.instance_dictionary().all_entries(evaluator).items():
            made.attributes[key.variable.as_constant()] = self(entry)
        return made

    def _iterator(self, value: Variable) -> Variable | None:
        """Iterators over lists and tuples go on; those over dicts and sets have a list of what is left."""
        evaluator = self._evaluator
        if isinstance(value, DictIteratorVariable):
            return ListIteratorVariable(
                ListVariable([self(part) for part in value.rest(evaluator)])
            )
        if isinstance(value, SetIteratorVariable):
            rest = value.elements[value.position :]
            return ListIteratorVariable(ListVariable([self(element) for element in rest]))
        if type(value) is ListIteratorVariable or type(value) is ReversedListIteratorVariable:
            return self._list_iterator(value)
        if type(value) is RangeIteratorVariable:
            return RangeIteratorVariable(value.rest())
        if type(value) is SequenceIteratorVariable:
            made = SequenceIteratorVariable(value.iterable, [self(e) for e in value.elements])
            made.position = value.position
            return made
        return None

    def _list_iterator(self, value: ListIteratorVariable) -> Variable:
        iterated = ListVariable() if value.exhausted else self(value.iterated)
        if type(iterated) is not ListVariable:
            raise Unsupported(_KIND, repr(value))
        if type(value) is ReversedListIteratorVariable:
            made: ListIteratorVariable = ReversedListIteratorVariable(self._evaluator, iterated)
        else:
            made = ListIteratorVariable(iterated)
        made.position, made.exhausted = value.position, value.exhausted
        return made

    def _require_found_by_name(self, variable: Any) -> None:
        """Refuse what no module has under its name, of which ``pickle`` says so in its own words."""
        value: Any = getattr(variable, "value", None)
        where = getattr(value, "__module__", None)
        module = sys.modules.get(where) if isinstance(where, str) else None
        if module is None or not hasattr(value, "__qualname__"):
            raise Unsupported(_KIND, repr(variable))
        source: Any = ConstantSource(module.__name__, module)
        found: Any = module
        for name in value.__qualname__.split("."):
            found, source = getattr(found, name, None), AttributeSource(source, name)
        if found is not value:
            raise Unsupported(_KIND, repr(variable))
        if module.__name__ not in sys.stdlib_module_names:
            self._evaluator.guard(source, IsObject(value, weak=True))


_PLAIN = (type(None), bool, int, float, complex, str, bytes, range, type(Ellipsis))


@model(pickle.dumps)
def _dumps(
    evaluator: Evaluator,
    obj: Variable,
    protocol: Variable | None = None,
    *,
    fix_imports: Variable | None = None,
    buffer_callback: Variable | None = None,
) -> Variable:
    if buffer_callback is not None and not buffer_callback.is_none():
        raise Unsupported("arguments of a builtin function", "dumps")
    known = pickled_constant(evaluator, obj, protocol) if fix_imports is None else None
    if known is not None:
        return known
    options = {"protocol": protocol, "fix_imports": fix_imports}
    given = {name: value for name, value in options.items() if value is not None}
    constants = {name: value.as_constant() for name, value in given.items()}
    evaluator.pure(pickle.dumps, None, **constants)  # raises, for a protocol that there is not
    pickler = _Pickler(evaluator, constants.get("protocol") not in (0, 1))
    return PickledVariable(pickler(obj), given)


@model(pickle.loads)
def _loads(evaluator: Evaluator, data: Variable, /) -> Variable:
    if isinstance(data, PickledVariable):
        return _Pickler(evaluator)(data.value)
    if not data.is_constant() or type(data.as_constant()) is not bytes:
        raise Unsupported(_KIND, f"loads({data!r})")
    value = evaluator.pure(lambda: _Unpickler(io.BytesIO(data.as_constant())).load())
    seen: set[int] = set()
    if not _is_tree(value, seen):
        raise Unsupported(_KIND, f"loads({data!r})")
    return evaluator.wrap_result(value)


class _Unpickler(pickle.Unpickler):
    """Takes builtin values alone, whose bytes call nothing."""

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        raise Unsupported(_KIND, f"with {module_name}.{global_name}")


def _is_tree(value: Any, seen: set[int]) -> bool:
    """Whether a value is made of constants, lists, tuples and dicts, no list or dict in two places."""
    if type(value) in (list, tuple, dict):
        if id(value) in seen and type(value) is not tuple:
            return False
        seen.add(id(value))
        parts = (*value.keys(), *value.values()) if type(value) is dict else value
        return all(_is_tree(part, seen) for part in parts)
    return type(value) in _PLAIN
