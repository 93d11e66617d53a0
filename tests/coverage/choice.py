"""Which cases of the default run reach what others reach, too: `nox -s sample` writes them to ``LIST``.

``python -m tests.coverage.choice FOLDER...``: each has what ``tests.coverage.probes`` wrote of a part of the
suite.  A case is left out where every branch of weft and every operator that it reaches is reached by
cases of the same part that stay.  Of a function's cases at least ``LEAST`` stay, whatever they reach, and one
of each value of several parameters and of each dtype, by their names; quick cases stay, too.
What was chosen first may have become unneeded by what was chosen later: the longest such cases go.
"""

from __future__ import annotations

import heapq
import itertools
import math
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path

LIST = Path(__file__).parent / "like_others.txt"
QUICK = 0.05
"""Seconds: a case that takes less stays, there is nothing to save."""

LEAST = 0.1
"""Of a function's cases, one at least."""

UNSEEN = "unseen"
"""The feature of a test that fails, or starts a process whose part is not written."""

STARTS = "starts"
CHILD = "child"
"""See `tests.coverage.probes`."""

DTYPE = re.compile(r" (torch\.)?(dtype|b?float|u?int|complex)\d+$")
"""At the end of a value's feature: how pytest names a dtype."""

FIRST = 0.05
"""Seconds that every test is taken to need besides its own, so that the quickest don't all come first."""


@dataclass(frozen=True)
class Reached:
    seconds: float
    features: frozenset[str]


@dataclass(frozen=True)
class Left:
    """The cases of a function that are left out of the default run, of so many that it had."""

    cases: int
    out: frozenset[str]


def function_of(test: str) -> str:
    return test.partition("[")[0]


def with_values(reached: Mapping[str, Reached]) -> dict[str, Reached]:
    """Each case's values, among what it reaches: those that other cases of its function have, and dtypes."""

    def values(test: str) -> list[str]:
        function = function_of(test)
        return [f"{function} {value}" for value in test[len(function) + 1 : -1].split("-")]

    count = Counter(value for test in reached for value in values(test))
    return {
        test: Reached(
            one.seconds,
            one.features.union(v for v in values(test) if count[v] > 1 or DTYPE.search(v)),
        )
        for test, one in reached.items()
    }


def read_reached(folder: Path) -> dict[str, Reached]:
    """What each test of a part reached, by its id, with the processes of Python that it started.

    Where one of those wrote nothing, as it was killed or its environment is another, not all is seen.
    """
    seconds, features = dict[str, float](), dict[str, set[str]]()
    unwritten = Counter[str]()
    for file in sorted(folder.glob("*.tsv")):
        names: list[str] = []
        for line in file.read_text().splitlines():
            test, *rest = line.split("\t")
            if not test:
                names += rest
                continue
            reached = {names[int(number)] for number in rest[1:]}
            started = {name for name in reached if name.startswith(f"{STARTS} ")}
            unwritten[test] += len(started) - (CHILD in reached)
            seconds[test] = seconds.get(test, 0) + float(rest[0])
            features.setdefault(test, set()).update(reached - started - {CHILD})
    for test, number in unwritten.items():
        if number > 0:
            features[test].add(UNSEEN)
    return {test: Reached(seconds[test], frozenset(reached)) for test, reached in features.items()}


def kept(reached: Mapping[str, Reached]) -> set[str]:
    """The tests that stay: all that are no cases, quick or reach what isn't seen, then some cases of each
    function, then those that reach more.
    """
    count = Counter(map(function_of, reached))
    cases: dict[str, list[str]] = {}
    stay, have = set[str](), set[str]()
    for test, one in reached.items():
        costly = one.seconds >= QUICK and UNSEEN not in one.features
        if count[function_of(test)] > 1 and costly:
            cases.setdefault(function_of(test), []).append(test)
        else:
            stay.add(test)
            have |= one.features
    for some in cases.values():
        first = itertools.islice(in_order(some, reached, set()), math.ceil(LEAST * len(some)))
        for test, _ in first:
            stay.add(test)
            have |= reached[test].features
    rest = [test for some in cases.values() for test in some if test not in stay]
    chosen = stay | {test for test, new in in_order(rest, reached, have) if new}
    return chosen - unneeded(reached, chosen, cases)


def unneeded(
    reached: Mapping[str, Reached], chosen: Set[str], cases: Mapping[str, Sequence[str]]
) -> set[str]:
    """Those of the functions' cases, the longest first, all of whose features others of the chosen have."""
    found = set[str]()
    have = Counter(feature for test in chosen for feature in reached[test].features)
    least = {function: math.ceil(LEAST * len(some)) for function, some in cases.items()}
    costly = [test for some in cases.values() for test in some if test in chosen]
    left = Counter(map(function_of, costly))
    for test in sorted(costly, key=lambda test: (-reached[test].seconds, test)):
        function, features = function_of(test), reached[test].features
        if left[function] > least[function] and all(have[feature] > 1 for feature in features):
            found.add(test)
            left[function] -= 1
            have.subtract(features)
    return found


def in_order(
    tests: Iterable[str], reached: Mapping[str, Reached], have: set[str]
) -> Iterator[tuple[str, int]]:
    """Those first that reach most that none before them did, for their time; and how much that is."""
    have = set(have)

    def candidate(number: int, test: str) -> tuple[float, int, str, int]:
        new = len(reached[test].features - have)
        return -new / (reached[test].seconds + FIRST), number, test, new

    left = [candidate(number, test) for number, test in enumerate(tests)]
    heapq.heapify(left)
    while left:
        _, number, test, _ = left[0]
        now = candidate(number, test)
        if now > left[0]:  # others have had some of it: it adds less than it did
            heapq.heapreplace(left, now)
            continue
        heapq.heappop(left)
        have |= reached[test].features
        yield test, now[-1]


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
            lines += [f"{function} {left.cases}", *(f"    {case}" for case in sorted(left.out))]
    LIST.write_text("".join(f"{line}\n" for line in lines))


def main(folders: list[str]) -> None:
    found = read_list()
    for folder in folders:
        reached = with_values(read_reached(Path(folder)))
        stay = kept(reached)
        count = Counter(map(function_of, reached))
        out: dict[str, set[str]] = {function: set() for function in count}
        for test in reached.keys() - stay:
            out[function_of(test)].add(test[len(function_of(test)) :])
        found |= {f: Left(count[f], frozenset(cases)) for f, cases in out.items()}
        seconds = [sum(reached[test].seconds for test in tests) for tests in (reached, stay)]
        sys.stdout.write(
            f"{folder}: {len(stay)} of {len(reached)} tests, {seconds[1]:.0f} of {seconds[0]:.0f} seconds\n"
        )
    write_list(found)


if __name__ == "__main__":
    main(sys.argv[1:])
