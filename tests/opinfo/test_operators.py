"""A fixed sample of the operator database in every run; all of it by ``nox -s opinfo``."""

from __future__ import annotations

import pytest

pytest.importorskip("expecttest", reason="torch's operator database imports it")

from tests.opinfo.checking import Case, all_cases, check
from tests.opinfo.dynamic import check_dynamic, dynamic_cases
from tests.opinfo.gradients import check_gradients, gradient_cases
from tests.opinfo.known import explained

ONCE_WRONG = (
    "var_mean.unbiased-float32-static",  # the mean of nothing is NaN
    "nn.functional.instance_norm-bfloat16-static",  # a kernel's dtype that its meta function doesn't know
    "nn.functional.embedding_bag-bfloat16-static",  # the size of a result that nothing uses
    "cross-bfloat16-static",  # rounding where terms cancel
)
CASES = list(all_cases())
SAMPLE = [*CASES[::268], *(case for case in CASES if str(case) in ONCE_WRONG)]


@pytest.mark.parametrize("case", SAMPLE, ids=str)
def test_operator(case: Case) -> None:
    outcome = check(case, limit=3 if str(case) in ONCE_WRONG else 1)
    assert not (outcome.wrong or outcome.errors) or explained(case, outcome)


@pytest.mark.parametrize("case", list(gradient_cases())[::193], ids=str)
def test_gradients(case: Case) -> None:
    outcome = check_gradients(case, limit=1)
    assert not (outcome.wrong or outcome.errors) or explained(case, outcome)


DYNAMIC_ONCE_WRONG = (
    "arange-float32-dynamic",  # a quotient by a negative number
    "narrow-float32-dynamic",  # a start that depends on data
    "polygamma.polygamma_n_0-float32-dynamic",  # in place
    "roll-float32-dynamic",  # backward's numbers
    "view_as_complex-float32-dynamic",  # a view of another dtype
)
DYNAMIC = list(dynamic_cases())


@pytest.mark.parametrize("case", [c for c in DYNAMIC if str(c) in DYNAMIC_ONCE_WRONG], ids=str)
def test_dynamic(case: Case) -> None:
    outcome = check_dynamic(case, limit=5)
    assert outcome.samples
    assert not (outcome.wrong or outcome.errors) or explained(case, outcome)


@pytest.mark.slow
@pytest.mark.parametrize("case", DYNAMIC[::31], ids=str)
def test_dynamic_sample(case: Case) -> None:
    outcome = check_dynamic(case, limit=8)
    assert not (outcome.wrong or outcome.errors) or explained(case, outcome)
