"""Which tests of the default run reach what others reach, too: `nox -s sample` writes them to ``LIST``.

``python -m tests.coverage.choice FOLDER...``: each has what ``tests.coverage.probes`` wrote of a part of the
suite.  A test is left out where every branch of weft, every operator with its dtype and every operation of
loop bodies that it reaches is reached by tests of ``ENOUGH`` other functions that stay, of whichever part.
Each value of several parameters of a function and each dtype, by the names of its cases, is to be reached
as well.  Quick tests stay, and of each function the quickest unless it is ``DEAR``, whatever they reach.
What was chosen first may have become unneeded by what was chosen later: the longest such tests go.
What was left out when that was measured stays on the list.
"""

from __future__ import annotations

import heapq
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from pathlib import Path

LIST = Path(__file__).parent / "like_others.txt"
QUICK = 0.05
"""Seconds: a test that takes less stays, there is nothing to save."""

DEAR = 1.0
"""Seconds: a function's quickest case stays if it takes less, whatever it reaches."""

ENOUGH = 2
"""By tests of how many functions each feature is to be reached, where so many have `CHEAP` ones that do."""

CHEAP = 0.2
"""Seconds: for less a feature is reached once more."""

COMMON = 500
"""Tests: what more of them reach is reached by some that stay."""

UNSEEN = "unseen"
"""The feature of a test that fails, or starts a process whose part is not written."""

STARTS = "starts"
CHILD = "child"
"""See `tests.coverage.probes`."""

DTYPE = re.compile(r" (torch\.)?(dtype|b?float|u?int|complex)\d+$")
"""At the end of a value's feature: how pytest names a dtype."""

FIRST = 0.05
"""Seconds that every test is taken to need besides its own, so that the quickest don't all come first."""


ALL = "*"
"""In the list, for all cases of a function, or what has none."""


@dataclass(frozen=True)
class Reached:
    seconds: float
    features: frozenset[str]


@dataclass(frozen=True)
class Left:
    """The cases of a function that are left out of the default run, of so many that it had."""

    cases: int
    out: frozenset[str]

    def has(self, case: str) -> bool:
        return case in self.out or ALL in self.out


def function_of(test: str) -> str:
    return test.partition("[")[0]


def with_values(reached: Mapping[str, Reached], not_run: Iterable[str] = ()) -> dict[str, Reached]:
    """Each case's values, among what it reaches: those that other cases of its function have, and dtypes.

    Of these others some are ``not_run``: they were left out before.
    """

    def values(test: str) -> set[str]:
        function, _, case = test.partition("[")
        return {f"{function} {value}" for value in case[:-1].split("-")} if case else set()

    count = Counter(value for test in (*reached, *not_run) for value in values(test))
    return {
        test: Reached(
            one.seconds,
            one.features.union(v for v in values(test) if count[v] > 1 or DTYPE.search(v)),
        )
        for test, one in reached.items()
    }


def read_reached(folders: Iterable[Path]) -> dict[str, Reached]:
    """What each test reached, by its id, with the processes of Python that it started.

    Where one of those wrote nothing, as it was killed or its environment is another, not all is seen.
    What very many reach is left away: some of them stay.
    """
    files = [file for folder in folders for file in sorted(folder.glob("*.tsv"))]
    count = Counter[str]()
    for file in files:
        for _, _, features in lines_of(file):
            count.update(features)
    few = {feature: feature for feature, number in count.items() if number <= COMMON}
    seconds, reached = dict[str, float](), dict[str, set[str]]()
    unwritten = Counter[str]()
    for file in files:
        for test, taken, features in lines_of(file):
            started = sum(feature.startswith(f"{STARTS} ") for feature in features)
            unwritten[test] += started - (CHILD in features)
            seconds[test] = seconds.get(test, 0) + taken
            reached.setdefault(test, set()).update(few[f] for f in features if f in few)
    for test, number in unwritten.items():
        reached[test] = {f for f in reached[test] if f != CHILD and not f.startswith(f"{STARTS} ")}
        if number > 0:
            reached[test].add(UNSEEN)
    return {test: Reached(seconds[test], frozenset(some)) for test, some in reached.items()}


def lines_of(file: Path) -> Iterator[tuple[str, float, list[str]]]:
    """The test, the seconds and the features of each line."""
    names: list[str] = []
    with file.open() as lines:
        for line in lines:
            test, *rest = line.rstrip("\n").split("\t")
            if test:
                yield test, float(rest[0]), [names[int(number)] for number in rest[1:]]
            else:
                names += rest


def kept(reached: Mapping[str, Reached]) -> set[str]:
    """The tests that stay: quick ones and those that reach what isn't seen, a case of each function that
    isn't dear, then those that reach what fewer than `ENOUGH` functions of the others do.
    """
    cheap = {feature: set[str]() for one in reached.values() for feature in one.features}
    for test, one in reached.items():
        for feature in one.features if one.seconds < CHEAP else ():
            cheap[feature].add(function_of(test))
    needed = {feature: max(1, min(ENOUGH, len(some))) for feature, some in cheap.items()}
    stay = {test for test, one in reached.items() if one.seconds < QUICK or UNSEEN in one.features}
    stay |= set(quickest_of_others(reached, stay))
    found = Found(reached, needed, stay)
    chosen = stay.union(in_order(reached.keys() - stay, found))
    return chosen - unneeded(found, chosen - stay)


def quickest_of_others(reached: Mapping[str, Reached], stay: Set[str]) -> Iterator[str]:
    """Of each function without a case in ``stay`` the quickest, where that isn't dear."""
    first = dict[str, str]()
    for test in sorted(reached, key=lambda test: (reached[test].seconds, test)):
        first.setdefault(function_of(test), test)
    for function in first.keys() - set(map(function_of, stay)):
        if reached[first[function]].seconds < DEAR:
            yield first[function]


class Found:
    """By how many tests of each function every feature is reached, of those that were added."""

    def __init__(
        self, reached: Mapping[str, Reached], needed: Mapping[str, int], tests: Iterable[str]
    ) -> None:
        self.reached, self.needed = reached, needed
        self.tests = set[str]()
        self.counts: dict[str, Counter[str]] = {feature: Counter() for feature in needed}
        for test in tests:
            self.add(test)

    def add(self, test: str) -> None:
        self.tests.add(test)
        for feature in self.reached[test].features:
            self.counts[feature][function_of(test)] += 1

    def new(self, test: str) -> int:
        """How many features it reaches that not enough functions do, its own not among them."""
        function, features = function_of(test), self.reached[test].features
        counts = ((feature, self.counts[feature]) for feature in features)
        return sum(len(c) < self.needed[f] and function not in c for f, c in counts)

    def is_needed(self, test: str) -> bool:
        """Whether without it a feature would be reached by fewer functions than are asked for."""
        function, features = function_of(test), self.reached[test].features
        counts = ((feature, self.counts[feature]) for feature in features)
        return any(c[function] == 1 and len(c) == self.needed[f] for f, c in counts)

    def remove(self, test: str) -> None:
        self.tests.remove(test)
        for feature in self.reached[test].features:
            self.counts[feature] -= Counter([function_of(test)])


def unneeded(found: Found, chosen: Set[str]) -> set[str]:
    """Those of the chosen, the longest first, all of whose features enough functions of the others reach."""
    out = set[str]()
    for test in sorted(chosen, key=lambda test: (-found.reached[test].seconds, test)):
        if not found.is_needed(test):
            found.remove(test)
            out.add(test)
    return out


def in_order(tests: Iterable[str], found: Found) -> Iterator[str]:
    """Those first that reach most that is missing, for their time; they are added while they reach any."""

    def candidate(test: str) -> tuple[float, str]:
        return -found.new(test) / (found.reached[test].seconds + FIRST), test

    left = [candidate(test) for test in tests]
    heapq.heapify(left)
    while left:
        now = candidate(left[0][1])
        if now > left[0]:  # others have had some of it: it adds less than it did
            heapq.heapreplace(left, now)
            continue
        worth, test = heapq.heappop(left)
        if not worth:
            return
        found.add(test)
        yield test


def read_list() -> dict[str, Left]:
    """By function, with its file, what the list has."""
    found: dict[str, Left] = {}
    if LIST.is_file():
        for line in LIST.read_text().splitlines():
            if line.startswith("    "):
                function, left = found.popitem()
                found[function] = Left(left.cases, left.out | {line.strip()})
            else:
                function, _, cases = line.rpartition(" ")
                found[function] = Left(int(cases), frozenset())
    return found


def write_list(found: Mapping[str, Left]) -> None:
    lines = []
    for function, left in sorted(found.items()):
        if left.out:
            is_whole = len(left.out) == left.cases
            cases = {ALL} if is_whole else left.out
            lines += [f"{function} {left.cases}", *(f"    {case}" for case in sorted(cases))]
    LIST.write_text("".join(f"{line}\n" for line in lines))


def left_before(tests: Iterable[str], listed: Mapping[str, Left]) -> dict[str, Left]:
    """Of the functions of ``tests`` what was left out when those ran, of as many cases as they have now."""
    cases: dict[str, set[str]] = {}
    for test in tests:
        cases.setdefault(function_of(test), set()).add(test[len(function_of(test)) :])
    return {
        function: Left(len(some) + len(listed[function].out), listed[function].out)
        for function, some in cases.items()
        if function in listed and not any(map(listed[function].has, some))
    }


def chosen(
    reached: Mapping[str, Reached], stay: Set[str], before: Mapping[str, Left]
) -> dict[str, Left]:
    """What to leave out of each function now, with what was left out ``before``."""
    count = Counter(map(function_of, reached))
    found = {f: before.get(f, Left(number, frozenset())) for f, number in count.items()}
    for test in reached.keys() - stay:
        function = function_of(test)
        left = found[function]
        found[function] = Left(left.cases, left.out | {test[len(function) :]})
    return found


def main(folders: list[str]) -> None:
    found, listed = read_reached(map(Path, folders)), read_list()
    before = left_before(found, listed)
    not_run = (function + case for function, left in before.items() for case in left.out)
    reached = with_values(found, not_run)
    stay = kept(reached)
    write_list(listed | chosen(reached, stay, before))
    seconds = [sum(reached[test].seconds for test in tests) for tests in (reached, stay)]
    sys.stdout.write(
        f"{len(stay)} of {len(reached)} tests, {seconds[1]:.0f} of {seconds[0]:.0f} seconds\n"
    )


if __name__ == "__main__":
    main(sys.argv[1:])
