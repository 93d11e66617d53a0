"""Marks `slow` what proves what others prove: of products of parameters, and what is on the list.

And one test in so many, which is what pairs of CPython and torch are tried on.
"""

from __future__ import annotations

import heapq
import itertools
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import pytest

from tests.coverage import choice

COMPILING = ("tests", *(f"packages/{name}" for name in ("weft", "codegen-cpp", "codegen-triton")))
"""Where a case takes tenths of a second: most run a compiler."""

Case = tuple[tuple[str, int], ...]
"""Which value of each parameter a case has."""


@dataclass(frozen=True)
class Share:
    """One test in so many, by a hash of its name: the same on every CPython and torch."""

    one_in: int
    remainder: int = 0

    @classmethod
    def parse(cls, text: str) -> Share:
        """``8``, or ``8:3`` for another eighth.  Raises `ValueError` for what is no share."""
        share = cls(*map(int, text.split(":", 1)))
        if not 0 <= share.remainder < share.one_in:
            raise ValueError(f"{share.remainder} is left by no division by {share.one_in}")
        return share

    def has(self, name: str) -> bool:
        return zlib.crc32(name.encode()) % self.one_in == self.remainder


def mark_pairs(functions: Mapping[str, Sequence[pytest.Function]]) -> None:
    for name, cases in functions.items():
        parameters = len(list(cases[0].iter_markers("parametrize")))
        if parameters == 2 and not name.startswith(COMPILING):
            continue
        kept = set(covering([case_of(item) for item in cases], min(parameters - 1, 2)))
        for number, item in enumerate(cases):
            if number not in kept:
                item.add_marker(pytest.mark.slow)


def mark_like_others(items: Sequence[pytest.Item], listed: Mapping[str, choice.Left]) -> None:
    """Leave out what the list says; of functions that have more or fewer cases than when it was written only
    what has a name that is its own, not its place among them.
    """
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        if not any(map(item.get_closest_marker, ("slow", "gpu", "kept"))):
            cases.setdefault(choice.function_of(item.nodeid), []).append(item)
    for function, some in cases.items():
        left = listed.get(function)
        if left is None:
            continue
        is_as_listed = left.cases == len(some)
        for item in some:
            case = item.nodeid[len(function) :]
            if left.has(case) if is_as_listed else case in left.out and not is_numbered(item):
                item.add_marker(pytest.mark.slow)


def is_numbered(item: pytest.Item) -> bool:
    """Whether pytest named a value of the case by its place: `x0` of a parameter `x`, or a lambda."""
    if (spec := getattr(item, "callspec", None)) is None:
        return False
    names = [getattr(value, "__name__", "") for value in spec.params.values()]
    ends = "|".join(re.escape(name) for name in (*spec.params, *names) if name)
    numbered = re.compile(f"({ends})_?[0-9]+")
    return "<lambda>" in names or any(map(numbered.fullmatch, spec.id.split("-")))


def case_of(item: pytest.Function) -> Case:
    """Cases share the objects that are their values."""
    return tuple((name, id(value)) for name, value in sorted(item.callspec.params.items()))


def covering(cases: Sequence[Case], together: int) -> Iterable[int]:
    """Numbers of cases that have all the values of any, by so many at once.

    The next is the one with most that no other has had, and of these the one whose values have been used
    least, so that they take turns.
    """
    parts = [set(itertools.combinations(case, together)) for case in cases]
    missing = set().union(*parts)
    used = dict.fromkeys(itertools.chain(*cases), 0)

    def order(number: int) -> tuple[int, int, int]:
        return -len(parts[number] & missing), sum(used[value] for value in cases[number]), number

    # A heap.  A case is worth less and less: what was counted earlier is too much, never too little.
    queue = sorted(map(order, range(len(cases))))
    while missing:
        counted = queue[0]
        best = counted[-1]
        if order(best) != counted:
            heapq.heapreplace(queue, order(best))
            continue
        missing -= parts[best]
        for value in cases[best]:
            used[value] += 1
        yield best
