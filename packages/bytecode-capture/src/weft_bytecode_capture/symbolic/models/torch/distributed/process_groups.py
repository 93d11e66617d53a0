"""Groups of processes, known by identity, the reductions that they are asked for, and who else is to know."""

from __future__ import annotations

from typing import Any

import torch.distributed
from weft_guards import IsObject, Source, TypeIs

from ....protocol import Evaluator
from ....variables.base import Arguments, Keywords, Variable
from ....variables.builder import register_constant_types, register_predicate
from ....variables.constant import ConstantVariable
from ....variables.hashing import identity_key
from ....variables.keys import HashedKey
from ...objects.opaque import OpaqueVariable

# What a group says of itself for as long as it lives.
_PROPERTIES = frozenset({"group_name", "group_desc"})
_METHODS = frozenset({"rank", "size", "name"})


class ProcessGroupVariable(OpaqueVariable):
    """A ``ProcessGroup``: its name, its size and this process's rank never change."""

    source: Source

    def identify(self, evaluator: Evaluator) -> None:
        """Guard that it is this very group."""
        evaluator.guard(self.source, IsObject(self.value, weak=True))

    def python_type(self) -> type:
        return type(self.value)

    def truth(self, evaluator: Evaluator) -> bool:
        self.identify(evaluator)
        return True

    def get_attribute(self, evaluator: Evaluator, name: str) -> Variable:
        self.identify(evaluator)
        if name in _PROPERTIES:
            return ConstantVariable(getattr(self.value, name))
        if name in _METHODS:
            return _GroupQueryVariable(getattr(self.value, name), self.source)
        return super().get_attribute(evaluator, name)

    def same_object(self, evaluator: Evaluator, other: Variable) -> bool | None:
        self.identify(evaluator)
        if isinstance(other, ProcessGroupVariable):
            other.identify(evaluator)
            return other.value is self.value
        return super().same_object(evaluator, other)

    def equals(self, evaluator: Evaluator, other: Variable) -> bool | None:
        """Groups are equal if they are one."""
        self.identify(evaluator)
        if isinstance(other, ProcessGroupVariable):
            return self.same_object(evaluator, other)
        return False if other.is_constant() or _is_no_group(other) else None

    def hashed_key(self, evaluator: Evaluator) -> HashedKey:
        self.identify(evaluator)
        return identity_key(self, self.value)


def _is_no_group(variable: Variable) -> bool:
    """Whether it is what stands for the group of a process that is in none."""
    return isinstance(variable, OpaqueVariable) and type(variable.value) is object


class _GroupQueryVariable(OpaqueVariable):
    """A bound method of a group that gives a constant."""

    def call(self, evaluator: Evaluator, arguments: Arguments, keywords: Keywords) -> Variable:
        positional, named = evaluator.snapshots(arguments, keywords, self.value.__name__)
        return ConstantVariable(evaluator.pure(self.value, *positional, **named))


if torch.distributed.is_available():
    register_constant_types(torch.distributed.ReduceOp.RedOpType)

    @register_predicate(lambda value: issubclass(type(value), torch.distributed.ProcessGroup))
    def _wrap_group(evaluator: Evaluator, value: Any, source: Source) -> Variable:
        evaluator.guard(source, TypeIs(type(value)))
        return ProcessGroupVariable(value, source)
