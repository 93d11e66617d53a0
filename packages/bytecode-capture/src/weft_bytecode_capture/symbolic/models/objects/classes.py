"""Classes, and ``super()``."""

from __future__ import annotations

import abc
import enum
import types
import weakref
from typing import Any

from weft_guards import (
    AttributeSource,
    ConstantSource,
    DictContains,
    EqualsConstant,
    IsObject,
    Predicate,
    Source,
)

from ...._torch import OPAQUE_METACLASSES
from ....frame.emitter import Emitter
from ....sources import SubclassesAre
from ....unsupported import Unsupported
from ...policy import is_library_module
from ...protocol import Evaluator
from ...variables.base import Arguments, Keywords, Variable
from ...variables.builder import held_by_identity, register_predicate, register_wrapper
from ...variables.class_guards import guard_absent, guard_order, guard_undefined
from ...variables.constant import ConstantVariable
from ...variables.hashing import identity_key
from ...variables.keys import HashedKey
from ...variables.python_protocols import (
    find_raw,
    is_made_by_statement,
    module_of,
    name_in_errors,
    no_attribute,
    resolution_order,
    special_name,
)
from ..builtins.descriptors import BuiltinClassMethodVariable
from ..builtins.methods import BuiltinMethodVariable
from ..containers.sequences import ListVariable, TupleVariable
from ..functions.bound_methods import BoundMethodVariable
from ..table import model_of
from .class_attributes import (
    WrittenAttribute,
    bind_attribute,
    bind_to_class,
    is_builtin_descriptor,
)
from .enumerations import find_member, guard_members

PLAIN_METACLASSES = (type, abc.ABCMeta, enum.EnumMeta, *OPAQUE_METACLASSES)


_WRITERS = ("__setattr__", "__delattr__")
_LISTS_OF_CLASSES = (type.mro, type.__subclasses__)


@held_by_identity(
    register_wrapper(type), register_predicate(lambda value: issubclass(type(value), type), -50)
)
class ClassVariable(Variable):
    """A class, known by identity."""

    def __init__(self, value: type, source: Source) -> None:
        self.value = value
        self.source = source
        self.written: dict[str, Variable | None] = {}  # stored in the class itself; None: deleted

    def python_type(self) -> type:
        return type(self.value)

    def truth(self, evaluator: Evaluator) -> bool:
        return True

    def hashed_key(self, evaluator: Evaluator) -> HashedKey:
        return identity_key(self, self.value)

    def get_attribute(self, evaluator: Evaluator, name: str) -> Variable:
        value = self.value
        if name in ("__name__", "__qualname__", "__module__", "__doc__"):
            self._guard_own(evaluator, name, EqualsConstant(getattr(value, name)))
            return ConstantVariable(getattr(value, name))
        if name == "__class__":
            return evaluator.wrap_known(type(value))
        if isinstance(value, enum.EnumMeta) and name in value.__members__:
            return ConstantVariable(value.__members__[name])
        if isinstance(value, enum.EnumMeta) and name == "__members__":
            guard_members(evaluator, value)
            return evaluator.wrap_result(dict(value.__members__))
        if name in ("__mro__", "__bases__"):
            resolution_order(value)
            self._guard_own(evaluator, name, IsObject(getattr(value, name)))
            return TupleVariable([evaluator.wrap_known(base) for base in getattr(value, name)])
        if name == "__base__":
            return evaluator.wrap_known(value.__base__)
        meta = evaluator.state.find_in_type(type(value), name)
        if meta is not None and isinstance(meta[1], property):
            return bind_attribute(evaluator, type(value), meta[0], name, meta[1], self)
        found = evaluator.state.find_in_type(value, name)
        if found is None:
            return self._through_metaclass(evaluator, name, meta)
        return bind_to_class(evaluator, value, found[0], name, found[1])

    def _guard_own(self, evaluator: Evaluator, name: str, predicate: Predicate) -> None:
        """Guard an attribute, unless the class is a library's."""
        if not is_library_module(module_of(self.value)):
            source = ConstantSource(self.value.__qualname__, self.value)
            evaluator.guard(AttributeSource(source, name), predicate)

    def set_attribute(self, evaluator: Evaluator, name: str, value: Variable) -> None:
        if hasattr(value.python_type(), "__get__") or value.python_type().__module__ == "torch.nn":
            raise Unsupported("attribute write", f"{self!r}.{name}, a descriptor")
        self._write(evaluator, name, WrittenAttribute(value))

    def delete_attribute(self, evaluator: Evaluator, name: str) -> None:
        present = name in self.value.__dict__
        own = AttributeSource(ConstantSource(self.value.__qualname__, self.value), "__dict__")
        evaluator.guard(own, DictContains(name, present))
        if name in self.written:
            present = self.written[name] is not None
        if not present:
            evaluator.raise_error(
                AttributeError,
                f"type object {name_in_errors(self.value)!r} has no attribute {name!r}",
            )
        self._write(evaluator, name, None)

    def _write(self, evaluator: Evaluator, name: str, written: WrittenAttribute | None) -> None:
        """Store in the class itself; its subclasses and instances see it."""
        kind: Any = self.value
        meta = type(kind)
        plain = is_made_by_statement(kind) and find_raw(meta, name) is None
        plain = plain and all(find_raw(meta, n) is vars(type)[n] for n in _WRITERS)
        current = kind.__dict__.get(name)
        if not plain or name.startswith("__") or hasattr(type(current), "__get__"):
            raise Unsupported("attribute write", f"{self!r}.{name}")
        evaluator.state.write_to_class(kind, name, written)
        self.written[name] = None if written is None else written.variable
        if not evaluator.state.is_made(kind):
            evaluator.side_effects.mutated(self)

    def emit_mutation(self, emitter: Emitter) -> None:
        for name, value in self.written.items():
            if value is None and name not in self.value.__dict__:
                continue
            if value is None:
                emitter.run_call(type.__delattr__, self.value, name)
            else:
                emitter.run_call(type.__setattr__, self.value, name, value)

    def _through_metaclass(
        self, evaluator: Evaluator, name: str, found: tuple[type, Any] | None
    ) -> Variable:
        """An attribute that neither the class nor its bases have."""
        metaclass = type(self.value)
        if find_raw(metaclass, "__getattribute__") is not type.__getattribute__:
            raise Unsupported("attribute of a class", f"{self.value.__qualname__}.{name}")
        if found is not None and found[1] in _LISTS_OF_CLASSES:
            return BuiltinMethodVariable(self, name)
        if found is not None and is_builtin_descriptor(found[1]):
            raise Unsupported("attribute of a class", f"{self.value.__qualname__}.{name}")
        if found is not None:
            guard_undefined(evaluator, self.value, name)
            return bind_attribute(evaluator, metaclass, found[0], name, found[1], self)
        fallback = evaluator.state.find_in_type(metaclass, "__getattr__")
        if fallback is not None:
            method = bind_attribute(
                evaluator, metaclass, fallback[0], "__getattr__", fallback[1], self
            )
            return method.call(evaluator, [ConstantVariable(name)], {})
        guard_absent(evaluator, metaclass, "__getattr__")
        guard_absent(evaluator, self.value, name)
        return evaluator.raise_error(
            AttributeError,
            f"type object {name_in_errors(self.value)!r} has no attribute {name!r}",
            name=name,
        )

    def call(self, evaluator: Evaluator, arguments: Arguments, keywords: Keywords) -> Variable:
        model = model_of(self.value)
        if model is not None:
            return model.call(evaluator, arguments, keywords)
        if isinstance(self.value, enum.EnumMeta):
            return find_member(evaluator, self.value, arguments, keywords)
        from .instances import new_instance

        return new_instance(evaluator, self.value, arguments, keywords)

    def call_method(
        self, evaluator: Evaluator, name: str, arguments: Arguments, keywords: Keywords
    ) -> Variable:
        if isinstance(self.value, enum.EnumMeta) and name in ("__getitem__", "__contains__"):
            guard_members(evaluator, self.value)
            positional, _ = evaluator.snapshots(arguments, keywords, self.value.__qualname__)
            function = getattr(type(self.value), name)
            return evaluator.wrap_constant(evaluator.pure(function, self.value, *positional))
        if name == "__getitem__" and len(arguments) == 1 and not keywords:
            return self._subscript(evaluator, arguments[0])
        if find_raw(type(self.value), name) in _LISTS_OF_CLASSES and not arguments and not keywords:
            return self._listed(evaluator, name)
        return super().call_method(evaluator, name, arguments, keywords)

    def _listed(self, evaluator: Evaluator, name: str) -> Variable:
        """``cls.mro()`` or ``cls.__subclasses__()``: a new list in each call."""
        if name == "mro":
            return ListVariable(self.get_attribute(evaluator, "__mro__").iterate(evaluator))
        found: list[type] = type.__subclasses__(self.value)
        if any(map(evaluator.state.is_made, found)):
            raise Unsupported("attribute of a class", f"{self.value.__qualname__}.{name}")
        source = ConstantSource(self.value.__qualname__, self.value)
        evaluator.guard(source, SubclassesAre(tuple(map(weakref.ref, found))))
        return ListVariable([evaluator.wrap_known(kind) for kind in found])

    def _subscript(self, evaluator: Evaluator, key: Variable) -> Variable:
        """``cls[key]``: the metaclass's ``__getitem__``, else ``__class_getitem__``."""
        method = self._metaclass_method(evaluator, "__getitem__")
        if method is None:
            method = self.get_attribute(evaluator, "__class_getitem__")
        return method.call(evaluator, [key], {})

    def _metaclass_method(self, evaluator: Evaluator, name: str) -> Variable | None:
        """A special method that the metaclass defines in Python, bound to the class."""
        metaclass = type(self.value)
        found = evaluator.state.find_in_type(metaclass, name)
        if found is None or is_builtin_descriptor(found[1]):
            return None
        return bind_attribute(evaluator, metaclass, found[0], name, found[1], self)

    def iterate(self, evaluator: Evaluator) -> list[Variable]:
        if isinstance(self.value, enum.EnumMeta):
            guard_members(evaluator, self.value)
            members: list[enum.Enum] = list(self.value)
            return [ConstantVariable(member) for member in members]
        method = self._metaclass_method(evaluator, "__iter__")
        if method is not None:
            return method.call(evaluator, [], {}).iterate(evaluator)
        return super().iterate(evaluator)

    def length(self, evaluator: Evaluator) -> int:
        if isinstance(self.value, enum.EnumMeta):
            guard_members(evaluator, self.value)
            return len(self.value)
        method = self._metaclass_method(evaluator, "__len__")
        if method is None:
            return super().length(evaluator)
        return int(method.call(evaluator, [], {}).as_constant())

    def binary_operation(
        self, evaluator: Evaluator, operator: str, other: Variable, reflected: bool
    ) -> Variable | None:
        method = self._metaclass_method(evaluator, special_name(operator, reflected))
        if method is not None:
            result = method.call(evaluator, [other], {})
            return None if result.is_not_implemented() else result
        if operator == "or":
            return self._union(evaluator, other, reflected)
        return None

    def _union(self, evaluator: Evaluator, other: Variable, reflected: bool) -> Variable:
        if isinstance(other, ClassVariable):
            part: Any = other.value
        elif other.is_none():
            part = None
        elif other.is_constant() and isinstance(other.as_constant(), _PARTS_OF_UNIONS):
            part = other.as_constant()
        else:
            raise Unsupported("union of types", f"{self!r} | {other!r}")
        union = part | self.value if reflected else self.value | part
        return evaluator.wrap_known(union)

    def printable(self, evaluator: Evaluator) -> Any:
        metaclass: Any = type(self.value)
        special = (metaclass.__repr__, metaclass.__str__, metaclass.__format__)
        if special != (type.__repr__, object.__str__, object.__format__):
            raise Unsupported("formatting of a class with a metaclass", repr(self))
        return self.value

    def reconstruct(self, emitter: Emitter) -> None:
        emitter.load_object(self.value)

    def __repr__(self) -> str:
        return f"Class({self.value.__qualname__})"


_PARTS_OF_UNIONS = (types.UnionType, types.GenericAlias)


# ``super()``.


class SuperVariable(Variable):
    """A super object: attributes are looked up after ``start`` in the resolution order of ``kind``.

    ``receiver`` is an instance of ``kind``, or ``kind`` itself in a class method.
    """

    def __init__(self, start: type, kind: type, receiver: Variable) -> None:
        self.start = start
        self.kind = kind
        self.receiver = receiver

    def python_type(self) -> type:
        return super

    def get_attribute(self, evaluator: Evaluator, name: str) -> Variable:
        order = resolution_order(self.kind)
        guard_order(evaluator, self.kind)
        writes = evaluator.state.class_writes
        for owner in order[order.index(self.start) + 1 :]:
            if (owner, name) in writes:
                if writes[owner, name] is None:
                    continue
                written: Variable = writes[owner, name].variable
                return written
            if name not in owner.__dict__:
                continue
            raw = owner.__dict__[name]
            if isinstance(raw, classmethod):
                return self._class_method(evaluator, owner, name, raw)
            if type(raw) is types.ClassMethodDescriptorType:
                return BuiltinClassMethodVariable(self.kind, raw)
            if isinstance(self.receiver, ClassVariable) and self.receiver.value is self.kind:
                return bind_to_class(evaluator, owner, owner, name, raw)
            # The owner stands for the class: guards on what is found cover its own resolution order.
            return bind_attribute(evaluator, owner, owner, name, raw, self.receiver)
        return no_attribute(evaluator, "super", name)

    def _class_method(
        self, evaluator: Evaluator, owner: type, name: str, raw: classmethod[object, ..., object]
    ) -> Variable:
        bound = bind_to_class(evaluator, owner, owner, name, raw)
        assert isinstance(bound, BoundMethodVariable)
        return BoundMethodVariable(bound.function, evaluator.wrap_known(self.kind))


def super_variable(evaluator: Evaluator, arguments: Arguments) -> Variable:
    """``super()`` or ``super(class, instance)``."""
    if not arguments:
        frame = evaluator.state.current or evaluator.frame
        cell = frame.cells.get("__class__")
        kind = cell.read(evaluator) if cell is not None else None
        name = frame.code.co_varnames[0] if frame.code.co_argcount else ""
        receiver = frame.locals.get(name)
        if receiver is None and name in frame.cells:
            receiver = frame.cells[name].read(evaluator)
    elif len(arguments) == 2:
        kind, receiver = arguments
    else:
        raise Unsupported("super() of one argument")
    if not isinstance(kind, ClassVariable) or receiver is None:
        raise Unsupported("super() of an unknown class", repr(kind))
    if isinstance(receiver, ClassVariable) and kind.value in resolution_order(receiver.value):
        return SuperVariable(kind.value, receiver.value, receiver)
    if kind.value not in resolution_order(receiver.python_type()):
        raise Unsupported("super() of an unrelated class", repr(kind))
    return SuperVariable(kind.value, receiver.python_type(), receiver)
