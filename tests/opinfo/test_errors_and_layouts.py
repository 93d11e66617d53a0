"""Errors and layouts of a fixed sample of the operator database in every run, of all of it as slow tests.

So are calls with bad operands made up from schemas.  ``python -m tests.opinfo.error_report``,
``layout_report`` and ``operand_report`` do the same in many processes.
"""

from __future__ import annotations

import pytest

pytest.importorskip("expecttest", reason="torch's operator database imports it")

import weft.registry

from tests.opinfo import layout_report
from tests.opinfo.checking import Case
from tests.opinfo.error_report import IN_PLACE, check_errors, error_cases
from tests.opinfo.layout_report import check_layouts, layout_cases
from tests.opinfo.operand_report import check_operands, operand_cases

ONCE_WRONG = (
    "index_add",
    "nn.functional.celu",
    "gather",
    "bitwise_left_shift" + IN_PLACE,
    "lt" + IN_PLACE,
)
ONCE_ELSEWHERE = (
    "_batch_norm_with_update",
    "copysign",
    "native_batch_norm",
    "nn.functional.channel_shuffle",
    "nn.functional.group_norm",
    "floor_divide",
)
ERRORS, LAYOUTS, OPERANDS = list(error_cases()), list(layout_cases()), list(operand_cases())
SOME_ERRORS = [*ERRORS[::211], *(case for case in ERRORS if case.name in ONCE_WRONG)]
SOME_LAYOUTS = [
    *LAYOUTS[::997],
    *(c for c in LAYOUTS if c.name in ONCE_ELSEWHERE and "float32" in str(c)),
]
SOME_OPERANDS = OPERANDS[::397]


@pytest.mark.parametrize("case", SOME_ERRORS, ids=str)
def test_errors(case: Case) -> None:
    outcome = check_errors(case, samples=2)
    assert not (outcome.wrong or outcome.errors)


@pytest.mark.parametrize("case", SOME_LAYOUTS, ids=str)
def test_layouts(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(weft.registry.codegens, "cpu", layout_report.EvaluatedCodegen)
    outcome = check_layouts(case, samples=3)
    assert not (outcome.wrong or outcome.errors)


@pytest.mark.parametrize("case", SOME_OPERANDS, ids=str)
def test_operands(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(weft.registry.codegens, "cpu", layout_report.EvaluatedCodegen)
    outcome = check_operands(case, samples=1)
    assert not (outcome.wrong or outcome.errors)


@pytest.mark.slow
@pytest.mark.parametrize("case", [c for c in ERRORS if c not in SOME_ERRORS], ids=str)
def test_every_error(case: Case) -> None:
    test_errors(case)


@pytest.mark.slow
@pytest.mark.parametrize("case", [c for c in LAYOUTS if c not in SOME_LAYOUTS], ids=str)
def test_every_layout(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    test_layouts(case, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("case", [c for c in OPERANDS if c not in SOME_OPERANDS], ids=str)
def test_every_operand(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    test_operands(case, monkeypatch)
