"""Iterators over others: ``zip``, ``enumerate`` and ``map``."""

from __future__ import annotations

from collections.abc import Sequence

from ...protocol import Evaluator
from ...variables.base import Variable
from ...variables.constant import ConstantVariable
from ..containers.sequences import TupleVariable
from .builtin_iterators import IteratorVariable, LazyIteratorVariable, kept_iterator
from .rebuilding import strict_map, strict_zip


class JointIteratorVariable(LazyIteratorVariable):
    """``enumerate`` or ``zip`` of ``joined``, and of ``iterators`` where nothing else can advance these.

    ``count`` is the next number of ``enumerate``; ``is_strict``: all have to end together.
    """

    joined: Sequence[Variable] = ()
    iterators: list[Variable] | None = None
    count: int | None = None
    is_strict = False

    def remaining(self, evaluator: Evaluator) -> int | None:
        parts = [p for p in self.joined if isinstance(p, IteratorVariable)]
        counts = [count for p in parts if (count := p.remaining(evaluator)) is not None]
        return min(counts) if counts and len(counts) == len(self.joined) else None


def _iterators(
    evaluator: Evaluator, iterables: Sequence[Variable]
) -> tuple[list[Variable], list[Variable] | None]:
    """Iterators over the iterables; again if all are new, or zip and enumerate of such."""
    made = [kept_iterator(evaluator, i) or i.iterator(evaluator) for i in iterables]
    known = all(
        iterator is not iterable
        or (isinstance(iterator, JointIteratorVariable) and iterator.iterators is not None)
        for iterator, iterable in zip(made, iterables, strict=True)
    )
    return made, made if known else None


def enumerate_iterator(evaluator: Evaluator, iterable: Variable, start: int) -> Variable:
    (iterator,), joint = _iterators(evaluator, [iterable])

    def step(evaluator: Evaluator) -> Variable | None:
        element = iterator.next_or_none(evaluator)
        if element is None:
            return None
        assert made.count is not None
        made.count += 1
        return TupleVariable([ConstantVariable(made.count - 1), element])

    made = JointIteratorVariable(enumerate, step, lambda: [iterator, ConstantVariable(made.count)])
    made.joined, made.iterators, made.count = [iterator], joint, start
    return made


def zip_iterator(evaluator: Evaluator, iterables: Sequence[Variable], strict: bool) -> Variable:
    iterators, joint = _iterators(evaluator, iterables)

    def step(evaluator: Evaluator) -> Variable | None:
        elements = _next_of_each(evaluator, zip, iterators, strict)
        return TupleVariable(elements) if elements else None

    made = JointIteratorVariable(zip, step, lambda: iterators, strict_zip if strict else None)
    made.joined, made.iterators, made.is_strict = iterators, joint, strict
    return made


def _next_of_each(
    evaluator: Evaluator, kind: type, iterators: list[Variable], strict: bool
) -> list[Variable] | None:
    """The next elements; None if one has ended, as all have to at once if ``strict``."""
    elements: list[Variable] = []
    for number, iterator in enumerate(iterators):
        element = iterator.next_or_none(evaluator)
        if element is not None:
            elements.append(element)
            continue
        if strict and number:
            _raise_of_other_length(evaluator, kind, number, "shorter")
        if strict:
            _require_all_ended(evaluator, kind, iterators)
        return None
    return elements


def _require_all_ended(evaluator: Evaluator, kind: type, iterators: list[Variable]) -> None:
    for number, iterator in enumerate(iterators):
        if number and iterator.next_or_none(evaluator) is not None:
            _raise_of_other_length(evaluator, kind, number, "longer")


def _raise_of_other_length(evaluator: Evaluator, kind: type, number: int, how: str) -> None:
    plural = "s 1-" if number > 1 else " "
    evaluator.raise_error(
        ValueError,
        f"{kind.__name__}() argument {number + 1} is {how} than argument{plural}{number}",
    )


def map_iterator(
    evaluator: Evaluator, function: Variable, iterables: Sequence[Variable], strict: bool = False
) -> Variable:
    iterators = [iterable.iterator(evaluator) for iterable in iterables]

    def step(evaluator: Evaluator) -> Variable | None:
        elements = _next_of_each(evaluator, map, iterators, strict)
        return None if elements is None else function.call(evaluator, elements, {})

    make = strict_map if strict else None
    return LazyIteratorVariable(map, step, lambda: [function, *iterators], make)


def note_creation(evaluator: Evaluator, made: Variable) -> None:
    """Let an iterator, or those in a tuple, know the root frame's instruction that made it."""
    root = evaluator.state.root
    if type(made) is TupleVariable:
        for part in made.iterate(evaluator):
            note_creation(evaluator, part)
    elif isinstance(made, IteratorVariable) and made.created_at is None and root is not None:
        made.created_at = root.index
