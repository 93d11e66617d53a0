"""Instances of classes defined in Python, those that derive from a builtin container included."""

from __future__ import annotations

import contextlib
import functools
import sys
import types
from collections import OrderedDict
from typing import Any

from weft_guards import (
    AttributeSource,
    ConstantSource,
    DictContains,
    DictKeysAre,
    HasAttribute,
    InstanceDictSource,
    IsObject,
    Source,
    TypeIs,
)

from ....frame.emitter import Emitter
from ....unsupported import Unsupported
from ...captured_exception import CapturedException
from ...key_methods import KIND, key_method
from ...protocol import Evaluator
from ...variables.base import Arguments, Variable, unhashable
from ...variables.builder import register_predicate
from ...variables.class_guards import guard_absent
from ...variables.constant import ConstantVariable
from ...variables.hashing import entry_key, hashed_key, identity_key, is_silent
from ...variables.keys import HashedKey, InstanceKey
from ...variables.python_protocols import (
    WITHOUT_PLACE,
    delete_shadowed,
    find_raw,
    is_data_descriptor,
    is_shadowed,
    no_place,
    nothing_to_delete,
    write_shadowed,
)
from ..containers.mappings import AttributeDictVariable
from .class_attributes import (
    bind_attribute,
    bind_to_class,
    class_attribute_source,
    guard_default,
    guard_found,
    is_builtin_descriptor,
    is_property,
    raise_no_attribute,
)
from .finalizers import require_no_finalizer
from .instance_protocols import InstanceProtocols
from .opaque import RefusedVariable


class UserObjectVariable(InstanceProtocols):
    """An instance; ``value`` is None for an object made in the frame.

    Its state is the instance dict and slots, and for a class that derives from a builtin container or
    scalar ``storage``: a variable of the exact builtin kind, which holds the elements.
    """

    may_override = True

    def __init__(
        self,
        kind: type,
        value: Any = None,
        source: Source | None = None,
        storage: Variable | None = None,
    ) -> None:
        self.kind = kind
        self.value = value
        self.source = source
        self.storage: Variable | None = None
        if storage is not None:
            self.hold(storage)
        self.attributes: dict[str, Variable | None] = {}  # written during evaluation; None: deleted
        self.made_anew: set[str] = set()  # those that were deleted before
        self._dictionary_variable: InstanceDictVariable | None = None
        self.is_key = False  # hashed by a method that a user wrote
        self.is_changed_key = False  # and changed since: it may have another hash

    def hold(self, storage: Variable) -> None:
        """Let ``storage`` hold the elements; what is made of a container refers to the instance."""
        self.storage = storage
        if hasattr(storage, "owner"):
            storage.owner = self

    # Reading attributes.

    def get_attribute(self, evaluator: Evaluator, name: str) -> Variable:
        """``__getattribute__``, then ``__getattr__`` if that raised AttributeError."""
        state = evaluator.state
        hook = state.find_in_type(self.kind, "__getattribute__")
        fallback = state.find_in_type(self.kind, "__getattr__")
        try:
            if hook is None or _is_default_hook(hook[1]):
                guard_default(evaluator, self.kind, "__getattribute__", hook)
                return self.generic_get_attribute(evaluator, name)
            method = bind_attribute(
                evaluator, self.kind, hook[0], "__getattribute__", hook[1], self
            )
            return method.call(evaluator, [ConstantVariable(name)], {})
        except CapturedException as error:
            if not issubclass(error.exception.python_type(), AttributeError):
                raise
            if fallback is None:
                guard_absent(evaluator, self.kind, "__getattr__")
                raise
        method = bind_attribute(evaluator, self.kind, fallback[0], "__getattr__", fallback[1], self)
        return method.call(evaluator, [ConstantVariable(name)], {})

    def generic_get_attribute(self, evaluator: Evaluator, name: str) -> Variable:
        """``object.__getattribute__(self, name)``."""
        kind = self.kind
        found = evaluator.state.find_in_type(kind, name)
        if name == "__class__" and found is not None and found[0] is object:
            return evaluator.wrap_known(kind)
        if name == "__dict__" and kind.__dictoffset__ != 0 and _is_plain_dictionary(found):
            return self.instance_dictionary()
        data = found is not None and is_data_descriptor(found[1])
        if found is not None and data and hasattr(type(found[1]), "__get__"):
            return self._through_data_descriptor(evaluator, name, *found)
        own = self.instance_attribute(evaluator, name)
        if own is not None:
            return own
        if found is None:
            raise_no_attribute(evaluator, kind, name)
        if type(found[1]) is functools.cached_property:
            return self._cached_property(evaluator, name, *found)
        if isinstance(found[1], types.GetSetDescriptorType):
            raise Unsupported("attribute of a builtin type", f"{kind.__qualname__}.{name}")
        return bind_attribute(evaluator, kind, found[0], name, found[1], self)

    def _through_data_descriptor(
        self, evaluator: Evaluator, name: str, owner: type, raw: Any
    ) -> Variable:
        if owner in _SCALARS and self.storage is not None:
            scalar = self.storage.as_constant()
            return evaluator.wrap_result(evaluator.pure(getattr, scalar, name))
        if isinstance(raw, types.MemberDescriptorType):
            return self._slot(evaluator, name)
        position = _field_position(raw)
        if position is not None and self.storage is not None:
            return self.storage.call_method(
                evaluator, "__getitem__", [ConstantVariable(position)], {}
            )
        if isinstance(raw, types.GetSetDescriptorType):
            raise Unsupported("attribute of a builtin type", f"{self.kind.__qualname__}.{name}")
        return bind_attribute(evaluator, self.kind, owner, name, raw, self)

    def instance_attribute(self, evaluator: Evaluator, name: str) -> Variable | None:
        """The entry of the instance dict; None if there is none."""
        if name in self.attributes:
            return self.attributes[name]
        if self.source is None:
            return None
        return read_instance_attribute(evaluator, self, name)

    def instance_dictionary(self) -> InstanceDictVariable:
        """``self.__dict__``."""
        if self._dictionary_variable is None:
            self._dictionary_variable = InstanceDictVariable(self)
        return self._dictionary_variable

    def dictionary(self) -> dict[str, Any]:
        """The real object's instance dict, empty if it has none."""
        try:
            dictionary = object.__getattribute__(self.value, "__dict__")
        except AttributeError:
            return {}
        assert isinstance(dictionary, dict)
        return dictionary

    def _slot(self, evaluator: Evaluator, name: str) -> Variable:
        if not self._slot_is_filled(evaluator, name):
            raise_no_attribute(evaluator, self.kind, name)
        written = self.attributes.get(name)
        if written is not None:
            return written
        assert self.source is not None
        value = object.__getattribute__(self.value, name)
        return evaluator.builder.wrap(value, AttributeSource(self.source, name))

    def _slot_is_filled(self, evaluator: Evaluator, name: str) -> bool:
        if name in self.attributes:
            return self.attributes[name] is not None
        if self.source is None:
            return False
        try:
            object.__getattribute__(self.value, name)
        except AttributeError:
            if evaluator.state.find_in_type(self.kind, "__getattr__") is not None:
                raise Unsupported("empty slot", f"{self!r}.{name}") from None
            evaluator.guard(self.source, HasAttribute(name, False))
            return False
        return True

    def _cached_property(
        self, evaluator: Evaluator, name: str, owner: type, raw: functools.cached_property[Any]
    ) -> Variable:
        """Computed once and kept in the instance dict; no other thread sees it half done."""
        source = AttributeSource(class_attribute_source(self.kind, owner, name, raw), "func")
        value = evaluator.builder.wrap(raw.func, source).call(evaluator, [self], {})
        self.write_attribute(evaluator, raw.attrname or name, value)
        return value

    # Writing attributes.

    def set_attribute(self, evaluator: Evaluator, name: str, value: Variable) -> None:
        self._change_attribute(evaluator, "__setattr__", name, value)

    def delete_attribute(self, evaluator: Evaluator, name: str) -> None:
        self._change_attribute(evaluator, "__delattr__", name)

    def _change_attribute(
        self, evaluator: Evaluator, special: str, name: str, *value: Variable
    ) -> None:
        hook = evaluator.state.find_in_type(self.kind, special)
        if hook is None or _is_default_hook(hook[1]):
            guard_default(evaluator, self.kind, special, hook)
            self.generic_set_attribute(evaluator, name, *(value or (None,)))
            return
        method = bind_attribute(evaluator, self.kind, hook[0], special, hook[1], self)
        method.call(evaluator, [ConstantVariable(name), *value], {})

    def generic_set_attribute(
        self, evaluator: Evaluator, name: str, value: Variable | None
    ) -> None:
        """``object.__setattr__(self, name, value)``; ``object.__delattr__`` if ``value`` is None."""
        if name in ("__class__", "__dict__"):
            raise Unsupported("attribute write", f"{self!r}.{name}")
        found = evaluator.state.find_in_type(self.kind, name)
        if found is not None and is_data_descriptor(found[1]):
            if not isinstance(found[1], types.MemberDescriptorType):
                self._set_through_descriptor(evaluator, name, found[1], value)
                return
            if value is None and not self._slot_is_filled(evaluator, name):
                evaluator.raise_error(AttributeError, name)
        elif self.kind.__dictoffset__ == 0:
            hooks = (evaluator.state.find_in_type(self.kind, hook) for hook in _WRITING_HOOKS)
            is_default = all(hook is None or _is_default_hook(hook[1]) for hook in hooks)
            if found is None:
                guard_absent(evaluator, self.kind, name)
            else:
                guard_found(evaluator, self.kind, found[0], name, found[1])
            more = WITHOUT_PLACE if is_default else ""
            no_place(evaluator, self.kind, name, found is not None, more)
        elif value is None and self.instance_attribute(evaluator, name) is None:
            nothing_to_delete(evaluator, self.kind, name)
        self.write_attribute(evaluator, name, value)

    def _set_through_descriptor(
        self, evaluator: Evaluator, name: str, raw: Any, value: Variable | None
    ) -> None:
        qualified = f"{self.kind.__qualname__}.{name}"
        what = "deleter" if value is None else "setter"
        arguments: Arguments = [self] if value is None else [self, value]
        if is_property(raw):
            function = raw.fdel if value is None else raw.fset
            if function is None:
                evaluator.raise_error(
                    AttributeError,
                    f"property {name!r} of {self.kind.__qualname__!r} object has no {what}",
                )
            accessor = evaluator.builder.wrap(
                function, ConstantSource(f"{qualified}.{what}", function)
            )
            accessor.call(evaluator, arguments, {})
            return
        special = "__delete__" if value is None else "__set__"
        function = find_raw(type(raw), special)
        if not isinstance(function, types.FunctionType):
            raise Unsupported("attribute write", qualified)
        method = bind_to_class(evaluator, type(raw), type(raw), special, function)
        descriptor = evaluator.builder.wrap(raw, ConstantSource(qualified, raw))
        method.call(evaluator, [descriptor, *arguments], {})

    def write_attribute(self, evaluator: Evaluator, name: str, value: Variable | None) -> None:
        """Change the instance dict or a slot; None deletes."""
        self.is_changed_key = self.is_key
        if self.source is not None:
            require_no_finalizer(self.dictionary().get(name), self)
        if value is not None and self.attributes.get(name, value) is None:
            del self.attributes[name]  # made anew after its deletion: it is the last one
            self.made_anew.add(name)
        self.attributes[name] = value
        if self.source is not None:
            evaluator.side_effects.mutated(self)

    def hashed_key(self, evaluator: Evaluator) -> HashedKey:
        owner, raw = evaluator.state.find_in_type(self.kind, "__hash__") or (object, None)
        equal = evaluator.state.find_in_type(self.kind, "__eq__")
        guard_default(evaluator, self.kind, "__hash__", (owner, raw))
        guard_default(evaluator, self.kind, "__eq__", equal)
        if raw is None:
            guard_found(evaluator, self.kind, owner, "__hash__", raw)
            unhashable(evaluator, self)
        if owner is object and raw is not None and equal is not None and equal[0] is object:
            if self.source is not None:
                evaluator.guard(self.source, IsObject(self.value, weak=True))
            return identity_key(self, self.value)
        is_plain = (
            equal is not None and is_builtin_descriptor(raw) and is_builtin_descriptor(equal[1])
        )
        if self.storage is not None and is_plain and raw is not object.__hash__:
            return hashed_key(evaluator, self.storage).of_owner(self)
        is_seen = not is_silent(self.kind)
        if is_seen and evaluator.graph.is_in_region:
            raise Unsupported(KIND, repr(self))
        with key_method(evaluator, repr(self)) if is_seen else contextlib.nullcontext():
            value = instance_hash(evaluator, self).as_constant()
        self.is_key = self.is_key or is_seen
        return HashedKey(self, None, InstanceKey(evaluator, self, value, is_seen))

    def builtin_text(self, evaluator: Evaluator, name: str, *arguments: Any) -> str:
        """What ``__str__``, ``__repr__`` or ``__format__`` of the builtin base gives."""
        if issubclass(self.kind, types.SimpleNamespace) and not arguments:
            keys = self.get_attribute(evaluator, "__dict__").iterate(evaluator)
            names = [str(key.as_constant()) for key in keys]
            attributes = {n: self.get_attribute(evaluator, n).printable(evaluator) for n in names}
            is_plain = self.kind is types.SimpleNamespace
            kind = self.kind if is_plain else type(self.kind.__name__, (types.SimpleNamespace,), {})
            return repr(kind(**attributes))
        storage = self.storage
        if storage is not None and storage.is_constant() and storage.python_type() is not frozenset:
            return str(getattr(storage.as_constant(), name)(*arguments))
        held: Any = None if storage is None else storage.python_type()
        if name != "__repr__" or held not in (list, tuple, dict, set, frozenset, OrderedDict):
            raise Unsupported("text of an instance", repr(self))
        assert storage is not None
        plain = storage.printable(evaluator)
        if type(plain) is not held:
            raise Unsupported("text of an instance", repr(self))
        text: Any = vars(held)["__repr__"]
        if held in (list, tuple, dict):
            return str(text(plain))
        named = type(self.kind.__name__, (held,), {})(plain)  # their texts have the class's name
        if list(named) != list(plain):
            raise Unsupported("text of an instance", repr(self), "its order is not known")
        return str(text(named))

    # Emission.

    def emit_mutation(self, emitter: Emitter) -> None:
        for name, value in self.attributes.items():
            if (value is None or name in self.made_anew) and self._had_attribute(name):
                delete = delete_shadowed if is_shadowed(self.kind, name) else object.__delattr__
                emitter.run_call(delete, self, name)
            if value is not None:
                write = write_shadowed if is_shadowed(self.kind, name) else object.__setattr__
                emitter.run_call(write, self, name, value)

    def _had_attribute(self, name: str) -> bool:
        """Whether the real object has the attribute in its dict or a slot."""
        if name in self.dictionary():
            return True
        found = find_raw(self.kind, name)
        return isinstance(found, types.MemberDescriptorType) and hasattr(self.value, name)

    def reconstruct(self, emitter: Emitter) -> None:
        from .instances import emit_new_instance

        emit_new_instance(emitter, self)

    def __repr__(self) -> str:
        return f"{self.kind.__qualname__} object"


_SCALARS = (int, float, complex)
"""Classes of numbers, whose data descriptors (``real``) read what an instance holds."""


def instance_hash(evaluator: Evaluator, instance: UserObjectVariable) -> Variable:
    """``hash(instance)`` by a ``__hash__`` written in Python."""
    found = evaluator.state.find_in_type(instance.kind, "__hash__")
    if found is None or found[1] is None:
        evaluator.raise_error(TypeError, f"unhashable type: {instance.kind.__name__!r}")
    if is_builtin_descriptor(found[1]):
        storage = instance.storage
        if storage is None or found[1] is object.__hash__:
            raise Unsupported("hash of a value", repr(instance), "it is made of the address")
        return evaluator.wrap_constant(evaluator.pure(hash, storage.snapshot()))
    method = bind_attribute(evaluator, instance.kind, found[0], "__hash__", found[1], instance)
    result = method.call(evaluator, [], {})
    if not issubclass(result.python_type(), int):
        evaluator.raise_error(TypeError, "__hash__ method should return an integer")
    if not result.is_constant():
        raise Unsupported("hash of a value", f"{instance!r}: {result!r}")
    number = int(result.as_constant())
    if (
        type(result.as_constant()) is not int or number == -1 or abs(number) > sys.maxsize
    ):  # C has no such hashes
        return ConstantVariable(hash(number))
    return result


def _is_default_hook(raw: Any) -> bool:
    """Whether a class's attribute hook is ``object``'s own, or a builtin base's of the same meaning."""
    return is_builtin_descriptor(raw) and raw.__name__ in _HOOKS


_WRITING_HOOKS = ("__setattr__", "__delattr__")
_HOOKS = ("__getattribute__", *_WRITING_HOOKS)


def _is_plain_dictionary(found: tuple[type, Any] | None) -> bool:
    """Whether ``__dict__`` found in a class is the one that the class gives to its instances."""
    return found is not None and isinstance(found[1], _DICTIONARY_DESCRIPTORS)


_DICTIONARY_DESCRIPTORS = (types.GetSetDescriptorType, types.MemberDescriptorType)


def _field_position(raw: Any) -> int | None:
    """The position that a field of a named tuple reads."""
    if type(raw).__name__ != "_tuplegetter":
        return None
    position: int = raw.__reduce__()[1][0]
    return position


def _is_plain_instance(value: Any) -> bool:
    from .instances import storage_class

    return not issubclass(type(value), type) and storage_class(type(value)) is not None


@register_predicate(_is_plain_instance, -100)
def _wrap_instance(evaluator: Evaluator, value: Any, source: Source) -> Variable:
    from .instances import wrap_storage

    try:
        storage = wrap_storage(evaluator, value, source)
    except Unsupported as error:
        return RefusedVariable(value, source, error.kind, error.context)
    evaluator.guard(source, TypeIs(type(value)))
    return UserObjectVariable(type(value), value, source, storage)


# ``instance.__dict__``: the attributes of an instance as a dict.


class InstanceDictVariable(AttributeDictVariable):
    """The dict of ``instance``, whose attributes are the only storage."""

    def __init__(self, owner: UserObjectVariable) -> None:
        super().__init__()
        self.instance = owner
        if owner.source is not None:
            self.source = InstanceDictSource(owner.source)

    def all_entries(self, evaluator: Evaluator) -> dict[HashedKey, Variable]:
        names: list[str] = []
        if self.instance.source is not None:
            assert self.source is not None
            known = self.instance.dictionary()
            evaluator.guard(self.source, DictKeysAre(tuple(known)))
            names.extend(name for name in known if name not in self.instance.made_anew)
        written = (name for name in self.instance.attributes if not self._is_slot(evaluator, name))
        names.extend(name for name in written if name not in names)
        entries = {}
        for name in names:
            value = self.instance.instance_attribute(evaluator, name)
            if value is not None:
                entries[HashedKey(ConstantVariable(name), (name,))] = value
        return entries

    def lookup(self, evaluator: Evaluator, key: Variable) -> Variable | None:
        name = self._name(evaluator, key)
        return None if name is None else self.instance.instance_attribute(evaluator, name)

    def contains(self, evaluator: Evaluator, key: Variable) -> bool:
        name = self._name(evaluator, key)
        if name is None:
            return False
        if name in self.instance.attributes:
            return self.instance.attributes[name] is not None
        if self.instance.source is None:
            return False
        present = name in self.instance.dictionary()
        assert self.source is not None
        evaluator.guard(self.source, DictContains(name, present))
        return present

    def _name(self, evaluator: Evaluator, key: Variable) -> str | None:
        plain = entry_key(evaluator, key).python_key
        if plain is None or not isinstance(plain[0], str) or self._is_slot(evaluator, plain[0]):
            return None
        return str(plain[0])

    def _is_slot(self, evaluator: Evaluator, name: str) -> bool:
        """Whether the instance keeps an attribute of this name beside its dict."""
        found = evaluator.state.find_in_type(self.instance.kind, name)
        return found is not None and isinstance(found[1], types.MemberDescriptorType)

    def mutate(self, evaluator: Evaluator) -> dict[HashedKey, Variable]:
        raise Unsupported("instance dictionary", f"change of {self!r} as a whole")

    def store(self, evaluator: Evaluator, key: Variable, value: Variable) -> None:
        name = self._name(evaluator, key)
        if name is None:
            raise Unsupported("instance dictionary", f"key {key!r} of {self!r}")
        self.instance.write_attribute(evaluator, name, value)

    def remove(self, evaluator: Evaluator, key: Variable) -> Variable | None:
        found = self.lookup(evaluator, key)
        name = self._name(evaluator, key)
        if found is not None and name is not None:
            self.instance.write_attribute(evaluator, name, None)
        return found

    def clear(self, evaluator: Evaluator) -> None:
        for key in self.all_entries(evaluator):
            self.remove(evaluator, key.variable)

    def emit_mutation(self, emitter: Emitter) -> None:
        raise RuntimeError("the owner's attributes are emitted, not its dict's entries")

    def reconstruct(self, emitter: Emitter) -> None:
        emitter.load_call(object.__getattribute__, self.instance, "__dict__")

    def __repr__(self) -> str:
        return f"{self.instance!r}.__dict__"


def read_instance_attribute(
    evaluator: Evaluator, owner: UserObjectVariable, name: str
) -> Variable | None:
    """An entry of an instance dict from outside; None, guarded, if there is none."""
    assert owner.source is not None
    dictionary = owner.dictionary()
    if name in dictionary:
        return evaluator.builder.wrap(dictionary[name], InstanceDictSource(owner.source, name))
    if owner.kind.__dictoffset__ != 0:
        evaluator.guard(InstanceDictSource(owner.source), DictContains(name, False))
    return None
