"""``threading.local`` from outside, and classes derived from it: what the calling thread has in it."""

from __future__ import annotations

import threading
from typing import Any

from weft_guards import AttributeSource, HasAttribute, Source, TypeIs

from ....frame.emitter import Emitter
from ....unsupported import Unsupported
from ...protocol import Evaluator
from ...variables.base import Variable
from ...variables.builder import register_predicate
from ...variables.python_protocols import find_raw
from .finalizers import require_no_finalizer


class ThreadLocalVariable(Variable):
    """Its attributes are read in the thread of the call, as guards read them."""

    def __init__(self, value: Any, source: Source) -> None:
        self.kind = type(value)
        self.value = value
        self.source: Source = source
        self.written: dict[str, Variable | None] = {}  # None: deleted

    def truth(self, evaluator: Evaluator) -> bool:
        return True

    def get_attribute(self, evaluator: Evaluator, name: str) -> Variable:
        self._require_own(name)
        if name in self.written:
            written = self.written[name]
            return self._missing(evaluator, name) if written is None else written
        own = vars(self.value)
        evaluator.guard(self.source, HasAttribute(name, name in own))
        if name not in own:
            return self._missing(evaluator, name)
        return evaluator.builder.wrap(own[name], AttributeSource(self.source, name))

    def set_attribute(self, evaluator: Evaluator, name: str, value: Variable) -> None:
        self._write(evaluator, name, value)

    def delete_attribute(self, evaluator: Evaluator, name: str) -> None:
        self.get_attribute(evaluator, name)  # an error if there is none
        self._write(evaluator, name, None)

    def _write(self, evaluator: Evaluator, name: str, value: Variable | None) -> None:
        self._require_own(name)
        if evaluator.graph.is_in_region:
            raise Unsupported("effect inside a region", f"{self!r}.{name}")
        require_no_finalizer(vars(self.value).get(name), self)
        self.written[name] = value
        evaluator.side_effects.mutated(self)

    def _require_own(self, name: str) -> None:
        if find_raw(type(self.value), name) is not None:
            raise Unsupported("attribute of a builtin type", f"{self!r}.{name}")

    def _missing(self, evaluator: Evaluator, name: str) -> Variable:
        kind = type(self.value)
        shown = "_thread._local" if kind is threading.local else kind.__name__
        message = f"{shown!r} object has no attribute {name!r}"
        return evaluator.raise_error(AttributeError, message, name=name)

    def emit_mutation(self, emitter: Emitter) -> None:
        for name, value in self.written.items():
            if value is not None:
                emitter.load_variable(value)
                emitter.load_variable(self)
                emitter.store_attribute(name)
            elif name in vars(self.value):
                emitter.run_call(delattr, self, name)

    def __repr__(self) -> str:
        return f"{type(self.value).__name__} of threads at {self.source.name()}"


_ACCESS = ("__getattribute__", "__getattr__", "__setattr__", "__delattr__", "__slots__")


def _has_plain_attributes(value: Any) -> bool:
    """Whether its attributes are those of ``threading.local``, and what its class has."""
    return issubclass(type(value), threading.local) and all(
        find_raw(type(value), name) is find_raw(threading.local, name) for name in _ACCESS
    )


@register_predicate(_has_plain_attributes, priority=1)
def _wrap_thread_local(evaluator: Evaluator, value: Any, source: Source) -> Variable:
    evaluator.guard(source, TypeIs(type(value)))
    return ThreadLocalVariable(value, source)
