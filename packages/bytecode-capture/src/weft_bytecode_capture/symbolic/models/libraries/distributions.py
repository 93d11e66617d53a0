"""What ``torch.distributions`` asks of its classes when an instance is made: of which kind a property is."""

from __future__ import annotations

from weft_guards import ConstantSource

from ...._torch import LazyPropertyOfClass
from ....unsupported import Unsupported
from ...protocol import Evaluator
from ...variables.base import Variable
from ..functions.python_functions import KnownFunctionVariable
from ..objects.class_definitions import PropertyVariable
from ..table import model


@model(LazyPropertyOfClass)
def _read_from_class(evaluator: Evaluator, wrapped: Variable, /) -> Variable:
    """A lazy property read from its class: its kind alone is asked for, so one made in capture does."""
    if not isinstance(wrapped, KnownFunctionVariable):
        raise Unsupported("construction of an instance", LazyPropertyOfClass.__qualname__)
    wrapped.identify(evaluator)
    made = LazyPropertyOfClass(wrapped.value)
    return PropertyVariable(made, ConstantSource(LazyPropertyOfClass.__qualname__, made))
