"""``itertools.product`` and its kin, whose elements are choices from sequences."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from ...protocol import Evaluator
from ...variables.base import Variable
from ...variables.constant import ConstantVariable
from ..containers.sequences import TupleVariable
from ..containers.slices import index_value
from ..table import model
from . import rebuilding
from .builtin_iterators import LazyIteratorVariable


def _combinatoric(
    evaluator: Evaluator,
    kind: Any,
    pools: list[list[Variable]],
    chosen: Iterator[Any],
    again: list[Variable],
) -> Variable:
    """An iterator that takes its iterables in at once: positions are chosen in the ``pools``.

    ``again`` makes it again.
    """
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


@model(itertools.product)
def _product(
    evaluator: Evaluator, *iterables: Variable, repeat: Variable | None = None
) -> Variable:
    pools = [iterable.iterate(evaluator) for iterable in iterables]
    pools *= 1 if repeat is None else max(index_value(evaluator, repeat), 0)
    chosen = itertools.product(*(range(len(pool)) for pool in pools))
    again: list[Variable] = [TupleVariable(pool) for pool in pools]
    return _combinatoric(evaluator, itertools.product, pools, chosen, again)


@model(itertools.permutations)
def _permutations(evaluator: Evaluator, iterable: Variable, r: Variable | None = None) -> Variable:
    size = None if r is None or r.is_none() else index_value(evaluator, r)
    return _choices(evaluator, itertools.permutations, iterable.iterate(evaluator), size)


def _register_choice(kind: Any) -> None:
    @model(kind)
    def _choose(evaluator: Evaluator, iterable: Variable, r: Variable) -> Variable:
        pool = iterable.iterate(evaluator)
        return _choices(evaluator, kind, pool, index_value(evaluator, r))


for _kind in (itertools.combinations, itertools.combinations_with_replacement):
    _register_choice(_kind)


def _choices(evaluator: Evaluator, kind: Any, pool: list[Variable], size: int | None) -> Variable:
    count = len(pool) if size is None else size
    chosen = evaluator.pure(kind, range(len(pool)), count)
    again: list[Variable] = [TupleVariable(pool), ConstantVariable(count)]
    return _combinatoric(evaluator, kind, [pool] * count, chosen, again)
