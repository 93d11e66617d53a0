"""Functions that compiled code calls to make iterators in the middle of their elements.

Each gives an iterator of the class that the program made, which goes on where the captured code stopped.
None runs code of the program: what has been taken from an iterator is put back in front of it.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any


def indexed_iterator(iterated: Any, position: int) -> Iterator[Any]:
    """``iter(iterated)`` of a sequence, at ``position``."""
    iterator: Any = iter(iterated)
    iterator.__setstate__(position)
    made: Iterator[Any] = iterator
    return made


def reversed_iterator(iterated: list[Any], position: int) -> Iterator[Any]:
    """``reversed(iterated)`` that gives the element at ``position`` next; at its end if there is none."""
    iterator: Any = reversed(iterated)
    iterator.__setstate__(position if position < len(iterated) else -1)
    made: Iterator[Any] = iterator
    return made


def advanced_iterator(iterable: Iterable[Any], position: int) -> Iterator[Any]:
    """``iter(iterable)``, ``position`` elements on, or at its end."""
    iterator = iter(iterable)
    for _ in range(position):
        next(iterator, None)
    return iterator


def sentinel_iterator(ended: bool, function: Any, sentinel: Any) -> Iterator[Any]:
    """``iter(function, sentinel)``."""
    return advanced_iterator(iter(int, 0), 1) if ended else iter(function, sentinel)


def chain(iterables: Iterator[Any], *current: Iterator[Any]) -> Iterator[Any]:
    """``chain.from_iterable(iterables)``, in the middle of ``current`` if it is given."""
    return itertools.chain.from_iterable(itertools.chain(current, iterables))


def cycle(rest: Iterator[Any], seen: tuple[Any, ...]) -> Iterator[Any]:
    """``cycle`` of an iterable of which ``seen`` has been taken and ``rest`` is left."""
    return itertools.cycle(itertools.chain(rest, seen))


def accumulate(rest: Iterator[Any], function: Any, initial: Any, *total: Any) -> Iterator[Any]:
    """``accumulate`` that has given ``total``, or nothing yet."""
    if not total:
        return itertools.accumulate(rest, function, initial=initial)
    iterator = itertools.accumulate(itertools.chain(total, rest), function)
    next(iterator)
    return iterator


def takewhile(passed: bool, predicate: Any, rest: Iterator[Any]) -> Iterator[Any]:
    """``takewhile``; of one at its end ``rest`` is empty."""
    return itertools.takewhile(predicate, rest)


def dropwhile(passed: bool, predicate: Any, rest: Iterator[Any]) -> Iterator[Any]:
    """``dropwhile``, whose predicate was false once if ``passed``."""
    return itertools.dropwhile(_false if passed else predicate, rest)


def _false(element: object) -> bool:
    return False


def zip_longest(fill_value: Any, *iterators: Iterator[Any]) -> Iterator[Any]:
    """``zip_longest``; iterators at their end are empty ones."""
    return itertools.zip_longest(*iterators, fillvalue=fill_value)


def strict_zip(*iterators: Iterator[Any]) -> Iterator[Any]:
    """``zip(..., strict=True)``."""
    return zip(*iterators, strict=True)


def strict_map(function: Callable[..., Any], *iterators: Iterator[Any]) -> Iterator[Any]:
    """``map(..., strict=True)``, which CPython 3.14 has."""
    make: Any = map
    made: Iterator[Any] = make(function, *iterators, strict=True)
    return made


def pairwise(rest: Iterator[Any], *previous: Any) -> Iterator[Any]:
    """``pairwise`` that has given a pair which ends with ``previous``."""
    return itertools.pairwise(itertools.chain(previous, rest))


def batched(rest: Iterator[Any], size: int, is_strict: bool) -> Iterator[Any]:
    """``batched`` of the elements that are left; CPython 3.12 has it, without ``strict``."""
    make: Any = vars(itertools)["batched"]
    made: Iterator[Any] = make(rest, size, **({"strict": True} if is_strict else {}))
    return made


def combinatoric(
    kind: Callable[..., Iterator[Any]], position: int, *arguments: Any
) -> Iterator[Any]:
    """An iterator of ``product``'s kin, ``position`` elements on."""
    return advanced_iterator(kind(*arguments), position)


def partial_function(
    function: Callable[..., Any], arguments: tuple[Any, ...], *keywords: Any
) -> functools.partial[Any]:
    """``functools.partial``, whose dict of keywords holds alternating keys and values."""
    made = functools.partial(function, *arguments)
    made.keywords.update(zip(keywords[::2], keywords[1::2], strict=True))
    return made
