"""A fixed sample of the operator database in every run; all of it by ``nox -s opinfo``."""

from __future__ import annotations

import pytest

pytest.importorskip("expecttest", reason="torch's operator database imports it")

from tests.opinfo.checking import Case, all_cases, check
from tests.opinfo.known import explained

SAMPLE = list(all_cases())[::67]


@pytest.mark.parametrize("case", SAMPLE, ids=str)
def test_operator(case: Case) -> None:
    outcome = check(case, limit=1)
    assert not (outcome.wrong or outcome.errors) or explained(case, outcome)
