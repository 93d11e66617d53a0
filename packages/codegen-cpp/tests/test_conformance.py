"""The conformance suite of loop-ir: a sample of it, and the whole of it when slow."""

from __future__ import annotations

import pytest
from weft_codegen_cpp import CppCodegen
from weft_loop_ir.testing import Case, check, conformance_cases

SAMPLE = conformance_cases(sample=True)
OTHERS = [case for case in conformance_cases() if case not in SAMPLE]


@pytest.mark.parametrize("case", SAMPLE, ids=str)
def test_sample(codegen: CppCodegen, case: Case) -> None:
    check(codegen, case)


@pytest.mark.slow
@pytest.mark.parametrize("case", OTHERS, ids=str)
def test_others(codegen: CppCodegen, case: Case) -> None:
    check(codegen, case)
