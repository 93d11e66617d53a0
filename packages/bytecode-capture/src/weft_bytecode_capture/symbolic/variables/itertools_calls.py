"""How the classes of ``itertools`` are called."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...unsupported import Unsupported
from .base import Variable
from .classes import CLASS_CALLS, ClassCall
from .constant import ConstantVariable

if TYPE_CHECKING:
    from ..evaluator import Evaluator

Maker = Callable[..., Variable]


def makes_iterator(kind: type, **defaults: Any) -> Callable[[Maker], Maker]:
    """Register how an iterator class is called; ``defaults`` are its keyword parameters' defaults."""

    def register(make: Maker) -> Maker:
        def call(
            evaluator: Evaluator, arguments: list[Variable], keywords: dict[str, Variable]
        ) -> Variable:
            if keywords.keys() - defaults.keys():
                raise Unsupported("keyword arguments of a builtin class", kind.__name__)
            named = {
                name: keywords.get(name, ConstantVariable(value))
                for name, value in defaults.items()
            }
            return make(evaluator, *arguments, **named)

        CLASS_CALLS[kind] = _checked(kind, call)
        return make

    return register


def _checked(kind: type, call: ClassCall) -> ClassCall:
    def checked(
        evaluator: Evaluator, arguments: list[Variable], keywords: dict[str, Variable]
    ) -> Variable:
        most, least = _MOST.get(kind, _ANY), _LEAST.get(kind, 0)
        if len(arguments) < least or len(arguments) + len(keywords) > most:
            raise Unsupported("arguments of a builtin class", kind.__name__)
        return call(evaluator, arguments, keywords)

    return checked


_ANY = 1_000

_MOST: dict[type, int] = {
    itertools.islice: 4, itertools.count: 2, itertools.repeat: 2, itertools.cycle: 1,
    itertools.accumulate: 3, itertools.takewhile: 2, itertools.dropwhile: 2, itertools.starmap: 2,
    itertools.compress: 2, itertools.filterfalse: 2, itertools.pairwise: 1, itertools.groupby: 2,
    itertools.combinations: 2, itertools.permutations: 2, itertools.combinations_with_replacement: 2,
}  # fmt: skip
_LEAST: dict[type, int] = {
    itertools.islice: 2, itertools.repeat: 1, itertools.cycle: 1, itertools.accumulate: 1,
    itertools.takewhile: 2, itertools.dropwhile: 2, itertools.starmap: 2, itertools.compress: 2,
    itertools.filterfalse: 2, itertools.pairwise: 1, itertools.combinations: 2,
    itertools.permutations: 1, itertools.groupby: 1, itertools.combinations_with_replacement: 2,
}  # fmt: skip


def is_none(variable: Variable) -> bool:
    return variable.is_constant() and variable.as_constant() is None
