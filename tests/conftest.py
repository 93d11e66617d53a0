"""What every cross-package test stands on.

What is tested is imported by the fixtures: of a run's processes the one that hands tests out needs none.
"""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import pytest

from tests.coverage.evaluation import EVALUATED, mark_evaluated

HERE = Path(__file__).parent


@pytest.hookimpl(trylast=True)  # once it is known which are slow
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mark_evaluated(item for item in items if item.path.is_relative_to(HERE))


def pytest_addoption(parser: pytest.Parser) -> None:
    with contextlib.suppress(ValueError):  # a run of several folders' tests has it from another one
        parser.addoption(
            "--update-golden",
            action="store_true",
            help="write the golden files instead of comparing",
        )


@pytest.fixture(autouse=True)
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise where weft would fall back to eager, since eager always equals eager."""
    monkeypatch.setenv("WEFT_STRICT", "1")


@pytest.fixture(autouse=True)
def evaluated(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    use_evaluator(request.node, monkeypatch)


def use_evaluator(case: pytest.Item, monkeypatch: pytest.MonkeyPatch) -> None:
    """Call no compiler for C++ in a case whose schedules are to be evaluated."""
    if case.stash.get(EVALUATED, False):
        import weft.registry

        from tests.fuzz.evaluated import EvaluatedCpp

        monkeypatch.setitem(weft.registry.codegens, "cpu", EvaluatedCpp)


@pytest.fixture(autouse=True)
def compiled_anew() -> None:
    """No test finds code that another compiled for the same function."""
    import weft

    weft.reset()


@pytest.fixture(autouse=True)
def seeded() -> None:
    """The same random weights and inputs in every run, whichever worker runs the test."""
    import torch

    torch.default_generator.manual_seed(0)
    if torch.cuda.is_available():  # to seed what is not there takes longer than a quick test
        torch.cuda.manual_seed_all(0)


RUNNERS = frozenset(sys._current_frames())


@pytest.fixture(autouse=True)
def runner_draws_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test runner's own threads, which wake now and then, are none that may draw random numbers."""
    from weft_bytecode_capture.symbolic.graph import recovery

    times = recovery._times_of_others

    def of_others() -> dict[int, int] | None:
        found = times()
        return None if found is None else {t: n for t, n in found.items() if t not in RUNNERS}

    monkeypatch.setattr(recovery, "_times_of_others", of_others)
