"""A conformance suite for code generators: schedules of every kind, beside the reference evaluator.

    @pytest.mark.parametrize("case", conformance_cases(), ids=str)
    def test_conformance(case):
        check(MyCodegen(), case)

:func:`check` raises :class:`~weft_loop_ir.Unsupported` where the code generator refuses a schedule, and
AssertionError where its program is wrong; :func:`report` runs many cases and lists both apart.
"""

from weft_loop_ir.testing.conformance import Case, Report, check, conformance_cases, report

__all__ = ["Case", "Report", "check", "conformance_cases", "report"]
