"""A few random whole programs in every run, and that the fuzzer finds and shrinks a fault.

``nox -s fuzz`` runs as many as one likes: `nox -s fuzz -- --programs 20000`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import weft
from weft_codegen_cpp import CppCodegen

from .checking import check
from .evaluated import EvaluatedCpp
from .programs import Call, Input, Program, Statement, random_program
from .report import outcome_of, summary
from .shrinking import shrink
from .templates import PRELUDE

SEEDS = range(12)
LONG = (3,)
"""Programs that take ten times as long as others to compile."""


@pytest.mark.parametrize(
    "seed", [pytest.param(n, marks=[pytest.mark.slow] if n in LONG else []) for n in SEEDS]
)
def test_random_program(seed: int) -> None:
    program = random_program(seed)
    outcome = check(program)
    assert not outcome.bad, f"{outcome.detail}\n{program.calls}\n{program.source}"


def test_most_programs_are_compared() -> None:
    kinds = [check(random_program(seed)).kind for seed in SEEDS[::4]]
    assert kinds.count("right") > len(kinds) / 2


def test_programs_depend_on_their_seeds_alone() -> None:
    assert random_program(3) == random_program(3)
    assert random_program(3).source != random_program(4).source


@pytest.mark.parametrize("shape", [(5, 0), (0, 3), (5, 3)])
def test_an_evaluated_result_without_elements_is_no_argument(shape: tuple[int, ...]) -> None:
    weft.register_codegen("cpu", EvaluatedCpp)
    try:
        weft.reset()
        compiled = weft.compile(lambda x: (x.sin(), x), options={"strict": True})
        x = torch.ones(shape)
        result, same = compiled(x)
        assert result is not x and same is x
    finally:
        weft.register_codegen("cpu", CppCodegen)
        weft.reset()


def _without_mutation(program: Program) -> Any:
    """A compiler that loses what a program writes to its arguments."""

    def compile_function(function: Callable[..., Any], dynamic: bool | None) -> Callable[..., Any]:
        def run(*arguments: Any) -> Any:
            return function(*(a.clone() if isinstance(a, torch.Tensor) else a for a in arguments))

        return run

    return compile_function


def test_a_planted_fault_is_found_and_made_small() -> None:
    found = None
    for seed in range(200):
        program = random_program(seed)
        if check(program, _without_mutation(program)).kind == "wrong":
            found = program
            break
    assert found is not None
    small = shrink(
        found, lambda other: check(other, _without_mutation(other)).kind == "wrong", 20.0
    )
    assert check(small, _without_mutation(small)).kind == "wrong"
    body = small.source.removeprefix(PRELUDE)
    assert len(body.splitlines()) <= len(found.source.removeprefix(PRELUDE).splitlines())
    assert len(small.statements) <= 3


@pytest.mark.parametrize("last", [(), ("x0 = torch.complex(x0, -x0)",)], ids=["real", "complex"])
@pytest.mark.parametrize(("by", "kind"), [(1.0, "unstable"), (10.0, "wrong")])
def test_float64_judges_what_differs_by_rounding(
    by: float, kind: str, last: tuple[str, ...]
) -> None:
    """A mean of large float32 numbers is far from right in eager, too; twice as far is wrong."""
    call = Call(1, (("r", 4000),), ("plain", "same"), 0, 1.0, False, False, False)
    lines = "x0 = (x0 * 1e-2 + 1e4).cumsum(0).diff()", "x0 = x0 - x0.mean()", *last
    inputs = (Input(("r",), torch.float32),) * 2
    program = Program(0, inputs, (call,), False, tuple(map(Statement, lines)))

    def compile_function(function: Callable[..., Any], dynamic: bool | None) -> Callable[..., Any]:
        def run(x: torch.Tensor, other: torch.Tensor, *arguments: Any) -> Any:
            (exact,) = function(x.double(), other, *arguments)
            (rounded,) = function(x, other, *arguments)
            exact = exact.to(rounded.dtype)
            distance = rounded - exact
            return ((exact if kind == "unstable" else rounded + by * distance),)

        return run

    assert check(program, compile_function).kind == kind


def test_eager_rounded_otherwise_judges_what_no_argument_changes() -> None:
    """What is huge and taken modulo 1 is rounding alone, though it is computed from zeros and ones."""
    call = Call(1, (("r", 9),), ("plain", "same"), 0, 1.0, False, False, False)
    lines = "x0 = (x0 > 0).double() + 0.1", "x0 = torch.linalg.matrix_power(x0, 18)", "x0 = x0 % 1"
    program = Program(
        0, (Input(("r", "r"), torch.float64),) * 2, (call,), False, tuple(map(Statement, lines))
    )

    def by(change: Callable[[torch.Tensor], torch.Tensor]) -> str:
        def compile_function(function: Any, dynamic: bool | None) -> Callable[..., Any]:
            return lambda *arguments: (change(function(*arguments)[0]),)

        return check(program, compile_function).kind

    assert by(lambda x: (x + 1e-3) % 1) == "unstable"
    assert by(lambda x: x + 2) == "wrong"


def test_a_graph_may_know_the_history_that_eager_has_lost() -> None:
    """Eager forgets what the parts of ``unbind`` are computed from when their base is written to."""
    call = Call(1, (("r", 4),), ("plain", "same"), 0, 1.0, False, True, False)
    lines = Statement("v1 = x0.unbind(0)[0]"), Statement("x0.add_(1)"), Statement("x0 = v1")
    program = Program(0, (Input(("r", "r"), torch.float32),) * 2, (call,), False, lines)

    def compile_function(function: Callable[..., Any], dynamic: bool | None) -> Callable[..., Any]:
        return lambda x, *others: (x.select(0, 0), x.add_(1))[:1]

    assert check(program, compile_function).kind == "right"

    def without_history(function: Any, dynamic: bool | None) -> Callable[..., Any]:
        return lambda x, *others: (x.select(0, 0).detach(), x.add_(1))[:1]

    assert check(program, without_history).kind == "wrong"


@pytest.mark.parametrize("seed", [20, 21, 22])
def test_the_evaluator_runs_what_no_compiler_makes(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[type] = []
    monkeypatch.setattr("weft.register_codegen", lambda device, kind: made.append(kind))
    assert outcome_of(seed, 0.0, compiled_every=10)["kind"] in ("right", "refused", "unstable")
    assert made == [EvaluatedCpp if seed % 10 else CppCodegen]


@pytest.mark.parametrize("seed", [31, 32, 33, 34, 17_450_172])  # the last has no elements
def test_evaluated_programs_are_eagers(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from weft.registry import codegens

    monkeypatch.setitem(codegens, "cpu", EvaluatedCpp)
    monkeypatch.setattr(CppCodegen, "_library", None)  # no C++ compiler is called
    outcome = check(random_program(seed))
    assert not outcome.bad, outcome.detail


def test_the_last_lines_tell_of_each_kind_of_failure_once() -> None:
    outcomes = [
        {"seed": n, "kind": "wrong", "detail": f"call {n}: values: {n}.5", "program": ""}
        for n in range(500)
    ]
    outcomes += [{"seed": n, "kind": "right", "detail": "", "program": ""} for n in range(500)]
    lines = summary(outcomes).splitlines()
    assert lines[0].startswith("500 x (seeds 0 1 2): call 0: values")
    assert lines[-1] == "1000 programs: 500 wrong, 500 right"
    different = [
        {"seed": n, "kind": "fault", "detail": chr(65 + n % 26) * n, "program": ""}
        for n in range(300)
    ]
    assert len(summary(different)) < 8000
