"""The conformance suite of loop-ir in Triton's interpreter: a sample of it, and the whole of it when slow."""

from __future__ import annotations

import pytest
from weft_codegen_triton import TritonCodegen
from weft_loop_ir.testing import Case, check, conformance_cases

NOT_HERE = {"errors"}
"""An index out of range ends a GPU's context; in the interpreter the error is Triton's own."""
REFUSED = {"sizes of data"}

SAMPLE = [case for case in conformance_cases(sample=True) if case.kind not in NOT_HERE]
OTHERS = [c for c in conformance_cases() if c not in SAMPLE and c.kind not in NOT_HERE]


@pytest.mark.parametrize("case", SAMPLE, ids=str)
def test_sample(codegen: TritonCodegen, case: Case) -> None:
    check(codegen, case, may_refuse=REFUSED)


@pytest.mark.slow
@pytest.mark.parametrize("case", OTHERS, ids=str)
def test_others(codegen: TritonCodegen, case: Case) -> None:
    check(codegen, case, may_refuse=REFUSED)
