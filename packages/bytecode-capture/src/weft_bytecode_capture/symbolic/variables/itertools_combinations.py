"""``itertools.product`` and its kin, whose elements are choices from sequences."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from . import rebuilding
from .base import Variable
from .constant import ConstantVariable
from .iterators import LazyIteratorVariable
from .itertools_calls import is_none, makes_iterator
from .sequences import TupleVariable, index_value

if TYPE_CHECKING:
    from ..evaluator import Evaluator


def _combinatoric(kind: Any, choose: Callable[..., Any]) -> None:
    """Iterators that take their iterables in at once: positions are chosen, elements follow."""

    def make(evaluator: Evaluator, *arguments: Variable, **named: Variable) -> Variable:
        pools, chosen, again = choose(evaluator, *arguments, **named)
        given = 0

        def step(evaluator: Evaluator) -> Variable | None:
            nonlocal given
            positions = next(chosen, None)
            if positions is None:
                return None
            given += 1
            pairs = zip(pools, positions, strict=True)
            return TupleVariable([pool[position] for pool, position in pairs])

        def parts() -> list[Variable]:
            return [evaluator.wrap_known(kind), ConstantVariable(given), *again]

        return LazyIteratorVariable(kind, step, parts, rebuilding.combinatoric)

    defaults = {"repeat": 1} if kind is itertools.product else {}
    makes_iterator(kind, **defaults)(make)


_Choice = tuple[list[list[Variable]], Any, list[Variable]]
"""Where each element of a choice is taken from, the positions chosen, and what makes the iterator again."""


def _product(evaluator: Evaluator, *iterables: Variable, repeat: Variable) -> _Choice:
    pools = [iterable.iterate(evaluator) for iterable in iterables]
    pools *= max(index_value(evaluator, repeat), 0)
    chosen = itertools.product(*(range(len(pool)) for pool in pools))
    return pools, chosen, [TupleVariable(pool) for pool in pools]


def _choice(kind: Any) -> Callable[..., _Choice]:
    def choose(evaluator: Evaluator, iterable: Variable, *count: Variable) -> _Choice:
        pool = iterable.iterate(evaluator)
        size = len(pool) if not count or is_none(count[0]) else index_value(evaluator, count[0])
        chosen = evaluator.pure(kind, range(len(pool)), size)
        return [pool] * size, chosen, [TupleVariable(pool), ConstantVariable(size)]

    return choose


_combinatoric(itertools.product, _product)
for _kind in (
    itertools.combinations, itertools.permutations, itertools.combinations_with_replacement,
):  # fmt: skip
    _combinatoric(_kind, _choice(_kind))
