"""Integers that the graph holds in tensors: what a loop counts that a tensor's value ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ...unsupported import Unsupported
from .base import Variable
from .tensor import TensorVariable

if TYPE_CHECKING:
    from ...frame.emitter import Emitter
    from ..evaluator import Evaluator

_GREATEST_STEP = 2**31  # no loop runs long enough for steps of this size to leave int64


class TensorIntegerVariable(Variable):
    """An int whose value only the graph knows: ``tensor`` is int64 without dimensions.

    Constants can be added and subtracted.  Anything else needs the number and is unsupported.
    """

    reflects_own_type = True  # 2 + i: a constant knows nothing of these integers

    def __init__(self, tensor: TensorVariable) -> None:
        self.tensor = tensor

    def python_type(self) -> type:
        return int

    def truth(self, evaluator: Evaluator) -> bool:
        raise Unsupported("decision by an integer that the graph computes", repr(self))

    def binary_operation(
        self, evaluator: Evaluator, operator: str, other: Variable, reflected: bool
    ) -> Variable | None:
        plain = operator.removeprefix("i") if operator in ("iadd", "isub") else operator
        step = other.as_constant() if other.is_constant() else None
        if plain not in ("add", "sub") or type(step) is not int or abs(step) > _GREATEST_STEP:
            raise Unsupported(
                "use of an integer that the graph computes", f"{operator} of {self!r} and {other!r}"
            )
        operands = (other, self.tensor) if reflected else (self.tensor, other)
        made = evaluator.binary_operation(plain, *operands)
        assert isinstance(made, TensorVariable)
        return TensorIntegerVariable(made)

    def call_method(
        self,
        evaluator: Evaluator,
        name: str,
        arguments: list[Variable],
        keywords: dict[str, Variable],
    ) -> Variable:
        raise Unsupported("use of an integer that the graph computes", f"{self!r}.{name}")

    def reconstruct(self, emitter: Emitter) -> None:
        emitter.load_callable(torch.Tensor.item)
        emitter.load_variable(self.tensor)
        emitter.call(1)

    def __repr__(self) -> str:
        return f"TensorInteger({self.tensor!r})"
