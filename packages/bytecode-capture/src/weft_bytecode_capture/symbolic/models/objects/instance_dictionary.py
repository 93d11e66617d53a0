"""``instance.__dict__``: the attributes of an instance as a dict."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft_guards import DictContains, DictKeysAre, InstanceDictSource

from ....frame.emitter import Emitter
from ....unsupported import Unsupported
from ...protocol import Evaluator
from ...variables.base import Variable
from ...variables.constant import ConstantVariable
from ...variables.hashing import HashedKey, entry_key
from ..containers.mappings import AttributeDictVariable

if TYPE_CHECKING:
    from .user_objects import UserObjectVariable


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
        names.extend(name for name in self.instance.attributes if name not in names)
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
        return plain[0] if plain is not None and isinstance(plain[0], str) else None

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
