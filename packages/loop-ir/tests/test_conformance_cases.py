"""The conformance suite's own oracle, the reference evaluator, beside eager."""

from __future__ import annotations

import pytest
import torch
import weft_loop_ir
from torch.utils._pytree import tree_leaves
from weft_loop_ir import Codegen, CompiledProgram, Schedule, Unsupported
from weft_loop_ir.testing import Case, check, conformance_cases, report
from weft_loop_ir.testing.conformance import EXTENTS, schedule_of
from weft_loop_ir.testing.programs import inputs_of


class Evaluator(Codegen):
    """The reference evaluator as a code generator; ``wrong`` is added to every floating result."""

    device_type = "cpu"
    writes_inputs = True

    def __init__(self, wrong: float = 0.0) -> None:
        self.wrong = wrong

    def compile(self, schedule: Schedule, constants: object) -> CompiledProgram:
        if any(isinstance(step, weft_loop_ir.Loop) for step in schedule.steps):
            raise Unsupported("loops", schedule.name)
        return Evaluated(schedule, dict(constants), self.wrong)


class Evaluated:
    source, kernel_count, extern_count = "", 0, 0

    def __init__(self, schedule: Schedule, constants: dict[str, torch.Tensor], wrong: float):
        self.schedule, self.constants, self.wrong = schedule, constants, wrong

    def __call__(self, *inputs: object) -> tuple[object, ...]:
        given = iter(inputs)
        every = [
            self.constants.get(n) if n in self.constants else next(given)
            for n in self.schedule.inputs
        ]
        results = weft_loop_ir.evaluate(self.schedule, every, use_arena=True)
        return tuple(
            r + self.wrong
            if self.wrong and isinstance(r, torch.Tensor) and r.is_floating_point()
            else r
            for r in results
        )


@pytest.mark.parametrize("case", conformance_cases(sample=True), ids=str)
def test_the_evaluator_gives_what_eager_gives(case: Case) -> None:
    inputs = inputs_of(case.program, case.dtype, EXTENTS[0])
    schedule = schedule_of(case, Evaluator())
    if case.program.raises is not None:
        with pytest.raises(case.program.raises):
            weft_loop_ir.evaluate(schedule, inputs)
        return
    expected = case.program.function(*inputs)
    expected = expected if isinstance(expected, tuple) else (expected,)
    results = weft_loop_ir.evaluate(schedule, [x.clone() for x in inputs])
    for result, value in zip(tree_leaves(results), tree_leaves(expected), strict=True):
        if isinstance(value, torch.Tensor):
            torch.testing.assert_close(result, value, equal_nan=True)
        else:
            assert result == value


@pytest.mark.parametrize("case", conformance_cases(sample=True), ids=str)
def test_a_memory_plan_changes_nothing(case: Case) -> None:
    check(Evaluator(), case, may_refuse={"regions"})


def test_what_is_refused_is_told_from_what_is_wrong() -> None:
    cases = conformance_cases({"regions", "rows", "errors"}, sample=True)
    right = report(Evaluator(), cases)
    assert list(right.refused) == ["regions: loop-float32"]
    assert not right.wrong
    wrong = report(Evaluator(wrong=1.0), cases)
    assert "rows: softmax" in str(wrong)
    assert wrong.right == 1  # the one that raises
    with pytest.raises(AssertionError, match="result 0"):
        check(Evaluator(wrong=1.0), cases[0])
    with pytest.raises(Unsupported):
        check(Evaluator(), next(c for c in cases if c.program.name == "loop"))
