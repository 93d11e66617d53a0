"""Methods of builtin classes as their classes give them: ``object.__setattr__``, ``dict.__getitem__``."""

from __future__ import annotations

import collections
import types
from typing import Any

from weft_guards import AttributeSource, ConstantSource, EqualsConstant, IsObject, Source, TypeIs

from ....frame.emitter import Emitter
from ....unsupported import Unsupported
from ...protocol import Evaluator
from ...variables.base import Arguments, Keywords, Variable
from ...variables.builder import held_by_identity, register_predicate
from ...variables.constant import OPERATORS, ConstantVariable
from ...variables.operations import SYMBOLS
from ...variables.python_protocols import COMPARISONS, find_raw, storage_of
from ..functions.identified_functions import BuiltinFunctionVariable
from ..libraries.random_draws import draw_by_c
from ..libraries.random_generators import GENERATOR
from ..table import model_of

UNBOUND_KINDS = (
    types.WrapperDescriptorType,
    types.MethodDescriptorType,
    types.ClassMethodDescriptorType,
)


@held_by_identity(register_predicate(lambda value: type(value) in UNBOUND_KINDS, -50))
class BuiltinDescriptorVariable(Variable):
    """An unbound method of a builtin class; its first argument is the receiver."""

    def __init__(self, value: Any, source: Source | None = None) -> None:
        self.value = value
        self.source = source
        self.owner: type = value.__objclass__
        self.name: str = value.__name__

    def python_type(self) -> type:
        return type(self.value)

    def get_attribute(self, evaluator: Evaluator, name: str) -> Variable:
        if name in ("__name__", "__qualname__", "__doc__"):
            return ConstantVariable(getattr(self.value, name))
        if name == "__objclass__":
            return evaluator.wrap_known(self.owner)
        return super().get_attribute(evaluator, name)

    def same_object(self, evaluator: Evaluator, other: Variable) -> bool | None:
        if isinstance(other, BuiltinDescriptorVariable):
            return other.value is self.value
        return None

    def call(self, evaluator: Evaluator, arguments: Arguments, keywords: Keywords) -> Variable:
        if not arguments:
            evaluator.pure(self.value)  # raises
        receiver, *rest = arguments
        if not issubclass(receiver.python_type(), self.owner):
            raise Unsupported("method of a builtin type", f"{self!r} of {receiver!r}")
        model = model_of(self.value)
        if model is not None and not model.of_builtin:
            return model.call(evaluator, rest, keywords, receiver)
        storage = storage_of(receiver)
        ordered = issubclass(storage.python_type(), collections.OrderedDict)
        if ordered and self.owner is dict and self.name in _BEHIND_ORDER:
            raise Unsupported("method of a builtin type", f"{self!r} of {receiver!r}")
        without_storage = getattr(receiver, "storage", receiver) is None
        if without_storage and self.owner is GENERATOR and not keywords:
            drawn = draw_by_c(evaluator, receiver, self.name, rest)
            if drawn is not None:
                return drawn
        if (
            without_storage
            or self.owner is object
            or not issubclass(storage.python_type(), self.owner)
        ):
            raise Unsupported("method of a builtin type", f"{self!r} of {receiver!r}")
        if (self.owner, self.name) in _MAKE_THEIR_KIND and storage is not receiver:
            raise Unsupported("method of a builtin type", f"{self!r} of {receiver!r}")
        if self.owner in _SCALARS and self.name in _BINARY_NAMES and len(rest) == 1:
            operands = storage, storage_of(rest[0])
            if all(part.is_constant() and not part.is_made_of_numbers() for part in operands):
                values = [part.as_constant() for part in operands]
                return evaluator.wrap_result(evaluator.pure(self.value, *values, **keywords))
        result = _storage_method(evaluator, storage, self.name, rest, keywords)
        return receiver if result is storage else result

    def reconstruct(self, emitter: Emitter) -> None:
        emitter.load_object(self.value)

    def __repr__(self) -> str:
        return f"{self.owner.__name__}.{self.name}"


_SCALARS = (int, float, complex, str, bytes, bool)

# Changes of a dict that an OrderedDict does not learn of: its order still has the key.
_BEHIND_ORDER = frozenset(
    ("__delitem__", "__ior__", "__setitem__", "clear", "pop", "popitem", "setdefault", "update")
)

# Methods that give an instance of the receiver's own class.
_MAKE_THEIR_KIND = frozenset(
    (kind, name)
    for kind in (collections.OrderedDict, collections.defaultdict)
    for name in ("copy", "__copy__", "__or__", "__ror__")
)


class BuiltinClassMethodVariable(BuiltinFunctionVariable):
    """A class method of a builtin class, bound to the class or to one that derives from it."""

    def __init__(self, kind: type, raw: Any, source: Source | None = None) -> None:
        super().__init__(raw.__get__(None, kind), source)
        self._raw = raw
        self.kind = kind
        self.name: str = raw.__name__
        self.owner: type = raw.__objclass__

    def call(self, evaluator: Evaluator, arguments: Arguments, keywords: Keywords) -> Variable:
        model = model_of(self._raw)
        if model is not None:
            return model.call(evaluator, arguments, keywords, self.kind)
        if self.owner not in (int, float, bytes):
            raise Unsupported("method of a builtin type", repr(self))
        positional, named = evaluator.snapshots(arguments, keywords, repr(self))
        method = getattr(self.owner, self.name)
        made = evaluator.wrap_result(evaluator.pure(method, *positional, **named))
        if self.kind is self.owner or made.python_type() is not self.owner:
            return made
        return evaluator.wrap_known(self.kind).call(evaluator, [made], {})

    def reconstruct(self, emitter: Emitter) -> None:
        emitter.load_call(_bound_to_class, self._raw, self.kind)

    def __repr__(self) -> str:
        return f"{self.kind.__name__}.{self.name}"


def _bound_to_class(descriptor: Any, kind: type) -> Any:
    return descriptor.__get__(None, kind)


_BINARY_NAMES: dict[str, tuple[str, bool]] = {
    f"__{operator}__": (operator, False) for operator in OPERATORS if operator != "getitem"
}
_BINARY_NAMES.update(
    {
        f"__r{operator}__": (operator, True)
        for operator in OPERATORS
        if operator in SYMBOLS and operator not in COMPARISONS
    }
)


def _storage_method(
    evaluator: Evaluator, storage: Variable, name: str, arguments: Arguments, keywords: Keywords
) -> Variable:
    """A builtin container's or scalar's own method, special methods included."""
    operation = _BINARY_NAMES.get(name)
    if operation is not None and len(arguments) == 1 and not keywords:
        other = storage_of(arguments[0])
        result = storage.binary_operation(evaluator, operation[0], other, operation[1])
        return ConstantVariable(NotImplemented) if result is None else result
    if not arguments and not keywords:
        if name == "__iter__":
            return storage.iterator(evaluator)
        if name == "__len__":
            return ConstantVariable(storage.length(evaluator))
        if name == "__bool__":
            return ConstantVariable(storage.truth(evaluator))
        if name == "__hash__":
            raise Unsupported("hash of a value", repr(storage))
    return storage.call_method(evaluator, name, arguments, keywords)


def _is_class_method(value: Any) -> bool:
    """Whether a builtin function is a class method of a builtin class, bound: ``dict.fromkeys``."""
    if type(value) is not types.BuiltinFunctionType or not isinstance(value.__self__, type):
        return False
    return type(find_raw(value.__self__, value.__name__)) is types.ClassMethodDescriptorType


@register_predicate(_is_class_method, 90)
def _wrap_class_method(evaluator: Evaluator, value: Any, source: Source) -> Variable:
    """Known by its class and name: a new object is made each time it is read from the class."""
    evaluator.guard(source, TypeIs(types.BuiltinFunctionType))
    evaluator.guard(AttributeSource(source, "__name__"), EqualsConstant(value.__name__))
    evaluator.guard(AttributeSource(source, "__self__"), IsObject(value.__self__))
    raw = find_raw(value.__self__, value.__name__)
    return BuiltinClassMethodVariable(value.__self__, raw, source)


def known_descriptor(evaluator: Evaluator, value: Any) -> Variable:
    """The variable of a builtin class's method; of a tensor's, that of a function of torch."""
    found = evaluator.builder.known(value)
    if found is None:
        label = f"{value.__objclass__.__name__}.{value.__name__}"
        found = evaluator.builder.wrap(value, ConstantSource(label, value))
    return found
