"""``super()``."""

from __future__ import annotations

import types

from ....unsupported import Unsupported
from ...protocol import Evaluator
from ...variables.base import Arguments, Variable
from ...variables.python_protocols import resolution_order
from ..builtins.descriptors import BuiltinClassMethodVariable
from ..functions.bound_methods import BoundMethodVariable
from .class_attributes import bind_attribute, bind_to_class
from .classes import ClassVariable


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
        for owner in order[order.index(self.start) + 1 :]:
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
        return evaluator.raise_error(
            AttributeError, f"'super' object has no attribute {name!r}", name=name
        )

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
