"""Attributes that a program gives to tensors."""

from __future__ import annotations

from weft_guards import AttributeSource, HasAttribute

from ....frame.emitter import Emitter
from ...protocol import Evaluator
from ...variables.base import Variable


class WithAttributes(Variable):
    """A tensor to which a program may give attributes of its own."""

    attributes: dict[str, Variable]  # given by captured code

    def own_attribute(self, evaluator: Evaluator, name: str) -> Variable | None:
        """One that a program gave it; None, guarded, if it has none of the name."""
        if name in self.attributes:
            return self.attributes[name]
        if self.source is not None:
            dictionary = evaluator.builder.value_of(self).__dict__
            if name in dictionary:
                return evaluator.builder.wrap(dictionary[name], AttributeSource(self.source, name))
            evaluator.guard(self.source, HasAttribute(name, False))
        return None

    def write_attribute(self, evaluator: Evaluator, name: str, value: Variable) -> None:
        """Give it an attribute."""
        self.attributes[name] = value
        evaluator.side_effects.mutated(self)

    def emit_mutation(self, emitter: Emitter) -> None:
        for name, value in self.attributes.items():
            emitter.load_variable(value)
            emitter.load_variable(self)
            emitter.store_attribute(name)
