"""Python modules."""

from __future__ import annotations

import sys
import types
from typing import Any

from weft_guards import (
    AttributeSource,
    ConstantSource,
    DictContains,
    HasAttribute,
    InstanceDictSource,
    IsObject,
    Source,
)

from ....frame.emitter import Emitter
from ....unsupported import Unsupported
from ...protocol import Evaluator
from ...variables.base import Variable
from ...variables.builder import is_constant_value, register_predicate
from ...variables.constant import ConstantVariable
from ...variables.python_protocols import is_data_descriptor
from .class_attributes import bind_attribute, is_builtin_descriptor

_STREAMS = ("stdout", "stderr")


class ModuleVariable(Variable):
    """A Python module, known by identity; writes to it are refused, but for the streams of ``sys``."""

    def __init__(self, value: types.ModuleType, source: Source) -> None:
        self.value = value
        self.source = source

    def python_type(self) -> type:
        return type(self.value)

    def get_attribute(self, evaluator: Evaluator, name: str) -> Variable:
        module = self.value
        scope = evaluator.state.module_globals(module.__dict__)
        if name in scope.written:
            written = scope.written[name]
            if written is not None:
                return written
            raise Unsupported("deleted attribute of a module", f"{module.__name__}.{name}")
        kind = type(module)
        found = None if kind is types.ModuleType else evaluator.state.find_in_type(kind, name)
        if found is not None and is_data_descriptor(found[1]):
            owner, raw = found
            if not is_builtin_descriptor(raw):  # as ``torch.backends.cudnn`` has its settings
                return bind_attribute(evaluator, kind, owner, name, raw, self)
        hook = module.__dict__.get("__getattr__")
        absent = name not in module.__dict__ and not hasattr(type(module), name)
        if absent and not scope.trusted and isinstance(hook, types.FunctionType):
            self._guard_absent(evaluator, name)
            function = scope.load(evaluator.frame, "__getattr__")
            return function.call(evaluator, [ConstantVariable(name)], {})
        try:
            value = getattr(module, name)
        except AttributeError:
            self._guard_absent(evaluator, name)
            evaluator.raise_error(
                AttributeError, f"module {module.__name__!r} has no attribute {name!r}", name=name
            )
        if scope.trusted and not is_constant_value(value):
            if not (evaluator.globals.trusted or isinstance(value, types.ModuleType)):
                named = AttributeSource(ConstantSource(module.__name__, module), name)
                evaluator.guard(named, IsObject(value))
            return evaluator.builder.wrap(value, ConstantSource(f"{module.__name__}.{name}", value))
        return evaluator.builder.wrap(
            value, AttributeSource(ConstantSource(module.__name__, module), name)
        )

    def set_attribute(self, evaluator: Evaluator, name: str, value: Variable) -> None:
        if self.value is not sys or name not in _STREAMS or evaluator.graph.is_in_region:
            super().set_attribute(evaluator, name, value)
        evaluator.state.module_globals(vars(sys)).store(evaluator, name, value)

    def _guard_absent(self, evaluator: Evaluator, name: str) -> None:
        """Guard that neither the module nor its class have the name, nor a function that finds it."""
        source = ConstantSource(self.value.__name__, self.value)
        evaluator.guard(InstanceDictSource(source), DictContains(name, False))
        if "__getattr__" not in self.value.__dict__:
            evaluator.guard(source, HasAttribute(name, False))

    def reconstruct(self, emitter: Emitter) -> None:
        emitter.load_object(self.value)

    def __repr__(self) -> str:
        return f"Module({self.value.__name__})"


def _is_plain_module(value: Any) -> bool:
    """Whether a value is a module with a name whose class does not read attributes its own way."""
    kind = type(value)
    return (
        issubclass(kind, types.ModuleType)
        and kind.__getattribute__ is types.ModuleType.__getattribute__
        and isinstance(value.__dict__, dict)
        and isinstance(value.__dict__.get("__name__"), str)
    )


@register_predicate(_is_plain_module, -50)
def _wrap_module(evaluator: Evaluator, value: types.ModuleType, source: Source) -> Variable:
    evaluator.guard(source, IsObject(value))
    return ModuleVariable(value, source)
