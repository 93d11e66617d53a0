"""Functions from outside the frame: known by identity, or by what they are made of where they vary.

A program that passes a new ``lambda`` in every call passes other functions of the same code.  Where an
earlier compilation found another function at the same place, the guards check what the function is made of:
code, globals, defaults, and the contents of the cells that are read.
"""

from __future__ import annotations

import types
from typing import Any

from weft_guards import DictContains, IsObject, ItemSource, LengthIs, SameObject, Source, TypeIs

from ...protocol import Evaluator
from ...variables.base import Variable
from ...variables.builder import register_wrapper
from ...variables.hashing import HashedKey
from .cells import CellVariable
from .python_functions import KnownFunctionVariable


class VaryingFunctionVariable(KnownFunctionVariable):
    """A function that stands for all of the same code."""

    source: Source

    def identify(self, evaluator: Evaluator) -> None:
        evaluator.guard(self.source, IsObject(self.value, weak=True))

    def globals_dictionary(self, evaluator: Evaluator) -> dict[str, Any]:
        evaluator.guard(self._own("__globals__"), IsObject(self.value.__globals__))
        return self.value.__globals__

    def default_count(self, evaluator: Evaluator) -> int:
        self._guard_defaults(evaluator)
        return super().default_count(evaluator)

    def default(self, evaluator: Evaluator, index: int) -> Variable:
        assert self.value.__defaults__ is not None
        self._guard_defaults(evaluator)
        place = ItemSource(self._own("__defaults__"), index)
        return evaluator.builder.wrap(self.value.__defaults__[index], place)

    def _guard_defaults(self, evaluator: Evaluator) -> None:
        defaults, place = self.value.__defaults__, self._own("__defaults__")
        if defaults is None:
            evaluator.guard(place, IsObject(None))
        else:
            evaluator.guard(place, TypeIs(tuple))
            evaluator.guard(place, LengthIs(len(defaults)))

    def keyword_default(self, evaluator: Evaluator, name: str) -> Variable | None:
        defaults, place = self.value.__kwdefaults__, self._own("__kwdefaults__")
        if defaults is None:
            evaluator.guard(place, IsObject(None))
        elif name not in defaults:
            evaluator.guard(place, DictContains(name, False))
        return super().keyword_default(evaluator, name)

    def closure_cells(self, evaluator: Evaluator) -> list[CellVariable]:
        # Cells are told apart by the names of their variables: one that the frame's own code has as well
        # may be the frame's cell in one call and another in the next.
        if set(self.value.__code__.co_freevars) & set(evaluator.state.frame.code.co_freevars):
            self.identify(evaluator)
        for index, cell in enumerate(self.value.__closure__ or ()):
            known = evaluator.builder.known(cell)
            source = ItemSource(self._own("__closure__"), index)
            if known is not None and known.source not in (None, source):
                evaluator.guard(source, SameObject(known.source))
        return super().closure_cells(evaluator)

    def hashed_key(self, evaluator: Evaluator) -> HashedKey:
        self.identify(evaluator)
        return super().hashed_key(evaluator)


@register_wrapper(types.FunctionType)
def _wrap_function(evaluator: Evaluator, value: types.FunctionType, source: Source) -> Variable:
    if evaluator.state.frame.history.object_changed(source, value):
        evaluator.guard(source, TypeIs(types.FunctionType))
        return VaryingFunctionVariable(value, source)
    evaluator.guard(source, IsObject(value, weak=True))
    return KnownFunctionVariable(value, source)
