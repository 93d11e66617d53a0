"""Weak references from outside the frame."""

from __future__ import annotations

import weakref
from typing import Any

from weft_guards import IsObject, Source

from ....unsupported import Unsupported
from ...protocol import Evaluator
from ...variables.base import Arguments, Keywords, Variable
from ...variables.builder import register_wrapper
from .opaque import OpaqueVariable


class WeakReferenceVariable(OpaqueVariable):
    """A weak reference, known by identity when it is called."""

    def python_type(self) -> type:
        return type(self.value)

    def binary_operation(
        self, evaluator: Evaluator, operator: str, other: Variable, reflected: bool
    ) -> Variable | None:
        """References are equal as what they refer to is, as long as that lives."""
        raise Unsupported("dead weak reference", f"{self!r} {operator} {other!r}")

    def call(self, evaluator: Evaluator, arguments: Arguments, keywords: Keywords) -> Variable:
        """What it refers to, if another path leads there: that path's guards hold it alive."""
        target = self.value()
        known = None if target is None else evaluator.builder.known(target)
        if known is None or known.source is None or arguments or keywords:
            raise Unsupported("dead weak reference", repr(self))
        assert self.source is not None
        evaluator.guard(self.source, IsObject(self.value))
        evaluator.guard(known.source, IsObject(target, weak=True))
        return known


@register_wrapper(weakref.ReferenceType)
def _wrap_weak_reference(evaluator: Evaluator, value: Any, source: Source) -> Variable:
    return WeakReferenceVariable(value, source)
