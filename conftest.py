"""What every run of tests stands on, whichever package's they are."""

from __future__ import annotations

import gc
import logging
import os

import pytest

from tests.coverage import choice
from tests.coverage.sampling import Share, mark_like_others, mark_pairs


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--one-in",
        type=Share.parse,
        metavar="N[:K]",
        help="run one test in N, by a hash of its name: those that leave K (0)",
    )


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
    """Mark `slow` what proves what others prove.

    Of three parameters or more every two values meet that meet in any case, so that faults of one value and
    of two that meet are found. Of two, where cases are costly, every value has a case.
    With ``WEFT_LEAVE_OUT``, of what is left those that `nox -s sample` found to reach nothing of their own.
    """
    functions: dict[str, list[pytest.Function]] = {}
    for item in items:
        if isinstance(item, pytest.Function) and len(list(item.iter_markers("parametrize"))) > 1:
            functions.setdefault(item.nodeid.partition("[")[0], []).append(item)
    mark_pairs(functions)
    if "WEFT_LEAVE_OUT" in os.environ:
        mark_like_others(items, choice.read_list())
    share: Share | None = config.getoption("--one-in")
    if share is not None:
        config.hook.pytest_deselected(items=[item for item in items if not share.has(item.nodeid)])
        items[:] = [item for item in items if share.has(item.nodeid)]


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
