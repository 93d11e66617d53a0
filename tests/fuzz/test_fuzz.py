"""A few random whole programs in every run, and that the fuzzer finds and shrinks a fault.

``nox -s fuzz`` runs as many as one likes: `nox -s fuzz -- --programs 20000`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from .checking import check
from .programs import Program, random_program
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
