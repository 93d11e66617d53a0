"""Generators: made freely, consumed by CPython alone."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING

from .iterators import IteratorVariable

if TYPE_CHECKING:
    from ..evaluator import Evaluator
    from .base import Variable


class GeneratorVariable(IteratorVariable):
    """A generator of a function evaluated with its caller; it runs when an element is asked for."""

    def __init__(self, frame: Evaluator) -> None:
        self.frame = frame

    def python_type(self) -> type:
        return types.GeneratorType

    def next_or_none(self, evaluator: Evaluator) -> Variable | None:
        frame = self.frame
        if frame.finished:
            return None
        frame.parent = evaluator.state.current
        frame.suspended = False
        frame.result = None
        element = frame.run()
        if frame.finished:
            return None
        # What send(None) gives to the yield expression.
        frame.stack.append(evaluator.wrap_constant(None))
        return element
