"""What every run of tests stands on, whichever package's they are."""

from __future__ import annotations

import gc
import heapq
import itertools
import logging
from collections.abc import Iterable, Mapping, Sequence

import pytest

from tests.coverage import choice

COMPILING = ("tests", *(f"packages/{name}" for name in ("weft", "codegen-cpp", "codegen-triton")))
"""Where a case takes tenths of a second: most run a compiler."""

PROBES = "tests.coverage.probes"
"""The plugin that measures what the list is made of."""

Case = tuple[tuple[str, int], ...]
"""Which value of each parameter a case has."""


def pytest_pycollect_makeitem(
    collector: pytest.Module | pytest.Class, obj: object
) -> list[pytest.Item] | None:
    """Make no cases of a function that is `slow` where those are left out: there are tens of thousands."""
    marks = getattr(obj, "pytestmark", ())
    is_slow = isinstance(marks, list) and any(mark.name == "slow" for mark in marks)
    is_left_out = "not slow" in collector.config.getoption("markexpr")
    return [] if is_slow and is_left_out else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark `slow` those cases that prove what others prove.

    Of three parameters or more every two values meet that meet in any case, so that faults of one value and
    of two that meet are found. Of two, where cases are costly, every value has a case.
    Of what is left, cases that `nox -s sample` found to reach no branch and no operator of their own.
    """
    functions: dict[str, list[pytest.Function]] = {}
    for item in items:
        if isinstance(item, pytest.Function) and len(list(item.iter_markers("parametrize"))) > 1:
            functions.setdefault(item.nodeid.partition("[")[0], []).append(item)
    mark_pairs(functions)
    if not config.pluginmanager.hasplugin(PROBES):
        mark_like_others(items, choice.read_list())


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
    """Leave out what the list says of functions whose cases are still as many as when it was written."""
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        if not any(item.get_closest_marker(name) for name in ("slow", "gpu")):
            cases.setdefault(choice.function_of(item.nodeid), []).append(item)
    for function, some in cases.items():
        left = listed.get(function)
        if left is not None and left.cases == len(some):
            for item in some:
                if item.nodeid[len(function) :] in left.out:
                    item.add_marker(pytest.mark.slow)


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


COLLECTED_OBJECTS = 100_000
"""New objects from which garbage is looked for, which takes a tenth of the time of captures with fewer."""


def pytest_collection_finish() -> None:
    keep_trace_quiet()
    freeze_collected()


def keep_trace_quiet() -> None:
    """Keep pytest's handlers, which each logger that doesn't propagate gets, from torch's trace.

    With any handler torch describes each guard on a size there, with its stack.
    """
    trace = logging.getLogger("torch.__trace")
    trace.propagate = True
    trace.handlers.clear()


def freeze_collected() -> None:
    """Leave what is imported and collected out of the tests' own collections of garbage.

    Those are hundreds, and each would visit millions of objects, for half a second.
    """
    gc.collect()
    gc.freeze()
    _, *older = gc.get_threshold()
    gc.set_threshold(COLLECTED_OBJECTS, *older)
