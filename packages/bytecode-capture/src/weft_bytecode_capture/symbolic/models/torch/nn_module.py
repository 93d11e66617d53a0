"""Modules: known by identity, their parameters attributes of the graph.

Where earlier compilations found another module at the same place (one function called with each layer of a
model, a method compiled in its class), a module is known by its structure, and parameters are inputs.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from weft_guards import (
    AttributeSource,
    ConstantSource,
    DictContains,
    DictKeysAre,
    InstanceDictSource,
    IsObject,
    ItemSource,
    LengthIs,
    Source,
    TypeIs,
)

from ...._torch import GLOBAL_HOOKS, HOOKED_CALL
from ....frame.emitter import Emitter
from ....unsupported import Unsupported
from ...policy import is_library_module
from ...protocol import Evaluator
from ...variables.base import Arguments, Keywords, Variable
from ...variables.builder import register_predicate
from ...variables.class_guards import guard_absent
from ..containers.mappings import DictVariable
from ..containers.selections import selected_element
from ..containers.slices import SliceVariable
from ..iterators.builtin_iterators import SequenceIteratorVariable
from ..iterators.rebuilding import advanced_iterator
from ..objects.class_attributes import guard_default
from ..objects.opaque import OpaqueVariable, RefusedVariable
from ..objects.user_objects import UserObjectVariable

_MODULE_CALL = torch.nn.Module.__call__  # users may replace it
_HOOKED_CALL = getattr(torch.nn.Module, HOOKED_CALL)
_REGISTRIES = ("_parameters", "_buffers", "_modules")
_CONTAINERS = (torch.nn.ModuleList, torch.nn.Sequential)
_GLOBAL_SOURCES = [
    ConstantSource(f"torch.nn.modules.module._global{name}", hooks)
    for name, hooks in GLOBAL_HOOKS.items()
]
_EMPTY = LengthIs(0)


class ModuleInstanceVariable(UserObjectVariable):
    """An ``nn.Module`` that existed before the frame."""

    value: torch.nn.Module
    source: Source

    def truth(self, evaluator: Evaluator) -> bool:
        if hasattr(type(self.value), "__bool__"):
            return super().truth(evaluator)
        return self.length(evaluator) != 0 if hasattr(type(self.value), "__len__") else True

    def get_attribute(self, evaluator: Evaluator, name: str) -> Variable:
        if self._is_registered(evaluator, name):
            for registry in _REGISTRIES:
                members = self.value.__dict__[registry]
                if name in members and not self._was_changed(evaluator, registry):
                    self._guard_lookup(evaluator, name)
                    evaluator.guard(InstanceDictSource(self.source), DictContains(name, False))
                    source = ItemSource(InstanceDictSource(self.source, registry), name)
                    return evaluator.builder.wrap(members[name], source)
        return super().get_attribute(evaluator, name)

    def _guard_lookup(self, evaluator: Evaluator, name: str) -> None:
        """Guard that a class of the user's own still leaves the name to ``nn.Module.__getattr__``."""
        guard_absent(evaluator, self.kind, name)
        hook = evaluator.state.find_in_type(self.kind, "__getattribute__")
        guard_default(evaluator, self.kind, "__getattribute__", hook)

    def _is_registered(self, evaluator: Evaluator, name: str) -> bool:
        """Whether ``nn.Module.__getattr__`` finds the name, as neither instance nor class has it."""
        return (
            type(self.value).__getattr__ is torch.nn.Module.__getattr__
            and type(self.value).__getattribute__ is object.__getattribute__
            and name not in self.attributes
            and name not in self.value.__dict__
            and evaluator.state.find_in_type(self.kind, name) is None
        )

    def _was_changed(self, evaluator: Evaluator, registry: str) -> bool:
        """Whether captured code wrote to a registry: its variable knows what is in it then."""
        known = evaluator.builder.known(self.value.__dict__[registry])
        return registry in self.attributes or (
            isinstance(known, DictVariable) and bool(known.written or known.deleted)
        )

    def call(self, evaluator: Evaluator, arguments: Arguments, keywords: Keywords) -> Variable:
        kind = ConstantSource(self.kind.__qualname__, self.kind)
        method, inner = type(self.value).__call__, getattr(type(self.value), HOOKED_CALL)
        evaluator.guard(AttributeSource(kind, "__call__"), IsObject(method))
        if not is_library_module(torch.nn.Module.__module__):
            evaluator.guard(AttributeSource(kind, HOOKED_CALL), IsObject(inner))
        plain = method is _MODULE_CALL and inner is _HOOKED_CALL
        if not plain or self._has_hooks(evaluator):
            return super().call(evaluator, arguments, keywords)
        return self.get_attribute(evaluator, "forward").call(evaluator, arguments, keywords)

    def _has_hooks(self, evaluator: Evaluator) -> bool:
        """Whether a hook runs with the module's call; guarded where none does."""
        if any(self.value.__dict__[name] for name in GLOBAL_HOOKS) or any(GLOBAL_HOOKS.values()):
            return True
        known = evaluator.builder.known  # what captured code may have written to
        for name, of_all_modules in GLOBAL_HOOKS.items():
            if known(of_all_modules):
                return True
            if name in self.attributes or known(self.value.__dict__[name]):
                return True
            evaluator.guard(InstanceDictSource(self.source, name), _EMPTY)
        if not evaluator.state.global_hooks_guarded:
            for source in _GLOBAL_SOURCES:
                evaluator.guard(source, _EMPTY)
            evaluator.state.global_hooks_guarded = True
        return False

    def _is_container(self, evaluator: Evaluator) -> bool:
        kind: Any = type(self.value)
        return (
            isinstance(self.value, _CONTAINERS)
            and any(
                all(getattr(kind, name) is vars(base)[name] for name in ("__iter__", "__getitem__"))
                for base in _CONTAINERS
            )
            and not self._was_changed(evaluator, "_modules")
        )

    def iterate(self, evaluator: Evaluator) -> list[Variable]:
        if not self._is_container(evaluator):
            return super().iterate(evaluator)
        self._guard_length(evaluator)
        return [self.get_attribute(evaluator, name) for name in self.value._modules]

    def iterator(self, evaluator: Evaluator) -> Variable:

        if not self._is_container(evaluator):
            return super().iterator(evaluator)
        return MembersIteratorVariable(
            self, self.iterate(evaluator), lambda: self._was_changed(evaluator, "_modules")
        )

    def length(self, evaluator: Evaluator) -> int:
        if not self._is_container(evaluator):
            return super().length(evaluator)
        self._guard_length(evaluator)
        return len(self.value._modules)

    def _guard_length(self, evaluator: Evaluator) -> None:
        members = self.value._modules
        place = InstanceDictSource(self.source, "_modules")
        if evaluator.state.is_identified(self.source):
            evaluator.guard(place, LengthIs(len(members)))
        else:
            evaluator.guard(place, DictKeysAre(tuple(members)))

    def _selected_member(self, evaluator: Evaluator, key: Variable) -> Variable | None:
        """A ModuleList's member at a number that differs from call to call."""
        if not isinstance(self.value, torch.nn.ModuleList):
            return None
        place = InstanceDictSource(self.source, "_modules")
        return selected_element(evaluator, self.value._modules, place, key, by_name=True)

    def call_method(
        self, evaluator: Evaluator, name: str, arguments: Arguments, keywords: Keywords
    ) -> Variable:
        if name == "__getitem__" and self._is_container(evaluator) and len(arguments) == 1:
            selected = self._selected_member(evaluator, arguments[0])
            if selected is not None:
                return selected
            if isinstance(arguments[0], SliceVariable):
                return ModuleSliceVariable(self, self.iterate(evaluator), arguments[0], evaluator)
            index = arguments[0].as_constant() if arguments[0].is_constant() else None
            names = list(self.value._modules)
            if isinstance(index, int) and -len(names) <= index < len(names):
                self._guard_length(evaluator)
                return self.get_attribute(evaluator, names[index])
        return super().call_method(evaluator, name, arguments, keywords)


class ModuleSliceVariable(Variable):
    """A new ModuleList or Sequential of some of another's members: ``layers[:n]``."""

    def __init__(
        self,
        container: ModuleInstanceVariable,
        members: list[Variable],
        key: SliceVariable,
        evaluator: Evaluator,
    ) -> None:
        self.container = container
        self.key = key
        self.members = members[key.as_slice(evaluator)]
        self._evaluator = evaluator

    def python_type(self) -> type:
        return type(self.container.value)

    def truth(self, evaluator: Evaluator) -> bool:
        return bool(self.members)

    def length(self, evaluator: Evaluator) -> int:
        return len(self.members)

    def iterate(self, evaluator: Evaluator) -> list[Variable]:
        return list(self.members)

    def iterator(self, evaluator: Evaluator) -> Variable:

        return MembersIteratorVariable(self, self.members, self.container_has_changed)

    def container_has_changed(self) -> bool:
        """Whether captured code changed the members of what this is a slice of, before or after."""
        return self.container._was_changed(self._evaluator, "_modules")

    def call(self, evaluator: Evaluator, arguments: Arguments, keywords: Keywords) -> Variable:
        if self.python_type() is not torch.nn.Sequential or len(arguments) != 1 or keywords:
            raise Unsupported("call", f"{self!r}(...)")
        (value,) = arguments
        for member in self.members:
            value = member.call(evaluator, [value], {})
        return value

    def reconstruct(self, emitter: Emitter) -> None:
        emitter.load_variable(self.container)
        emitter.load_variable(self.key)
        emitter.load_subscript()

    def __repr__(self) -> str:
        return f"{self.container!r}[{self.key!r}]"


class CompiledModuleVariable(OpaqueVariable):
    """A compiled module that captured code calls: the original is captured with its caller."""

    def __init__(self, value: torch.nn.Module, source: Source, original: Variable) -> None:
        super().__init__(value, source)
        self._original = original

    def get_attribute(self, evaluator: Evaluator, name: str) -> Variable:
        if hasattr(type(self.value), name):
            return super().get_attribute(evaluator, name)
        return self._original.get_attribute(evaluator, name)

    def call(self, evaluator: Evaluator, arguments: Arguments, keywords: Keywords) -> Variable:
        return self._original.call(evaluator, arguments, keywords)


def _is_unusual(value: Any) -> bool:
    return isinstance(value, torch.jit.ScriptModule) or isinstance(
        type(value).__dict__.get("forward"), types.BuiltinFunctionType
    )


def _has_class_of_its_own(value: torch.nn.Module) -> bool:
    """Whether a module or one in it has a class that was made for it, as those with parametrizations.

    No other module fits its guards, which hold the class and, by the closures of its properties, the module:
    they have to end with the outermost one.
    """
    inner = torch.nn.Module.modules(value)
    return any(type(m).__module__ == torch.nn.utils.parametrize.__name__ for m in inner)


_HOOKS_OF_CALLS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


@register_predicate(lambda value: issubclass(type(value), torch.nn.Module), 50)
def _wrap_module(evaluator: Evaluator, value: Any, source: Source) -> Variable:
    name = type(value).__qualname__
    original = getattr(type(value), "captured_as", None)
    if isinstance(original, str):
        if original not in value.__dict__.get("_modules", ()):
            return RefusedVariable(value, source, "module under construction", name)
        evaluator.guard(source, IsObject(value, weak=True))
        place = ItemSource(InstanceDictSource(source, "_modules"), original)
        member = evaluator.builder.wrap(value._modules[original], place)
        evaluator.guard(
            InstanceDictSource(source), DictContains("forward", "forward" in value.__dict__)
        )
        hooks = [h for h in _HOOKS_OF_CALLS if value.__dict__[h]]
        if hooks or "forward" in value.__dict__:  # called by what it has itself, not the original
            return RefusedVariable(value, source, "module of unusual kind", name)
        for registry in _HOOKS_OF_CALLS:
            evaluator.guard(InstanceDictSource(source, registry), LengthIs(0))
        return CompiledModuleVariable(value, source, member)
    if _is_unusual(value):
        return RefusedVariable(value, source, "module of unusual kind", name)
    if not value.__dict__.keys() >= {"_parameters", "_buffers", "_modules", *GLOBAL_HOOKS}:
        return RefusedVariable(value, source, "module under construction", name)
    evaluator.guard(source, TypeIs(type(value)))  # also of the very object: it may be assigned
    history = evaluator.state.frame.history
    changed = history.object_changed(source, value)
    varies = changed or history.is_of_a_varying_object(source)  # a loop's layers, their members
    if not varies or _has_class_of_its_own(value):
        evaluator.guard(source, IsObject(value, weak=True))
    return ModuleInstanceVariable(type(value), value, source)


# The iterator over the members of a ModuleList or Sequential.


class MembersIteratorVariable(SequenceIteratorVariable):
    """``iter(container)``, which is an iterator over the values of a dict.

    ``has_changed`` says whether captured code has changed the container's members since.
    """

    kind: Any = type(iter({}.values()))

    def __init__(
        self, container: Variable, members: Sequence[Variable], has_changed: Callable[[], bool]
    ) -> None:
        super().__init__(container, members)
        self._has_changed = has_changed
        self._ended = False

    def next_or_none(self, evaluator: Evaluator) -> Variable | None:
        member = super().next_or_none(evaluator)
        self._ended |= member is None
        return member

    def reconstruct(self, emitter: Emitter) -> None:
        if self._has_changed():
            raise Unsupported("modules changed during iteration", repr(self.iterable))
        emitter.load_call(_members_from, self.iterable, self.position + self._ended)


def _members_from(container: torch.nn.Module, position: int) -> Iterator[Any]:
    return advanced_iterator(container._modules.values(), position)
