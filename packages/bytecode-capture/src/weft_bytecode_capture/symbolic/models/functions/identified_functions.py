"""Functions known by identity: a call does what the evaluator says, not what their code does."""

from __future__ import annotations

import inspect
from typing import Any

from weft_guards import Source

from ....frame.emitter import Emitter
from ....unsupported import Unsupported
from ...protocol import Evaluator
from ...variables.base import Arguments, Keywords, Variable
from ...variables.hashing import HashedKey, identity_key

_DESCRIPTIONS = frozenset({"__name__", "__qualname__", "__module__", "__doc__"})


class IdentifiedFunctionVariable(Variable):
    """A function of a library's; subclasses evaluate its calls."""

    def __init__(self, value: Any, source: Source | None) -> None:
        self.value = value
        self.source = source

    def python_type(self) -> type:
        return type(self.value)

    def hashed_key(self, evaluator: Evaluator) -> HashedKey:
        return identity_key(evaluator, self, self.value)

    def get_attribute(self, evaluator: Evaluator, name: str) -> Variable:
        if name in _DESCRIPTIONS and hasattr(self.value, name):
            return evaluator.wrap_constant(getattr(self.value, name))
        if not hasattr(self.value, name):
            kind = self.python_type().__name__
            message = f"{kind!r} object has no attribute {name!r}"
            evaluator.raise_error(AttributeError, message, name=name)
        return super().get_attribute(evaluator, name)

    def bound_arguments(
        self, arguments: Arguments, keywords: Keywords, kind: str
    ) -> dict[str, Variable]:
        """The arguments of a call by parameter, without defaults.

        Raises ``Unsupported`` of ``kind`` where the function does not take them.
        """
        try:
            bound = inspect.signature(self.value).bind(*arguments, **keywords)
        except TypeError as error:
            raise Unsupported(kind, f"{self.value.__qualname__}: {error}") from error
        return dict(bound.arguments)

    def reconstruct(self, emitter: Emitter) -> None:
        emitter.load_object(self.value)

    def __repr__(self) -> str:
        return f"Function({getattr(self.value, '__qualname__', self.value)})"
