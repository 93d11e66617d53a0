"""``super()``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...unsupported import Unsupported
from .base import Variable
from .class_attributes import bind_attribute, is_builtin_descriptor, raise_no_attribute
from .classes import ClassVariable

if TYPE_CHECKING:
    from ..evaluator import Evaluator


class SuperVariable(Variable):
    """A super object: attributes are looked up after ``start`` in the receiver's resolution order."""

    def __init__(self, start: type, receiver: Variable) -> None:
        self.start = start
        self.receiver = receiver

    def python_type(self) -> type:
        return super

    def get_attribute(self, evaluator: Evaluator, name: str) -> Variable:
        kind = self.receiver.python_type()
        order = kind.__mro__
        for owner in order[order.index(self.start) + 1 :]:
            if name not in owner.__dict__:
                continue
            raw = owner.__dict__[name]
            if is_builtin_descriptor(raw):
                raise Unsupported(
                    "method of a builtin type", f"super().{name} of {kind.__qualname__}"
                )
            # The owner stands for the class: guards on what is found cover its own resolution order.
            return bind_attribute(evaluator, owner, owner, name, raw, self.receiver)
        return raise_no_attribute(evaluator, super, name)


def super_variable(evaluator: Evaluator, arguments: list[Variable]) -> Variable:
    """``super()`` or ``super(class, instance)``."""
    if not arguments:
        frame = evaluator.state.current or evaluator
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
    if (
        not isinstance(kind, ClassVariable)
        or receiver is None
        or isinstance(receiver, ClassVariable)
    ):
        raise Unsupported("super() in a class method", repr(kind))
    if kind.value not in receiver.python_type().__mro__:
        raise Unsupported("super() of an unrelated class", repr(kind))
    return SuperVariable(kind.value, receiver)
