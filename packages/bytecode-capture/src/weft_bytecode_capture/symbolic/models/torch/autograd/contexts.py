"""The ``ctx`` of a ``torch.autograd.Function`` that is inlined."""

from __future__ import annotations

from .....unsupported import Unsupported
from ....protocol import Evaluator
from ....variables.base import Arguments, Keywords, Variable
from ....variables.constant import ConstantVariable
from ....variables.python_protocols import no_attribute
from ...containers.sequences import TupleVariable
from ..tensor import TensorVariable

_NOTES = (
    "save_for_backward", "save_for_forward", "mark_dirty", "mark_non_differentiable",
    "set_materialize_grads",
)  # fmt: skip


class AutogradContextVariable(Variable):
    """Attributes, and what a forward notes for its backward.

    ``in_backward``: the backward is being evaluated, which may read what the forward left, and no more.
    """

    def __init__(self, kind: type, inputs: list[Variable]) -> None:
        self.kind = kind
        self._inputs = inputs
        self._attributes: dict[str, Variable] = {}
        self.saved: list[Variable] = []
        self.dirty: list[Variable] = []
        self.constant: list[Variable] = []  # results without a gradient
        self.materializes = True
        self.in_backward = False

    def truth(self, evaluator: Evaluator) -> bool:
        return True

    def get_attribute(self, evaluator: Evaluator, name: str) -> Variable:
        if name in self._attributes:
            return self._attributes[name]
        if name == "needs_input_grad":
            return TupleVariable([ConstantVariable(needs_gradient(v)) for v in self._inputs])
        if name == "saved_tensors" and self.in_backward:
            return TupleVariable(self.saved)
        if name in _NOTES and not self.in_backward:
            return _NoteVariable(self, name)
        if not hasattr(self.kind, name):
            no_attribute(evaluator, self.kind.__name__, name)
        return super().get_attribute(evaluator, name)

    def set_attribute(self, evaluator: Evaluator, name: str, value: Variable) -> None:
        if hasattr(self.kind, name) or self.in_backward:
            super().set_attribute(evaluator, name, value)
        self._attributes[name] = value

    def note(self, evaluator: Evaluator, name: str, arguments: Arguments) -> None:
        """What one of the context's methods keeps; each call of it replaces the one before."""
        if name == "save_for_backward":
            self.saved = arguments
        elif name == "mark_dirty":
            self.dirty = arguments
        elif name == "mark_non_differentiable":
            self.constant = arguments
        elif name == "set_materialize_grads":
            (wanted,) = arguments
            self.materializes = wanted.truth(evaluator)


class _NoteVariable(Variable):
    """A method of the context by which a forward tells autograd something."""

    def __init__(self, context: AutogradContextVariable, name: str) -> None:
        self._context = context
        self._name = name

    def call(self, evaluator: Evaluator, arguments: Arguments, keywords: Keywords) -> Variable:
        if self._name == "set_materialize_grads" and list(keywords) == ["value"]:
            arguments, keywords = list(keywords.values()), {}
        if keywords or (self._name == "set_materialize_grads" and len(arguments) != 1):
            raise Unsupported("call", f"{self._name} with keywords or without a value")
        self._context.note(evaluator, self._name, arguments)
        return ConstantVariable(None)


def needs_gradient(variable: Variable) -> bool:
    """Whether an argument is a tensor that gradients are wanted of."""
    return isinstance(variable, TensorVariable) and variable.fake.requires_grad
